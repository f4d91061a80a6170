from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from ostinatod import locations
from ostinatod.doctor import place_checks
from ostinatod.doctor.findings import Finding
from ostinatod.doctor.hub_checks import check_hub
from ostinatod.doctor.machine_checks import UNLIMITED, check_disk, check_memory_lock, check_terminal
from ostinatod.doctor.place_checks import check_leftovers, check_runtime_dir
from ostinatod.doctor.service_checks import check_service
from ostinatod.service.host import ServiceState

MIB = 1024**2


def test_a_low_limit_on_locked_memory_says_who_can_raise_it() -> None:
    assert check_memory_lock(UNLIMITED, UNLIMITED, 64 * MIB, wanted=True).level == "ok"
    assert check_memory_lock(64 * MIB, 64 * MIB, 64 * MIB, wanted=True).level == "ok"
    assert check_memory_lock(8 * MIB, 8 * MIB, 64 * MIB, wanted=False).level == "ok"
    own = check_memory_lock(8 * MIB, UNLIMITED, 64 * MIB, wanted=True)
    assert (own.level, "ulimit -l" in (own.hint or "")) == ("warning", True)
    others = check_memory_lock(8 * MIB, 8 * MIB, 64 * MIB, wanted=True)
    assert "limits.d" in (others.hint or "")
    assert "8192 KiB" in others.found


def test_a_full_disk_is_told_before_it_is_needed(tmp_path: Path) -> None:
    wanted = 10**18
    found = check_disk("disk-cache", tmp_path / "not" / "made", wanted, "an engine build", "OSTINATO_ENGINE_CACHE")
    assert found.level == "warning"
    assert "an engine build takes about" in found.found
    assert "OSTINATO_ENGINE_CACHE" in (found.hint or "")
    assert check_disk("disk-cache", tmp_path, 1, "x", "y").level == "ok"


def test_a_place_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert check_disk("disk-data", tmp_path / "file" / "below", 1, "x", "y").level == "problem"


@pytest.mark.parametrize(
    ("environment", "encoding", "size", "said"),
    [
        ({"TERM": "dumb"}, "utf-8", (80, 24), "TERM=dumb"),
        ({}, "utf-8", (80, 24), "TERM="),
        ({"TERM": "xterm"}, "ANSI_X3.4-1968", (80, 24), "ANSI_X3.4-1968"),
        ({"TERM": "xterm"}, "utf-8", (79, 24), "79x24"),
    ],
)
def test_a_poor_terminal_is_told(environment: dict[str, str], encoding: str, size: tuple[int, int], said: str) -> None:
    found = check_terminal(environment, is_terminal=True, encoding=encoding, size=os.terminal_size(size))
    assert (found.level, said in found.found) == ("warning", True)


def test_a_good_terminal_and_a_pipe_are_in_order() -> None:
    environment = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "NO_COLOR": "1"}
    found = check_terminal(environment, is_terminal=True, encoding="UTF-8", size=os.terminal_size((80, 24)))
    assert (found.level, "NO_COLOR" in found.found) == ("ok", True)
    assert check_terminal({}, is_terminal=False, encoding=None, size=None).level == "ok"


