from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ostinatod.models import bundled_file
from ostinatod.store.gguf_files import describe
from tests.conftest import PATIENCE_S, eventually
from tests.unit.cli.conftest import Invoke

NOBODY = {"OSTINATO_HOST": "127.0.0.1:1"}


@pytest.fixture
def log_dir(home: Path) -> Path:
    (home / "logs").mkdir(parents=True)
    return home / "logs"


def test_logs_of_a_dead_daemon_are_shown(invoke: Invoke, log_dir: Path) -> None:
    (log_dir / "ostinatod.log").write_text("one\ntwo\nthree\n")
    result = invoke("logs", "-n", "2", **NOBODY)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "two\nthree\n", "")
    told = json.loads(invoke("logs", "daemon", "--lines", "1", "--json", **NOBODY).stdout)
    assert told == {"source": "daemon", "file": str(log_dir / "ostinatod.log"), "lines": ["three"]}


def test_an_engines_log_is_found_by_the_models_name(invoke: Invoke, log_dir: Path) -> None:
    digest = describe((bundled_file(),)).digest
    (log_dir / f"engine-{digest[:12]}.log").write_text("loading\n")
    assert invoke("logs", "tiny", **NOBODY).stdout == "loading\n"
    assert invoke("logs", "TINY", "--path", **NOBODY).stdout == f"{log_dir / f'engine-{digest[:12]}.log'}\n"


def test_output_and_build_are_sources(invoke: Invoke, log_dir: Path) -> None:
    (log_dir / "daemon.log").write_text("Traceback\n")
    (log_dir / "engine-build-a.log").write_text("cc1plus\n")
    assert invoke("logs", "output").stdout == "Traceback\n"
    assert invoke("logs", "build").stdout == "cc1plus\n"


def test_an_unknown_source_suggests_a_model(invoke: Invoke, log_dir: Path) -> None:
    result = invoke("logs", "tinny", **NOBODY)
    assert result.exit_code == 4
    assert "Did you mean tiny?" in result.stderr


@pytest.mark.parametrize(
    ("source", "hint"),
    [("daemon", "ostinato serve"), ("build", "ostinato engine build"), ("tiny", "ostinato load tiny")],
)
def test_a_log_that_does_not_exist_says_what_begins_it(invoke: Invoke, log_dir: Path, source: str, hint: str) -> None:
    result = invoke("logs", source, **NOBODY)
    assert (result.exit_code, hint in result.stderr) == (4, True)


def test_control_characters_in_a_log_are_inert(invoke: Invoke, log_dir: Path) -> None:
    (log_dir / "ostinatod.log").write_bytes(b"a\x1b]0;owned\x07b\xc2\x9b2J\n")
    assert invoke("logs").stdout == "a]0;ownedb2J\n"


def test_following_prints_new_lines_until_interrupted(log_dir: Path, tmp_path: Path) -> None:
    log = log_dir / "ostinatod.log"
    log.write_text("old\n")
    command = [sys.executable, "-m", "ostinatod", "logs", "-f", "-n", "1", "--json"]
    output = tmp_path / "output"
    with (
        output.open("wb") as stream,
        subprocess.Popen(command, stdout=stream, stderr=stream, env=os.environ) as process,
    ):
        eventually(lambda: "old" in output.read_text(), "the last line is shown")
        with log.open("a") as file:
            file.write("new\n")
        eventually(lambda: "new" in output.read_text(), "the new line is shown")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    lines = output.read_text().splitlines()
    assert [json.loads(line) for line in lines[:2]] == [
        {"source": "daemon", "line": "old"},
        {"source": "daemon", "line": "new"},
    ]
