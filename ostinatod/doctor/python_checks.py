"""Checks of the interpreter, the virtual environment and the packages in it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

from ostinatod.doctor.findings import Finding, ok, problem, warning

MINIMUM_PYTHON = (3, 10)

_INSTALL = "In the checkout: python3 installer"


def check_python(version: Sequence[int], executable: str) -> Finding:
    """The interpreter is new enough."""
    number = ".".join(str(part) for part in version[:3])
    if tuple(version[:2]) < MINIMUM_PYTHON:
        return problem(
            "python",
            f"expected Python 3.10 or newer, found {number} ({executable})",
            "Install a newer Python and run the installer with it: python3.12 installer",
        )
    return ok("python", f"Python {number} ({executable})")


def check_environment(prefix: Path, base_prefix: Path, search_path: str | None = None) -> Finding:
    """Ostinato runs in an environment of its own, and `ostinato` on PATH is the one of this environment."""
    if prefix == base_prefix:
        return warning("environment", f"expected a virtual environment, found the interpreter of {prefix}", _INSTALL)
    own = prefix / "bin" / "ostinato"
    found = shutil.which("ostinato", path=search_path)
    if found and own.exists() and not os.path.samefile(found, own):
        return warning(
            "environment",
            f"`ostinato` on PATH is {found}, which is not the one of {prefix}",
            f"Put this one first: ln -sf {own} ~/.local/bin/ostinato",
        )
    return ok("environment", f"{prefix}")


def check_packages(distribution: str = "ostinato") -> Finding:
    """Every package that this version needs is installed, in a version that it accepts."""
    try:
        stated = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return problem("packages", f"{distribution} is not installed in this environment", _INSTALL)
    wrong = [fault for text in stated if (fault := _fault(Requirement(text)))]
    if wrong:
        return problem("packages", f"packages do not fit: {'; '.join(wrong)}", _INSTALL)
    return ok("packages", f"{len(stated)} requirements are met")


def _fault(wanted: Requirement) -> str | None:
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
        return None
    try:
        installed = importlib.metadata.version(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{wanted.name} is missing"
    if not wanted.specifier.contains(installed, prereleases=True):
        return f"{wanted.name} {installed} is not {wanted.specifier}"
    return None
