"""What is told of an engine's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinatod.engine.log_tail import hint_for, read_load_progress, read_tail, telling_lines

LOG = Path("/logs/engine.log")


def test_the_tail_has_whole_lines_without_the_engines_clock(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("x" * 100 + "\n0.00.137.789 I cmn          init: n_threads = 2\n\n0.01.000.001 E srv  exiting\n")
    assert read_tail(file, limit_bytes=100) == ["n_threads = 2", "srv  exiting"]
    assert read_tail(tmp_path / "missing") == []


def test_the_last_progress_line_counts(tmp_path: Path) -> None:
    file = tmp_path / "log"
    assert read_load_progress(file) is None
    file.write_text("ostinato-load 0.25\n0.00.1 I srv x: y\nostinato-load 0.5\nostinato-loader\n")
    assert read_load_progress(file) == 0.5


def test_telling_lines_are_those_that_speak_of_failure_once_each() -> None:
    lines = ["loading", "CUDA error: out of memory", "CUDA error: out of memory", "bye"]
    assert telling_lines(lines) == ["CUDA error: out of memory"]
    assert telling_lines(["one", "two", "three"], limit=2) == ["two", "three"]


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("cudaMalloc failed: out of memory", "OSTINATO_CONTEXT"),
        ("ggml_backend_alloc: failed to allocate buffer", "OSTINATO_CONTEXT"),
        ("unknown model architecture: 'zebra'", "does not know"),
        ("error: invalid argument: --zebra", "engine_args"),
        ("error while loading shared libraries: libllama.so", "ostinato engine build"),
        ("failed to load model", "ostinato pull"),
        ("something else", "The whole log: /logs/engine.log"),
    ],
)
def test_each_known_failure_has_its_next_step(line: str, advice: str) -> None:
    assert advice in hint_for([line], LOG)
    assert str(LOG) in hint_for([line], LOG)
