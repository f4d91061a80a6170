"""What the machine must bring: a C++ compiler, and a Python that can make environments. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from .steps import InstallError

MINIMUM_CMAKE = (3, 18)

_COMPILER_PACKAGES = {
    "Debian and Ubuntu": "sudo apt install build-essential",
    "Fedora": "sudo dnf install gcc-c++",
    "Arch": "sudo pacman -S base-devel",
    "macOS": "xcode-select --install",
}
_VENV_PACKAGES = {
    "Debian and Ubuntu": "sudo apt install python3-venv",
    "Fedora": "sudo dnf install python3",
    "Arch": "sudo pacman -S python",
}


def require_compiler() -> str:
    """Path of the C++ compiler CMake will find. Raises InstallError with the packages to install."""
    configured = os.environ.get("CXX", "").split()
    for name in [*configured[:1], "c++", "g++", "clang++"]:
        path = shutil.which(name)
        if path:
            return path
    raise InstallError(
        "The engine is compiled on this machine, and no C++ compiler (c++, g++ or clang++) was found.\n"
        + _advice(_COMPILER_PACKAGES)
    )


def no_environment_message(python: str) -> str:
    """What to do when `python` can make no virtual environment."""
    version = _version_of(python)
    note = f"\n(there, a Python {version} of its own package needs python{version}-venv)" if version else ""
    return f"{python} cannot make a virtual environment: venv or ensurepip is missing.\n{_advice(_VENV_PACKAGES)}{note}"


def _advice(packages: dict[str, str]) -> str:
    lines = [f"    {system + ':':<20} {command}" for system, command in packages.items()]
    return "Install it and run this again:\n" + "\n".join(lines)


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


def _version_of(python: str) -> str:
    if python == sys.executable:
        return f"{sys.version_info[0]}.{sys.version_info[1]}"
    return ""
