"""How many compilers may run at once on this machine without making it swap."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

_GIB = 1 << 30
_GIB_PER_JOB = 1.5
"""Peak of one compiler process: llama.cpp's unity builds and CUDA templates stay below it."""


def default_jobs(cgroups: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """Jobs for this process: its cores and the memory that is free, both within the limits of its control groups."""
    groups = _own_groups(cgroups, membership)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = min([cores, *(limit for group in groups if (limit := _core_limit(group)) is not None)])
    memory = psutil.virtual_memory().available
    memory = min([memory, *(limit for group in groups if (limit := _memory_limit(group)) is not None)])
    return jobs_for(cores, memory)


def jobs_for(cores: int, memory_bytes: int) -> int:
    """One job per core and per 1.5 GiB of memory, whichever is fewer; at least one."""
    return max(1, min(cores, int(memory_bytes / _GIB // _GIB_PER_JOB)))


def _own_groups(cgroups: Path, membership: Path) -> list[Path]:
    """The directories of this process's control groups (version 2) up to the root, limits of parents bind too."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    for line in lines:
        if line.startswith("0::"):
            group = cgroups / line[3:].lstrip("/")
            return [group, *(parent for parent in group.parents if parent.is_relative_to(cgroups))]
    return [cgroups]


def _memory_limit(group: Path) -> int | None:
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        text = _read(group / name)
        if text.isdigit():
            return int(text)
    return None


def _core_limit(group: Path) -> int | None:
    quota, _, period = _read(group / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        return max(1, int(quota) // int(period))
    return None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
