"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "skipped", "warning", "problem"]
"""skipped: does not apply here; warning: it works, but worse than it could; problem: something will fail."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check."""

    check: str
    """Its name, which is a heading in docs/troubleshooting.md."""
    level: Level
    found: str
    """One sentence: what was expected where it differs, and what is there."""
    hint: str | None = None
    """The next command or step; given for every warning and problem."""


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check, "ok", found)


def skipped(check: str, found: str) -> Finding:
    """The check does not apply to this machine, or not now."""
    return Finding(check, "skipped", found)


def warning(check: str, found: str, hint: str) -> Finding:
    """It works, but worse than it could."""
    return Finding(check, "warning", found, hint)


def problem(check: str, found: str, hint: str) -> Finding:
    """Something will fail."""
    return Finding(check, "problem", found, hint)
