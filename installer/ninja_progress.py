"""What the compile's output says: how far it is, and what went wrong first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

NINJA_STATUS = "[%f/%t] "
"""Value of the environment variable of the same name under which `parse_line` understands ninja."""

_STATUS = re.compile(r"\[(\d+)/(\d+)\] (.*)")
_OBJECT = re.compile(r"Building \S+ object (\S+)")
_LINK = re.compile(r"Linking .*?(\S+)$")
_ERROR = re.compile(
    r"(?:fatal )?error[: ]|CMake Error|undefined reference|cannot find -l|No space left|Killed signal|internal compiler"
    r"|ninja: (?:error|fatal)|Segmentation fault|ld returned",
    re.IGNORECASE,
)
_NOISE = re.compile(r"-Werror|FAILED:|^\s*/\S+(?:cc|\+\+|clang|nvcc)\S* |ninja: build stopped")


@dataclass(frozen=True, slots=True)
class NinjaStep:
    """One finished edge of the build graph."""

    done: int
    total: int
    detail: str
    """The source file compiled or the file linked."""


def parse_line(line: str) -> NinjaStep | None:
    """The step a line of ninja's output reports; None for any other line."""
    match = _STATUS.match(line)
    if match is None:
        return None
    return NinjaStep(int(match[1]), int(match[2]), _subject(match[3].strip()))


def _subject(text: str) -> str:
    if match := _OBJECT.match(text):
        return match[1].rsplit("/", 1)[-1].removesuffix(".o").removesuffix(".obj")
    if match := _LINK.match(text):
        return match[1].rsplit("/", 1)[-1]
    return text


def first_errors(lines: Iterable[str], limit: int = 8) -> list[str]:
    """The first line that reports an error and the lines after it, `limit` in all; the last lines if none does."""
    kept = [line.rstrip() for line in lines if line.strip()]
    for at, line in enumerate(kept):
        if _ERROR.search(line) and not _NOISE.search(line):
            return kept[at : at + limit]
    return kept[-limit:]
