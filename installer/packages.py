"""Which command of this machine's package manager installs what is missing. Runs nothing. Standard library only."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

COMPILER = "compiler"
VENV = "venv"

_OS_RELEASE = (Path("/etc/os-release"), Path("/usr/lib/os-release"))


@dataclass(frozen=True)
class Older:
    """Releases whose python3 is older than 3.10, and which have a newer one under another name."""

    ids: frozenset[str]
    """Words of ID in os-release."""
    last: int
    """The last such release, by the number before the point in VERSION_ID."""
    python: str


@dataclass(frozen=True)
class Family:
    """Distributions that share a package manager."""

    title: str
    ids: frozenset[str]
    """Words of ID and ID_LIKE in os-release."""
    install: str
    packages: Mapping[str, str]
    older: tuple[Older, ...] = ()

    def command(self, needs: Iterable[str], python: str = "", prefix: str = "sudo ") -> str:
        """What to type for `needs`; `python` is the version of an interpreter that is not the system's own."""
        names = [name for need in needs for name in self.packages[need].split()]
        if python and self.title == _DEBIAN.title:
            names = [f"python{python}-venv" if name == "python3-venv" else name for name in names]
        return f"{prefix}{self.install} {' '.join(dict.fromkeys(names))}"


_DEBIAN = Family(
    "Debian and Ubuntu",
    frozenset({"debian", "ubuntu"}),
    "apt install",
    {COMPILER: "build-essential", VENV: "python3-venv"},
)
FAMILIES = (
    _DEBIAN,
    Family(
        "Fedora",
        frozenset({"fedora", "rhel", "centos"}),
        "dnf install",
        {COMPILER: "gcc-c++", VENV: "python3"},
        (
            Older(frozenset({"rhel", "rocky", "almalinux", "centos", "ol"}), 9, "python3.12"),
            Older(frozenset({"amzn"}), 2023, "python3.12"),
        ),
    ),
    Family("Arch", frozenset({"arch"}), "pacman -S --needed", {COMPILER: "base-devel", VENV: "python"}),
    Family(
        "openSUSE",
        frozenset({"suse", "opensuse", "sles"}),
        "zypper install",
        {COMPILER: "gcc-c++", VENV: "python3"},
        (Older(frozenset({"opensuse-leap", "sles", "sled"}), 15, "python311"),),
    ),
    Family("Alpine", frozenset({"alpine"}), "apk add", {COMPILER: "build-base linux-headers", VENV: "python3"}),
)
"""The package managers known here. Names are those of current releases."""

_MACOS = {COMPILER: "xcode-select --install", VENV: "a Python from python.org or Homebrew"}


def find_family(os_release: Sequence[Path] = _OS_RELEASE) -> Family | None:
    """The family of this distribution, by its own name first and then by what it says it is like; None if unknown."""
    fields = _read_os_release(os_release)
    system = fields.get("ID", "").lower()
    for word in [system, *fields.get("ID_LIKE", "").lower().split()]:
        for family in FAMILIES:
            if word in family.ids:
                return _of_release(family, system, fields.get("VERSION_ID", ""))
    return None


def _of_release(family: Family, system: str, version: str) -> Family:
    """The family with the package names of one of its releases."""
    number = version.partition(".")[0]
    for older in family.older:
        if system in older.ids and number.isdigit() and int(number) <= older.last:
            return replace(family, packages={**family.packages, VENV: older.python})
    return family


def advice(needs: Sequence[str], python: str = "", family: Family | None = None, system: str = "") -> str:
    """The command to type for `needs`, or where the system is not known, the commands of every one that is."""
    if (system or platform.system()) == "Darwin":
        return "\n".join(f"    {_MACOS[need]}" for need in needs)
    known = family or find_family()
    if known is not None:
        return f"    {known.command(needs, python, root_prefix())}"
    return "\n".join(f"    {each.title + ':':<20} {each.command(needs, python)}" for each in FAMILIES)


def root_prefix() -> str:
    """What stands before a command that needs root: nothing for root, else sudo or doas, whichever is there."""
    if os.geteuid() == 0:
        return ""
    if shutil.which("sudo") is None and shutil.which("doas"):
        return "doas "
    return "sudo "


def _read_os_release(files: Sequence[Path]) -> dict[str, str]:
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        fields = {}
        for line in lines:
            name, assigned, value = line.strip().partition("=")
            if assigned and not name.startswith("#"):
                fields[name] = _unquoted(value)
        return fields
    return {}


def _unquoted(value: str) -> str:
    try:
        return "".join(shlex.split(value))
    except ValueError:
        return value
