"""What a build reports while it works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """One report. The steps are "download", "unpack", "patch", "configure", "compile", "install" and "bindings"."""

    step: str
    done: int
    total: int
    """Bytes in "download", build edges in "compile", else 1; 0 when unknown. A step ends with done == total."""
    detail: str
    """What is being worked on, for people."""


Report = Callable[[BuildProgress], None]
