"""Errors of planning, in a tree of their own so that this package imports nothing above it.

PlanError
├── CostModelError         measured costs break a condition of the cost model
├── CapacityError          a plan's inputs do not fit each other, or the memory
├── HeaderError            a GGUF header is malformed, or describes what the engine would refuse
└── ResidencyError         a residency set or its file is malformed
    └── ResidencyMismatch  a residency set was made for another model
"""

from __future__ import annotations

from pathlib import Path


class PlanError(Exception):
    """Base of every error this package raises on purpose."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class CostModelError(PlanError):
    """Measured costs break a condition of the cost model (paper, Proposition B.1)."""


class CapacityError(PlanError):
    """A plan's inputs do not fit each other, or the memory."""


class HeaderError(PlanError):
    """A GGUF header is malformed, or describes what the engine would refuse."""

    def __init__(self, path: Path, field: str, *, expected: str, found: str) -> None:
        super().__init__(f"{path}: {field}: expected {expected}, found {found}")
        self.path = path
        self.field = field
        self.expected = expected
        self.found = found


class ResidencyError(PlanError):
    """A residency set or its file is malformed."""

    def __init__(self, field: str, *, expected: str, found: str, path: Path | None = None) -> None:
        where = "" if path is None else f"{path}: "
        super().__init__(f"{where}{field}: expected {expected}, found {found}")
        self.field = field
        self.expected = expected
        self.found = found
        self.path = path

    def at(self, path: Path) -> ResidencyError:
        """The same error of a file."""
        return type(self)(self.field, expected=self.expected, found=self.found, path=path)


class ResidencyMismatch(ResidencyError):
    """A residency set was made for another model."""
