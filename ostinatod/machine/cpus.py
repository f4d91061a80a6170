"""Processors: cores that may be used, NUMA nodes, instruction sets, and the limits of this process's cgroup (Linux)."""

from __future__ import annotations

import math
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

_INSTRUCTION_SETS = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "i8mm", "sve", "sve2", "bf16"),
)
"""Those that the engine has kernels for, as the kernel names them."""
_UNLIMITED = 1 << 60
"""A cgroup v1 limit that means none is a number near 2^63."""


@dataclass(frozen=True, slots=True)
class NumaNode:
    """Logical processors and memory of one node."""

    node: int
    cpus: tuple[int, ...]
    total_bytes: int | None


@dataclass(frozen=True, slots=True)
class Cpus:
    """None where the system does not tell."""

    name: str
    physical_cores: int | None
    logical_cores: int
    allowed_cores: int
    """Logical processors that this process may run on."""
    cgroup_cores: float | None
    """Cores' worth of time that the cgroup grants; None for no limit."""
    numa_nodes: tuple[NumaNode, ...]
    instruction_sets: tuple[str, ...]

    @property
    def usable_cores(self) -> int:
        """Cores that threads can be given: physical, allowed and granted, at least 1."""
        limits = [self.allowed_cores, self.physical_cores or self.logical_cores]
        if self.cgroup_cores is not None:
            limits.append(math.ceil(self.cgroup_cores))
        return max(1, min(limits))


def read_cpus(root: Path = Path("/")) -> Cpus:
    """The processors of this machine; `root` holds the system's own folders."""
    cpuinfo = _read(root / "proc/cpuinfo")
    flags = set(_first(cpuinfo, r"^(?:flags|Features)\s*:\s*(.*)$").split())
    logical = psutil.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    return Cpus(
        name=_first(cpuinfo, r"^model name\s*:\s*(.*)$") or platform.processor() or platform.machine(),
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=logical,
        allowed_cores=allowed,
        cgroup_cores=_cgroup_cores(root),
        numa_nodes=_numa_nodes(root),
        instruction_sets=tuple(name for name in _INSTRUCTION_SETS if name in flags),
    )


def cgroup_memory_bytes(root: Path = Path("/")) -> int | None:
    """Memory that the cgroup grants; None for no limit."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        for folder in _cgroup_folders(root):
            text = _read(folder / name).strip()
            if text.isdigit() and int(text) < _UNLIMITED:
                return int(text)
    return None


def cpu_list(text: str) -> tuple[int, ...]:
    """The numbers in the kernel's notation, such as "0-3,8"."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)


def _cgroup_cores(root: Path) -> float | None:
    for folder in _cgroup_folders(root):
        quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            return int(quota) / int(period)
        quota, period = (_read(folder / f"cpu/cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(period):
            return int(quota) / int(period)
    return None


def _cgroup_folders(root: Path) -> list[Path]:
    """The own cgroup and those above it, the own one first; and the mount itself, which a container sees as its own."""
    mount = root / "sys/fs/cgroup"
    own = _first(_read(root / "proc/self/cgroup"), r"^0::/(.*)$")
    folders, current = [mount], mount
    for part in Path(own).parts:
        current = current / part
        folders.insert(0, current)
    return folders


def _numa_nodes(root: Path) -> tuple[NumaNode, ...]:
    nodes = []
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        kib = _first(_read(folder / "meminfo"), r"MemTotal:\s*(\d+) kB")
        nodes.append(
            NumaNode(int(folder.name[4:]), cpu_list(_read(folder / "cpulist")), int(kib) * 1024 if kib else None)
        )
    return tuple(sorted(nodes, key=lambda node: node.node))


def _first(text: str, pattern: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1].strip() if match else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
