"""What an engine's log says about its end: the last lines, the telling ones among them, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

TAIL_BYTES = 16384
PROGRESS_TAIL_BYTES = 2048

_PREFIX = re.compile(r"^\d+\.\d\d\.\d{3}\.\d{3} [A-Z] +(?:\S+ +\S+: )?")
_LOAD = re.compile(r"ostinato-load (\d+(?:\.\d+)?)")
_TELLING = re.compile(
    r"\berror\b|failed|out of memory|cannot|unable|unknown|invalid|GGML_ASSERT|terminate called|what\(\)|abort|"
    r"exception|no such file|illegal instruction|segmentation",
    re.IGNORECASE,
)
_HINTS = (
    (
        re.compile(r"out of memory|failed to allocate|cannot allocate|alloc.*failed|bad_alloc", re.IGNORECASE),
        "Free memory, or load with less context: OSTINATO_CONTEXT=16384 ostinato serve",
    ),
    (
        re.compile(r"unknown model architecture|unknown (pre-)?tokenizer", re.IGNORECASE),
        "This engine does not know the model's architecture; rebuild a newer one: ostinato engine build",
    ),
    (
        re.compile(r"shared librar|symbol lookup|illegal instruction", re.IGNORECASE),
        "The engine's build does not fit this machine; build it again: ostinato engine build",
    ),
    (
        re.compile(r"invalid argument|error while handling argument|expected value for argument", re.IGNORECASE),
        "Correct the setting engine_args: the engine does not know one of them",
    ),
    (
        re.compile(r"failed to load model|invalid magic|corrupted|tensor .* (not found|out of bounds)", re.IGNORECASE),
        "Check the files, or fetch them again: ostinato show MODEL, ostinato pull MODEL",
    ),
)


def read_tail(log_file: Path, limit_bytes: int = TAIL_BYTES) -> list[str]:
    """The last whole lines of the log, without the engine's clock and level; empty if there is no log."""
    try:
        with log_file.open("rb") as file:
            size = file.seek(0, 2)
            start = max(0, size - limit_bytes)
            file.seek(start)
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    whole = lines[1:] if start else lines
    return [_PREFIX.sub("", line).rstrip() for line in whole if line.strip()]


def read_load_progress(log_file: Path) -> float | None:
    """The share of the model that the engine last said it had loaded, 0 to 1; None where it does not tell."""
    shares = [match[1] for line in read_tail(log_file, PROGRESS_TAIL_BYTES) if (match := _LOAD.fullmatch(line))]
    return min(1.0, float(shares[-1])) if shares else None


def telling_lines(lines: Sequence[str], limit: int = 6) -> list[str]:
    """The last lines that speak of a failure, or the last lines at all where none does; each once."""
    found = [line for line in lines if _TELLING.search(line)]
    return list(dict.fromkeys(found or lines))[-limit:]


def hint_for(lines: Sequence[str], log_file: Path) -> str:
    """The next thing to do, and where the whole log is."""
    text = "\n".join(lines)
    for pattern, hint in _HINTS:
        if pattern.search(text):
            return f"{hint}. The whole log: {log_file}"
    return f"The whole log: {log_file}"
