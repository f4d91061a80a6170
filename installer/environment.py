"""The virtual environment in the checkout's `.venv`, and the note that makes a second run quick.

Standard library only. An environment that somebody else made is used, but never replaced or removed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import prerequisites
from .packages import VENV
from .steps import InstallError, Steps

_IDENTIFY = "import platform, sys; print(sys.version_info[:2] >= (3, 10), platform.python_version(), sys.base_prefix)"


@dataclass(frozen=True)
class Environment:
    """`.venv` of one checkout."""

    checkout: Path

    @property
    def directory(self) -> Path:
        return self.checkout / ".venv"

    @property
    def scripts(self) -> Path:
        """Where its commands lie."""
        return self.directory / "bin"

    @property
    def python(self) -> Path:
        return self.scripts / "python"

    @property
    def stamp_file(self) -> Path:
        """Notes who made the environment and what was installed into it."""
        return self.directory / "ostinato-installer.json"

    def stamp(self) -> dict[str, Any]:
        """The note, or {}."""
        try:
            value = json.loads(self.stamp_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def is_ours(self) -> bool:
        """Whether this installer made it."""
        return self.stamp().get("made_here") is True

    def ensure(self, python: str | None, steps: Steps) -> None:
        """Makes the environment unless a working one is there, of interpreter `python` if that is given.

        Raises InstallError when none can be made, or when somebody else's stands in the way.
        """
        found = _identity(str(self.python))
        if found is not None and python is None:
            return
        python = python or sys.executable
        wanted = _identity(python)
        if wanted is None:
            raise InstallError(f"expected a Python 3.10 or newer, found {python}, which is older or does not run")
        if found == wanted:
            return
        if self.directory.exists():
            if not self.is_ours:
                raise InstallError(
                    f"{self.directory} exists, was not made by this installer, and has no working Python of 3.10 or "
                    "newer.\nRemove it and run this again."
                )
            shutil.rmtree(self.directory)
        with steps.step("Making the Python environment"):
            try:
                self._create(python, steps)
            except BaseException:
                shutil.rmtree(self.directory, ignore_errors=True)
                raise
            self._write_stamp({"made_here": True})

    def _create(self, python: str, steps: Steps) -> None:
        if prerequisites.can_run([python, "-c", "import venv, ensurepip"]):
            steps.run([python, "-m", "venv", self.directory])
            return
        if prerequisites.can_run([python, "-m", "virtualenv", "--version"]):
            steps.run([python, "-m", "virtualenv", self.directory])
            return
        if not prerequisites.can_run([python, "-m", "pip", "--version"]):
            raise InstallError(prerequisites.missing_message([VENV], python))
        # Into a folder of its own, which also a Python managed by the system's package manager permits.
        tool = self.checkout / "build" / "virtualenv"
        try:
            steps.run([python, "-m", "pip", "install", "--quiet", "--upgrade", "--target", tool, "virtualenv"])
            steps.run([python, "-m", "virtualenv", self.directory], {"PYTHONPATH": str(tool)})
        except InstallError as error:
            raise InstallError(f"{prerequisites.missing_message([VENV], python)}\n{error}") from error

    def ensure_package(self, extras: frozenset[str], steps: Steps) -> None:
        """Installs the checkout, editable, with at least `extras`, unless that was done for this pyproject.toml."""
        stamp = self.stamp()
        installed = frozenset(stamp.get("extras", []))
        key = self._key()
        if stamp.get("key") == key and extras <= installed:
            return
        wanted = sorted(extras | installed)
        target = f"{self.checkout}[{','.join(wanted)}]" if wanted else str(self.checkout)
        with steps.step("Installing Python packages"):
            steps.run([self.python, "-m", "pip", "install", "--quiet", "--editable", target])
            self._write_stamp({"key": key, "extras": wanted})

    def ensure_build_tools(self, steps: Steps) -> None:
        """Installs CMake and Ninja from PyPI where the machine has none."""
        missing = prerequisites.missing_build_tools(self.scripts)
        if missing:
            with steps.step(f"Installing {' and '.join(missing)}"):
                steps.run([self.python, "-m", "pip", "install", "--quiet", "--upgrade", *missing])

    def _key(self) -> str:
        project = (self.checkout / "pyproject.toml").read_bytes()
        identity = f"{_identity(str(self.python))} {self.checkout}"
        return hashlib.sha256(project + identity.encode()).hexdigest()

    def _write_stamp(self, changes: dict[str, Any]) -> None:
        partial = self.stamp_file.with_suffix(".partial")
        partial.write_text(json.dumps({**self.stamp(), **changes}, indent=2) + "\n", encoding="utf-8")
        partial.replace(self.stamp_file)


def _identity(python: str) -> str | None:
    """Version and home of an interpreter, the same for it and the environments made with it; None below 3.10."""
    try:
        text = subprocess.run([python, "-c", _IDENTIFY], capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return None
    recent, _, identity = text.partition(" ")
    return identity if recent == "True" else None
