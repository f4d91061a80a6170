"""The command as a process of its own: at a terminal, in a pipe, interrupted, and with the daemon it starts itself."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ostinatod.cli.app import cli
from ostinatod.installer.build_cache import SERVER_NAME, BuildCache
from tests.conftest import SCRIPTED_ENGINE, eventually, free_port
from tests.fakes.daemon import WAIT, FakeDaemon, finish, reasoning, text

COMMAND = (sys.executable, "-m", "ostinatod")
PATIENCE_S = 20.0
# A terminal sends Ctrl-C to the session that it controls.
_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
CTRL_C, CTRL_D = "\x03", "\x04"


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    with FakeDaemon() as running:
        yield running


@pytest.fixture
def environment(daemon: FakeDaemon, tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "OSTINATO_HOST": daemon.url,
        "OSTINATO_HOME": str(tmp_path / "home"),
        "TERM": "xterm",
        # The test is no terminal emulator, so it does not answer when asked for the position of the cursor.
        "PROMPT_TOOLKIT_NO_CPR": "1",
    }


@pytest.fixture
def engine_cache(tmp_path: Path) -> Path:
    """A cache whose engine is the scripted one."""
    binaries, cache = tmp_path / "bin", BuildCache(tmp_path / "cache")
    binaries.mkdir()
    shutil.copy(SCRIPTED_ENGINE, binaries / SERVER_NAME)
    note = {"backend": "cpu", "llama_cpp_commit": "none", "sources_digest": "none"}
    cache.make_current(cache.install(binaries, "0" * 64, note))
    return cache.root


class Terminal:
    """A process whose terminal is the test."""

    def __init__(self, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            (sys.executable, "-ISc", _TAKE_TERMINAL, *COMMAND, *arguments),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self.shown = ""
        self._seen = 0

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, wanted: str) -> None:
        """Until `wanted` is shown after what was waited for before."""
        ends_at = time.monotonic() + PATIENCE_S
        while (found := self.shown.find(wanted, self._seen)) < 0:
            if not self._read(ends_at - time.monotonic()):
                pytest.fail(f"{wanted!r} was not shown, but: {self.shown[self._seen :]!r}")
        self._seen = found + len(wanted)

    def end(self) -> int:
        """The exit code, once everything has been shown."""
        ends_at = time.monotonic() + PATIENCE_S
        while self._read(ends_at - time.monotonic()):
            pass
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)

    def _read(self, timeout_s: float) -> bool:
        if not select.select([self._master], [], [], max(0.0, timeout_s))[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self.shown += data.decode("utf-8", errors="replace")
        return bool(data)


OpenTerminal = Callable[..., Terminal]


@pytest.fixture
def terminal(environment: dict[str, str]) -> Iterator[OpenTerminal]:
    opened: list[Terminal] = []

    def start(*arguments: str, **changes: str) -> Terminal:
        opened.append(Terminal(arguments, {**environment, **changes}))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_a_conversation_at_the_terminal(terminal: OpenTerminal, daemon: FakeDaemon, tmp_path: Path) -> None:
    screen = terminal("run", "tiny", "--verbose")
    screen.wait_for(">>> ")
    screen.type("hi\r")
    screen.wait_for("Hello there")
    screen.wait_for("time to first token")
    screen.wait_for(">>> ")
    screen.type('"""two\r')
    screen.wait_for("...")
    screen.type('lines"""\r')
    screen.wait_for("Hello there")
    screen.wait_for(">>> ")
    screen.type("/nonsense\r")
    screen.wait_for("unknown command /nonsense")
    screen.wait_for(">>> ")
    screen.type(CTRL_D)
    assert screen.end() == 0
    prompts = [body["messages"][-1]["content"] for body in daemon.asked("/v1/chat/completions")]
    assert prompts == ["hi", "two\nlines"]
    history = tmp_path / "home" / "history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert "+hi" in history.read_text().splitlines()


def test_ctrl_c_stops_an_answer_or_a_load_and_not_the_conversation(terminal: OpenTerminal, daemon: FakeDaemon) -> None:
    daemon.answer = (text("so far"), WAIT)
    screen = terminal("run", "tiny")
    screen.wait_for(">>> ")
    screen.type("hi\r")
    screen.wait_for("so far")
    screen.type(CTRL_C)
    screen.wait_for("stopped")
    assert daemon.abandoned.wait(PATIENCE_S)
    screen.wait_for(">>> ")
    daemon.answer = (text("again"), *finish())
    screen.type("more\r")
    screen.wait_for("again")
    screen.wait_for(">>> ")
    daemon.load_steps = [{"status": "loading", "progress": 0.1}, WAIT]
    screen.type("/load big\r")
    screen.wait_for("10%")
    screen.type(CTRL_C)
    screen.wait_for("stopped")
    screen.wait_for(">>> ")
    screen.type("/bye\r")
    assert screen.end() == 0
    assert [message["content"] for message in daemon.asked("/v1/chat/completions")[1]["messages"]] == [
        "hi",
        "so far",
        "more",
    ]


