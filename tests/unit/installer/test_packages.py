"""Which command a newcomer is told to type, by what the machine says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinatod.installer import packages
from ostinatod.installer.packages import COMPILER, FAMILIES, VENV, advice, find_family

README = Path(__file__).parents[3] / "installer" / "README.md"

# The lines of each distribution's /etc/os-release that decide, quoted as each quotes them.
OS_RELEASE = {
    "debian 12": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nNAME="Debian GNU/Linux"\nVERSION_ID="12"\nID=debian\n',
    "debian testing": 'PRETTY_NAME="Debian GNU/Linux forky/sid"\nVERSION_CODENAME=forky\nID=debian\n',
    "ubuntu 24.04": 'NAME="Ubuntu"\nVERSION_ID="24.04"\nID=ubuntu\nID_LIKE=debian\nUBUNTU_CODENAME=noble\n',
    "mint": 'NAME="Linux Mint"\nVERSION_ID="22"\nID=linuxmint\nID_LIKE="ubuntu debian"\n',
    "fedora 42": 'NAME="Fedora Linux"\nVERSION="42 (Workstation Edition)"\nID=fedora\nVERSION_ID=42\n',
    "rocky 9": 'NAME="Rocky Linux"\nVERSION_ID="9.4"\nID="rocky"\nID_LIKE="rhel centos fedora"\n',
    "amazon 2023": 'NAME="Amazon Linux"\nVERSION="2023"\nID="amzn"\nID_LIKE="fedora"\nVERSION_ID="2023"\n',
    "rhel 10": 'NAME="Red Hat Enterprise Linux"\nVERSION_ID="10.0"\nID="rhel"\nID_LIKE="centos fedora"\n',
    "arch": 'NAME="Arch Linux"\nPRETTY_NAME="Arch Linux"\nID=arch\nBUILD_ID=rolling\nANSI_COLOR="38;2;23;147;209"\n',
    "manjaro": 'NAME="Manjaro Linux"\nID=manjaro\nID_LIKE=arch\nBUILD_ID=rolling\n',
    "tumbleweed": 'NAME="openSUSE Tumbleweed"\nID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\n',
    "leap 15": 'NAME="openSUSE Leap"\nVERSION="15.6"\nID="opensuse-leap"\nID_LIKE="suse opensuse"\nVERSION_ID="15.6"\n',
    "leap 16": 'NAME="openSUSE Leap"\nID="opensuse-leap"\nID_LIKE="suse opensuse"\nVERSION_ID="16.0"\n',
    "alpine": 'NAME="Alpine Linux"\nID=alpine\n# a comment\nVERSION_ID=3.17.3\nBROKEN="\n',
}


@pytest.fixture(autouse=True)
def not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages.os, "geteuid", lambda: 1000)


def family_of(text: str, directory: Path) -> packages.Family | None:
    file = directory / "os-release"
    file.write_text(text)
    return find_family((file,))


@pytest.mark.parametrize(
    ("system", "command"),
    [
        ("debian 12", "sudo apt install build-essential python3-venv"),
        ("debian testing", "sudo apt install build-essential python3-venv"),
        ("ubuntu 24.04", "sudo apt install build-essential python3-venv"),
        ("mint", "sudo apt install build-essential python3-venv"),
        ("fedora 42", "sudo dnf install gcc-c++ python3"),
        ("rocky 9", "sudo dnf install gcc-c++ python3.12"),
        ("amazon 2023", "sudo dnf install gcc-c++ python3.12"),
        ("rhel 10", "sudo dnf install gcc-c++ python3"),
        ("arch", "sudo pacman -S --needed base-devel python"),
        ("manjaro", "sudo pacman -S --needed base-devel python"),
        ("tumbleweed", "sudo zypper install gcc-c++ python3"),
        ("leap 15", "sudo zypper install gcc-c++ python311"),
        ("leap 16", "sudo zypper install gcc-c++ python3"),
        ("alpine", "sudo apk add build-base linux-headers python3"),
    ],
)
def test_each_distribution_is_told_its_own_command(
    system: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages.shutil, "which", lambda name: f"/usr/bin/{name}")
    family = family_of(OS_RELEASE[system], tmp_path)
    assert advice([COMPILER, VENV], family=family, system="Linux").strip() == command


def test_an_unknown_system_is_told_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert family_of("ID=plan9\nID_LIKE=unix\n", tmp_path) is None
    assert find_family((tmp_path / "missing",)) is None
    monkeypatch.setattr(packages, "find_family", lambda: None)
    lines = advice([COMPILER], system="Linux").splitlines()
    assert [line.split(":")[0].strip() for line in lines] == [
        "Debian and Ubuntu",
        "Fedora",
        "Arch",
        "openSUSE",
        "Alpine",
    ]


def test_an_interpreter_beside_the_systems_needs_the_package_of_its_version(tmp_path: Path) -> None:
    family = family_of(OS_RELEASE["debian 12"], tmp_path)
    assert advice([VENV], "3.12", family, "Linux").strip().endswith("apt install python3.12-venv")
    family = family_of(OS_RELEASE["arch"], tmp_path)
    assert advice([VENV], "3.12", family, "Linux").strip().endswith("-S --needed python")


def test_a_mac_is_told_of_its_own_tools() -> None:
    assert "xcode-select --install" in advice([COMPILER], system="Darwin")


@pytest.mark.parametrize(
    ("user", "there", "prefix"),
    [(0, {"sudo"}, ""), (1000, {"sudo", "doas"}, "sudo "), (1000, {"doas"}, "doas "), (1000, set(), "sudo ")],
)
def test_root_is_reached_in_the_machines_own_way(
    user: int, there: set[str], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages.os, "geteuid", lambda: user)
    monkeypatch.setattr(packages.shutil, "which", lambda name: name if name in there else None)
    assert packages.root_prefix() == prefix


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.title)
def test_the_readme_gives_the_same_commands(family: packages.Family) -> None:
    assert f"`{family.command([COMPILER, VENV])}`" in README.read_text(encoding="utf-8")
