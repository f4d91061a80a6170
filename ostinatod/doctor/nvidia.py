"""What this machine says of its NVIDIA GPUs: the devices on the bus, and what the driver answers. Reads only."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

_VENDOR = "0x10de"
_DISPLAY_CLASS = "0x03"
_TIMEOUT_S = 20.0
_QUERY = "name,driver_version,memory.total,memory.free"
_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the driver tells of it."""

    name: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver's answer. `fault` is what it said instead of one."""

    gpus: tuple[Gpu, ...] = ()
    version: str | None = None
    cuda_version: str | None = None
    """The newest CUDA that it runs, such as "12.8"."""
    fault: str | None = None


def ask_driver() -> Driver | None:
    """What nvidia-smi says; None where it is not installed."""
    try:
        listed = _run("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits")
        if listed.returncode != 0:
            said = (listed.stdout + listed.stderr).strip().splitlines()
            return Driver(fault=said[0] if said else f"nvidia-smi ended with status {listed.returncode}")
        overview = _run("nvidia-smi")
    except FileNotFoundError:
        return None
    except (OSError, subprocess.TimeoutExpired) as error:
        return Driver(fault=str(error))
    rows = [[cell.strip() for cell in line.split(",")] for line in listed.stdout.splitlines() if line.strip()]
    gpus = tuple(Gpu(row[0], _mib(row[2]), _mib(row[3])) for row in rows if len(row) == 4)
    cuda = re.search(r"CUDA (?:UMD )?Version: *(\d+\.\d+)", overview.stdout)
    return Driver(gpus, rows[0][1] if rows and len(rows[0]) == 4 else None, cuda[1] if cuda else None)


def gpus_on_bus(devices: Path = Path("/sys/bus/pci/devices")) -> int:
    """NVIDIA display devices on the PCI bus, whether or not a driver knows them."""
    return sum(
        _read(device / "vendor") == _VENDOR and _read(device / "class").startswith(_DISPLAY_CLASS)
        for device in devices.glob("*")
    )


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
    )


def _mib(text: str) -> int:
    return int(text) * _MIB if text.isdigit() else 0


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