def test_a_model_cannot_send_escape_sequences_to_the_terminal(terminal: OpenTerminal, daemon: FakeDaemon) -> None:
    daemon.answer = (reasoning("\x1b]0;a\x07"), text("x\x1b[2J\x9b31my\x1b"), text("]52;c;AAAA\x07z\r!"), *finish())
    screen = terminal("run", "tiny", "hi", NO_COLOR="1")
    assert screen.end() == 0
    assert screen.shown == "]0;a\r\n\r\nx[2J31my]52;c;AAAAz!\r\n"


def test_reasoning_is_dim_at_a_terminal(terminal: OpenTerminal, daemon: FakeDaemon) -> None:
    daemon.answer = (reasoning("hm"), text("yes"), *finish())
    screen = terminal("run", "tiny", "hi")
    assert screen.end() == 0
    assert screen.shown.startswith("\x1b[2mhm\x1b[0m")
    assert screen.shown.endswith("yes\r\n")


def test_a_pull_at_a_terminal_draws_a_bar_for_each_file(terminal: OpenTerminal, daemon: FakeDaemon) -> None:
    step = {"status": "downloading", "total": 2_000_000, "completed": 2_000_000, "all_total": 4_000_000}
    daemon.pull_steps = [{**step, "file": "a.gguf"}, {**step, "file": "[red]b.gguf"}, {"status": "success"}]
    screen = terminal("pull", "org/repo", COLUMNS="120")
    assert screen.end() == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.shown)
    assert "pulling org/repo: 4.0 MB" in plain
    assert re.search(r"a\.gguf +100% ━+ 2\.0/2\.0 MB", plain)
    assert re.search(r"\[red\]b\.gguf +100% ━+ 2\.0/2\.0 MB", plain)


def test_an_interrupted_pull_ends_in_130_and_says_how_to_resume(
    environment: dict[str, str], daemon: FakeDaemon
) -> None:
    step = {"status": "downloading", "file": "a.gguf", "total": 100, "completed": 50, "all_total": 100}
    daemon.pull_steps = [step, WAIT]
    with subprocess.Popen(
        (*COMMAND, "pull", "org/repo"), stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline(), process.stderr.readline()]
        assert "a.gguf: 50 %" in lines[1]
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "ostinato pull org/repo" in rest
    assert "Traceback" not in rest
    assert daemon.abandoned.wait(PATIENCE_S)


def test_a_pipe_gets_the_answer_byte_for_byte(environment: dict[str, str], daemon: FakeDaemon) -> None:
    daemon.answer = (text("\x1b[1mé漢\x1b[0m"), *finish())
    done = subprocess.run(
        (*COMMAND, "run", "tiny"), input=b"hi\n", capture_output=True, env=environment, timeout=60, check=True
    )
    assert done.stdout == "\x1b[1mé漢\x1b[0m\n".encode()
    assert daemon.asked("/v1/chat/completions")[0]["messages"][0]["content"] == "hi"


def test_a_closed_pipe_ends_the_command_quietly(environment: dict[str, str], daemon: FakeDaemon) -> None:
    daemon.answer = (*(text("x" * 1000) for _ in range(1000)), *finish())
    with subprocess.Popen(
        (*COMMAND, "run", "tiny", "hi"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(10) == b"x" * 10
        process.stdout.close()
        assert b"rror" not in process.stderr.read()
    assert process.returncode != 0


def test_run_starts_the_daemon_and_the_other_commands_find_it(engine_cache: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "OSTINATO_HOME": str(tmp_path / "h"),
        "OSTINATO_ENGINE_CACHE": str(engine_cache),
        "OSTINATO_HOST": f"127.0.0.1:{free_port()}",
        "HF_HUB_OFFLINE": "1",
    }

    def ostinato(*arguments: str) -> Result:
        return CliRunner(env=environment).invoke(cli, arguments)

    assert ostinato("list").exit_code == 3
    try:
        answered = subprocess.run(
            (*COMMAND, "run", "tiny", "hello", "--json"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
        )
        assert answered.returncode == 0, answered.stderr
        assert "starting one" in answered.stderr
        # The scripted engine answers with the request that it was sent.
        assert json.loads(json.loads(answered.stdout)["text"])["messages"] == [{"role": "user", "content": "hello"}]
        listed = json.loads(ostinato("list", "--json").stdout)
        assert [(model["name"], model["source"]) for model in listed] == [("tiny", "bundled")]
        running = json.loads(ostinato("ps", "--json").stdout)
        assert [(model["name"], model["state"]) for model in running] == [("tiny", "ready")]
        assert json.loads(ostinato("show", "tiny", "--json").stdout)["n_experts"] > 1
        assert json.loads(ostinato("status", "--json").stdout)["models"][0]["name"] == "tiny"
        assert ostinato("show", "missing").exit_code == 4
        assert ostinato("rm", "tiny").exit_code == 1
        assert ostinato("stop", "tiny").exit_code == 0
        assert json.loads(ostinato("ps", "--json").stdout) == []
    finally:
        stopped = ostinato("stop", "--daemon")
    assert stopped.exit_code == 0, stopped.stderr
    eventually(lambda: ostinato("list").exit_code == 3, "the daemon ends")