def test_a_runtime_directory_that_others_may_enter_is_a_problem(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    found = check_runtime_dir(tmp_path, os.getuid())
    assert (found.level, found.hint) == ("problem", f"Close it: chmod 700 {tmp_path}")
    tmp_path.chmod(0o700)
    assert check_runtime_dir(tmp_path, os.getuid()).level == "ok"
    assert check_runtime_dir(tmp_path, os.getuid() + 1).level == "problem"
    (tmp_path / "file").touch(mode=0o600)
    assert check_runtime_dir(tmp_path / "file", os.getuid()).level == "problem"
    assert check_runtime_dir(tmp_path / "missing", os.getuid()).level == "skipped"


def test_a_path_too_long_for_sockets_is_a_problem(tmp_path: Path) -> None:
    found = check_runtime_dir(tmp_path / ("x" * locations.RUNTIME_DIR_BYTES), os.getuid())
    assert (found.level, "OSTINATO_HOME" in (found.hint or "")) == ("problem", True)


def test_what_a_killed_daemon_left_is_told(tmp_path: Path) -> None:
    pid_file = tmp_path / "ostinatod.pid"
    pid_file.write_text("77\n")
    for name in ("engine-77-1.sock", "engine-88-1.sock", "engine-odd-1.sock"):
        (tmp_path / name).touch()
    found = check_leftovers(tmp_path, pid_file, lambda pid: pid == 88)
    assert found.level == "warning"
    assert "ostinatod.pid, engine-77-1.sock in" in found.found
    assert check_leftovers(tmp_path, pid_file, lambda pid: True).level == "ok"
    assert check_leftovers(tmp_path / "missing", tmp_path / "missing.pid", lambda pid: False).level == "ok"


def check_database(file: Path) -> Finding:
    return place_checks.check_database("database", file, "models are registered again by pull", "models")


def test_a_damaged_database_is_a_problem_that_says_how_to_go_on(tmp_path: Path) -> None:
    file = tmp_path / "ostinato.db"
    assert check_database(file).level == "skipped"
    with sqlite3.connect(file) as database:
        database.execute("create table models (key text)")
        database.executemany("insert into models values (?)", [("x" * 500,)] * 200)
    database.close()
    assert check_database(file).level == "ok"
    assert place_checks.check_database("routing-log", file, "x").check == "routing-log"
    content = bytearray(file.read_bytes())
    content[4096:12288] = b"\xff" * 8192
    file.write_bytes(content)
    found = check_database(file)
    assert (found.level, f"mv {file}" in (found.hint or "")) == ("problem", True)
    file.write_bytes(b"not a database at all, but long enough to be read as one" * 20)
    assert check_database(file).level == "problem"


def test_a_foreign_database_and_one_that_cannot_be_opened_are_problems(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with sqlite3.connect(file) as database:
        database.execute("create table songs (title text)")
    database.close()
    assert "something else" in check_database(file).found
    (tmp_path / "directory.db").mkdir()
    found = check_database(tmp_path / "directory.db")
    assert (found.level, "cannot be read" in found.found) == ("problem", True)


@pytest.mark.parametrize("endpoint", ["huggingface.co", "ftp://a", "https://"])
def test_an_endpoint_that_is_no_address_is_a_problem(endpoint: str, tmp_path: Path) -> None:
    assert check_hub(endpoint, {}, tmp_path).level == "problem"


def test_offline_mode_is_told(tmp_path: Path) -> None:
    found = check_hub("https://huggingface.co", {"HF_HUB_OFFLINE": "1"}, tmp_path)
    assert (found.level, "unset HF_HUB_OFFLINE" in (found.hint or "")) == ("warning", True)
    assert check_hub("https://huggingface.co", {"HF_HUB_OFFLINE": "0"}, tmp_path).level == "ok"


def test_a_token_in_danger_is_told_and_never_shown(tmp_path: Path) -> None:
    token = tmp_path / ".cache" / "huggingface" / "token"
    token.parent.mkdir(parents=True)
    token.write_text("hf_secret")
    token.chmod(0o644)
    readable = check_hub("https://huggingface.co", {}, tmp_path)
    token.chmod(0o600)
    plain = check_hub("http://mirror.lan", {}, tmp_path)
    fine = check_hub("https://huggingface.co", {"HF_TOKEN": "hf_secret"}, tmp_path)
    assert [finding.level for finding in (readable, plain, fine)] == ["warning", "warning", "ok"]
    assert not any("hf_secret" in f"{finding.found}{finding.hint}" for finding in (readable, plain, fine))
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert "with a token" in fine.found
    elsewhere = check_hub("https://huggingface.co", {"HF_HOME": str(tmp_path / "none")}, tmp_path)
    assert "without a token" in elsewhere.found


def test_a_service_that_is_installed_and_does_not_run_is_told() -> None:
    state = ServiceState("systemd", Path("/u"), True, True, False, "failed, enabled")
    found = check_service(state)
    assert (found.level, "service restart" in (found.hint or "")) == ("warning", True)
    assert check_service(ServiceState("systemd", Path("/u"), True, True, True, "active, enabled")).level == "ok"
    assert check_service(ServiceState("systemd", Path("/u"), False, False, False, "x")).level == "skipped"
