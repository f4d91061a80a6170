"""aider, as PyPI has it, against the daemon with the real engine and the bundled model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from ostinatod import locations
from ostinatod.installer.engine_build import EngineBuild
from tests import aider_environment
from tests.conftest import RunningDaemon, StartDaemon, eventually

pytestmark = pytest.mark.engine

STARTED_S = 120
"""aider imports for ten seconds, and longer where it has to compile what it imports."""
OPTIONS = (
    "--yes-always",
    "--no-git",
    "--no-pretty",
    "--no-fancy-input",
    "--no-check-update",
    "--no-show-release-notes",
    "--no-show-model-warnings",
    "--analytics-disable",
)
EDIT = 'hello.py\n```\nprint("hello")\n```\n'
"""A whole file, as aider asks for one."""


@pytest.fixture(scope="module")
def program() -> Path:
    """Skips when it is not installed, unless OSTINATO_AIDER says that it is."""
    found = aider_environment.program(aider_environment.folder())
    if found is None:
        message = f"AIDER IS NOT TRIED: it is not in {aider_environment.folder()}; run: {aider_environment.COMMAND}"
        if aider_environment.VARIABLE in os.environ:
            pytest.fail(message)
        pytest.skip(message)
    return found


@dataclass
class Aider:
    """A conversation with it through pipes."""

    daemon: RunningDaemon
    work: Path
    process: subprocess.Popen[str]
    output: Path

    def say(self, text: str) -> None:
        """One line to it."""
        stdin: IO[str] | None = self.process.stdin
        assert stdin is not None
        stdin.write(f"{text}\n")
        stdin.flush()

    def requests(self) -> list[dict[str, Any]]:
        """What it has asked the daemon, oldest first."""
        told: list[dict[str, Any]] = self.daemon.http.get("/ostinato/requests").json()["requests"]
        return told[::-1]

    def until_ended(self, count: int) -> list[dict[str, Any]]:
        """The requests, as soon as so many have ended."""
        return list(
            eventually(
                lambda: self.requests() if len(self.requests()) >= count else None,
                f"{count} requests; aider says: {self.output.read_text()[-2000:]}",
                STARTED_S,
                every_s=0.2,
            )
        )

    def until_said(self, words: str) -> None:
        """Waits until its output contains the words."""
        eventually(lambda: words in self.output.read_text(), words, STARTED_S, every_s=0.2)


@contextmanager
def started(program: Path, daemon: RunningDaemon, home: Path) -> Iterator[Aider]:
    """aider as `ostinato launch` starts it, in a folder of its own, with nothing but loopback to talk to."""
    work = home / "work"
    work.mkdir(parents=True)
    nowhere = "http://127.0.0.1:9"
    environment = {
        "HOME": str(home),
        "PATH": f"{program.parent}:/usr/bin:/bin",
        "TERM": "dumb",
        "OSTINATO_HOME": str(daemon.home),
        "OSTINATO_HOST": daemon.url,
        "HTTP_PROXY": nowhere,
        "HTTPS_PROXY": nowhere,
        "NO_PROXY": "127.0.0.1",
    }
    output = home / "output"
    command = [sys.executable, "-m", "ostinatod", "launch", "aider", "--model", "tiny", "--", *OPTIONS]
    with output.open("w") as file:
        process = subprocess.Popen(
            command, cwd=work, env=environment, stdin=subprocess.PIPE, stdout=file, stderr=file, text=True
        )
        try:
            yield Aider(daemon, work, process, output)
        finally:
            process.kill()
            process.communicate()


@pytest.mark.timeout(3 * STARTED_S)
def test_aider_finds_the_window_edits_a_file_goes_on_and_is_told_of_an_overflow(
    engine_build: EngineBuild, start_daemon: StartDaemon, program: Path, tmp_path: Path
) -> None:
    grammar = tmp_path / "edit.gbnf"
    grammar.write_text("root ::= " + " ".join(f'"{line}\\n"' for line in EDIT.replace('"', r"\"").splitlines()))
    daemon = start_daemon(locations.engine_cache_dir(), OSTINATO_ENGINE_ARGS=f"--grammar-file {grammar}")
    with started(program, daemon, tmp_path / "aider") as aider:
        aider.say("Write a program that says hello.")
        (first,) = aider.until_ended(1)
        assert (first["status"], first["dialect"], first["reused_tokens"]) == ("ok", "openai", 0)
        edited = aider.work / "hello.py"
        eventually(
            lambda: edited.exists() and edited.read_text() == 'print("hello")\n', "the file is written", STARTED_S
        )

        aider.say("Write it again.")
        second = aider.until_ended(2)[-1]
        assert second["status"] == "ok"
        # Its reminder of the answer's format stands behind the latest message and moves with it.
        assert second["prefix_break"]["reason"] == "message"
        assert second["reused_tokens"] >= first["new_tokens"] - second["prefix_break"]["lost_tokens"] - 20
        assert second["reused_tokens"] > second["new_tokens"]

        aider.say("word " * 9000)
        aider.until_said("exceeds the 8,192 token limit")  # by its own estimate, before it asks
        aider.until_said("has hit a token limit")
        assert [request["status"] for request in aider.until_ended(3)] == ["ok", "ok", "context_length_exceeded"]
        aider.say("/exit")
        assert aider.process.wait(STARTED_S) == 0


@pytest.mark.timeout(2 * STARTED_S)
def test_aider_that_is_ended_in_mid_answer_frees_the_engine(
    engine_build: EngineBuild, start_daemon: StartDaemon, program: Path, tmp_path: Path
) -> None:
    endless = "--logit-bias 2-100"  # the token that ends an answer
    daemon = start_daemon(locations.engine_cache_dir(), OSTINATO_ENGINE_ARGS=endless, OSTINATO_THREADS="1")

    def in_flight() -> list[dict[str, Any]]:
        running: list[dict[str, Any]] = daemon.http.get("/ostinato/requests").json()["in_flight"]
        return running

    with started(program, daemon, tmp_path / "aider") as aider:
        aider.say("Say hello.")
        eventually(lambda: [r for r in in_flight() if r["ttft_ms"] is not None], "an answer has begun", STARTED_S)
        aider.process.kill()
        aider.process.wait()
        eventually(lambda: not in_flight(), "the engine is free", 5)
        # Requests are logged off their path, a moment after they have ended.
        (request,) = aider.until_ended(1)
        assert request["status"] == "cancelled"
