from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinatod import log_files


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "a.log"


def test_the_last_lines_reach_into_rotated_files(log: Path) -> None:
    log.with_name("a.log.2").write_text("1\n2\n")
    log.with_name("a.log.1").write_text("3\n4\n")
    log.write_text("5\n6\n")
    assert log_files.last_lines(log, 3) == ["4", "5", "6"]
    assert log_files.last_lines(log, 100) == ["1", "2", "3", "4", "5", "6"]
    assert log_files.last_lines(log, 0) == []


def test_a_last_line_without_an_end_is_shown_too(log: Path) -> None:
    log.write_bytes(b"a\r\nbroken \xff\nunfinished")
    assert log_files.last_lines(log, 9) == ["a", "broken \ufffd", "unfinished"]


def test_a_missing_log_is_an_error(log: Path) -> None:
    with pytest.raises(FileNotFoundError):
        log_files.last_lines(log, 1)


@given(st.lists(st.text(alphabet="ab", max_size=40_000), max_size=6), st.integers(1, 8))
def test_the_last_lines_of_any_log_are_its_last_lines(lines: list[str], count: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "a.log"
        log.write_text("".join(f"{line}\n" for line in lines))
        assert log_files.last_lines(log, count) == lines[-count:]


class StopFollowing(Exception):
    """Ends what would go on forever."""


def following(log: Path, *happenings: Callable[[], object]) -> list[str]:
    """The lines that are followed while one thing after the other happens to the log."""
    left = list(happenings)

    lines: list[str] = []

    def wait(seconds: float) -> None:
        if not left:
            raise StopFollowing
        left.pop(0)()

    with contextlib.suppress(StopFollowing):
        for line in log_files.new_lines(log, wait=wait):
            lines.append(line)  # noqa: PERF402
    return lines


def append(log: Path, text: str) -> Callable[[], object]:
    def write() -> None:
        with log.open("a") as file:
            file.write(text)

    return write


def test_new_lines_come_whole_and_old_ones_not_at_all(log: Path) -> None:
    log.write_text("old\n")
    assert following(log, append(log, "ha"), append(log, "lf\nnext\n")) == ["half", "next"]


def test_following_survives_rotation_truncation_and_a_log_that_does_not_exist_yet(log: Path) -> None:
    def rotate() -> None:
        log.rename(log.with_name("a.log.1"))

    assert following(log, append(log, "1\n"), append(log, "2"), rotate, append(log, "3\n")) == ["1", "2", "3"]
    log.write_text("a long line that goes\n")
    assert following(log, lambda: log.write_text("new\n"), append(log, "more\n")) == ["new", "more"]


def test_a_line_without_end_is_shown_in_pieces_instead_of_filling_memory(log: Path) -> None:
    log.touch()
    lines = following(log, append(log, "x" * 200_000))
    assert 1 <= len(lines) <= 3
    assert set("".join(lines)) == {"x"}


def test_the_newest_build_has_the_build_log(tmp_path: Path) -> None:
    assert log_files.build_log(tmp_path).name == "engine-build.log"
    for age, name in enumerate(("engine-build-b.log", "engine-build-a.log")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    assert log_files.build_log(tmp_path).name == "engine-build-b.log"
