"""Host memory: its size, how fast it is read, and how much of it may be pinned for transfers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import psutil

if sys.platform != "win32":
    import resource

ARRAY_BYTES = 128 << 20
"""Read by each thread; larger than the share of a last-level cache that one core has."""
REPEATS = 3
SHARE_OF_MEMORY = 0.25
"""Of what is available, at most this is taken to measure."""
PINNABLE_SHARE = 0.8
"""Pinned memory cannot be swapped out; the rest of the system keeps a fifth."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Host memory. `read_gbps` counts 1e9 bytes per second, None where it was not measured."""

    total_bytes: int
    cgroup_bytes: int | None
    """None for no limit."""
    lockable_bytes: int | None
    """RLIMIT_MEMLOCK; None for no limit."""
    pinnable_bytes: int
    """What may be pinned: by the limit, and so that the system keeps room."""
    read_gbps: float | None
    read_threads: int | None


def read_memory(cgroup_bytes: int | None, threads: int, *, measure: Callable[[int], float | None]) -> Memory:
    """The host's memory, read by `threads` threads to `measure` it."""
    total = psutil.virtual_memory().total
    lockable = _lockable_bytes()
    room = int(PINNABLE_SHARE * min(total, cgroup_bytes or total))
    speed = measure(threads)
    return Memory(
        total_bytes=total,
        cgroup_bytes=cgroup_bytes,
        lockable_bytes=lockable,
        pinnable_bytes=room if lockable is None else min(room, lockable),
        read_gbps=speed,
        read_threads=None if speed is None else threads,
    )


def measure_read_gbps(
    threads: int,
    *,
    array_bytes: int = ARRAY_BYTES,
    repeats: int = REPEATS,
    clock: Callable[[], float] = time.perf_counter,
) -> float | None:
    """Reading bandwidth of `threads` threads together, the best of `repeats`; None where too little memory is free.

    Each thread takes the maximum of its own bytes, which numpy does with vector instructions and without the
    interpreter lock.
    """
    if threads * array_bytes > SHARE_OF_MEMORY * psutil.virtual_memory().available:
        return None
    with ThreadPoolExecutor(threads) as pool:
        # Written by the thread that reads it, so that the pages are on its own NUMA node.
        arrays = list(pool.map(lambda _: np.ones(array_bytes, np.uint8), range(threads)))
        best = 0.0
        for _ in range(repeats):
            started = clock()
            list(pool.map(np.max, arrays))
            best = max(best, threads * array_bytes / max(clock() - started, 1e-9))
    return best / 1e9


def _lockable_bytes() -> int | None:
    if sys.platform == "win32":
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if limit == resource.RLIM_INFINITY else limit
