"""What the machine must bring: a C++ compiler, and a Python that can make environments. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from .packages import COMPILER, VENV, advice
from .steps import InstallError

MINIMUM_CMAKE = (3, 18)

_REASONS = {
    COMPILER: "no C++ compiler (c++, g++ or clang++), which the engine is compiled with on this machine",
    VENV: "{python} cannot make a virtual environment: venv or ensurepip is missing",
}


def require(python: str, *, makes_environment: bool) -> None:
    """Raises InstallError naming all that is missing at once, and the one command that installs it.

    python             the interpreter that the environment is made with
    makes_environment  whether one has to be made
    """
    missing = [COMPILER] if find_compiler() is None else []
    if makes_environment and not can_make_environment(python):
        missing.append(VENV)
    if missing:
        raise InstallError(missing_message(missing, python))


def find_compiler() -> str | None:
    """Path of the C++ compiler that CMake will find."""
    configured = os.environ.get("CXX", "").split()
    found = (shutil.which(name) for name in [*configured[:1], "c++", "g++", "clang++"])
    return next((path for path in found if path), None)


def can_make_environment(python: str) -> bool:
    """Whether `python` has venv, virtualenv, or pip to fetch virtualenv with."""
    return (
        can_run([python, "-c", "import venv, ensurepip"])
        or can_run([python, "-m", "virtualenv", "--version"])
        or can_run([python, "-m", "pip", "--version"])
    )


def missing_message(needs: list[str], python: str) -> str:
    """What is missing, and how to install it."""
    reasons = "\n".join(f"Missing: {_REASONS[need].format(python=python)}." for need in needs)
    return f"{reasons}\nInstall it and run this again:\n{advice(needs, _foreign_version(python))}"


def can_run(command: list[str]) -> bool:
    """Whether `command` runs and succeeds."""
    try:
        return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        return False


def missing_build_tools(scripts: Path) -> list[str]:
    """PyPI packages for the build tools that neither PATH nor the environment's `scripts` have."""
    missing = []
    if not any(_is_recent_cmake(path) for path in _places("cmake", scripts)):
        missing.append("cmake")
    if not any(can_run([path, "--version"]) for name in ("ninja", "ninja-build") for path in _places(name, scripts)):
        missing.append("ninja")
    return missing


def _places(name: str, scripts: Path) -> list[str]:
    return [path for path in (shutil.which(name), shutil.which(name, path=str(scripts))) if path]


def _is_recent_cmake(path: str) -> bool:
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return False
    match = re.search(r"version (\d+)\.(\d+)", text)
    return match is not None and (int(match[1]), int(match[2])) >= MINIMUM_CMAKE


def _foreign_version(python: str) -> str:
    """ "3.12" for an interpreter that is not the system's python3, whose packages carry the version in their name."""
    system = shutil.which("python3", path="/usr/bin:/bin")
    if system and os.path.realpath(python) == os.path.realpath(system):
        return ""
    match = re.fullmatch(r"python(3\.\d+)", os.path.basename(os.path.realpath(python)))
    return match[1] if match else ""
