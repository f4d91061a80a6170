"""The profile of this machine, measured once and kept in a file until hardware, limits or driver change."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ostinatod.machine.cpus import Cpus, cgroup_memory_bytes, read_cpus
from ostinatod.machine.gpus import Gpu, list_gpus
from ostinatod.machine.memory import Memory, measure_read_gbps, read_memory
from ostinatod.machine.transfers import Transfers, measure_transfers

FORMAT = 2
"""Of the file; another number is measured anew."""


@dataclass(frozen=True, slots=True)
class MachineProfile:
    """Hardware and what it was measured to do."""

    fingerprint: str
    measured_at: float
    """Unix seconds."""
    gpus: tuple[Gpu, ...]
    cpus: Cpus
    memory: Memory
    transfers_reason: str | None
    """Why transfers to some GPU were not measured; None where they were, or there is no GPU."""

    def as_json(self) -> dict[str, Any]:
        """As it is written to the file. Values that were not measured are null."""
        told = {"format": FORMAT, **asdict(self), "usable_cores": self.cpus.usable_cores}
        # Through JSON once, so that it is the same whether it was measured or read.
        kept: dict[str, Any] = json.loads(json.dumps(told))
        return kept


@dataclass(frozen=True, slots=True)
class Probes:
    """How the machine is looked at; tests give it their own."""

    gpus: Callable[[], tuple[Gpu, ...]] = list_gpus
    cpus: Callable[[], Cpus] = read_cpus
    cgroup_bytes: Callable[[], int | None] = cgroup_memory_bytes
    read_gbps: Callable[[int], float | None] = measure_read_gbps
    transfers: Callable[[int], tuple[Mapping[str, Transfers], str | None]] = measure_transfers


def machine_profile(file: Path, *, refresh: bool = False, probes: Probes | None = None) -> dict[str, Any]:
    """The profile as JSON, from `file` where that still describes this machine, else measured and written there.

    Measuring takes about a second, and a few more for each GPU. A file that cannot be written is no reason to fail: it
    is measured again next time.
    """
    look = probes or Probes()
    gpus, cpus, cgroup_bytes = look.gpus(), look.cpus(), look.cgroup_bytes()
    fingerprint = hardware_fingerprint(gpus, cpus, cgroup_bytes)
    if not refresh and (kept := _kept(file, fingerprint)) is not None:
        return kept
    memory = read_memory(cgroup_bytes, cpus.usable_cores, measure=look.read_gbps)
    transfers, reason = look.transfers(cpus.usable_cores) if gpus else ({}, None)
    gpus = tuple(replace(gpu, **asdict(transfers.get(gpu.uuid, Transfers()))) for gpu in gpus)
    profile = MachineProfile(fingerprint, time.time(), gpus, cpus, memory, reason).as_json()
    with contextlib.suppress(OSError):
        _write(file, profile)
    return profile


def machine_fingerprint() -> str:
    """The fingerprint of this machine as it is now; measures nothing."""
    look = Probes()
    return hardware_fingerprint(look.gpus(), look.cpus(), look.cgroup_bytes())


def hardware_fingerprint(gpus: tuple[Gpu, ...], cpus: Cpus, cgroup_bytes: int | None) -> str:
    """Hex SHA-256 over what would change the measurements: GPUs and driver, processors, limits. Not what is free, nor
    how much memory a node has: virtual machines are given more of it while they run.
    """
    nodes = tuple(replace(node, total_bytes=None) for node in cpus.numa_nodes)
    identity = {
        "gpus": [[gpu.uuid, gpu.driver, gpu.total_bytes, gpu.link.max_generation, gpu.link.max_width] for gpu in gpus],
        "cpus": asdict(replace(cpus, numa_nodes=nodes)),
        "cgroup_bytes": cgroup_bytes,
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _kept(file: Path, fingerprint: str) -> dict[str, Any] | None:
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_ours = isinstance(kept, dict) and kept.get("format") == FORMAT and kept.get("fingerprint") == fingerprint
    return kept if is_ours else None


def _write(file: Path, profile: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as output:
            json.dump(profile, output, indent=1)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink()
        raise
