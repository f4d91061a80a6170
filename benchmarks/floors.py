"""What no division of work between CPU, link and GPU can beat: the floors beside measured times.

A decode step takes at least the GPU's own time with every expert on it, and at least what its cold experts' bytes take
over host memory and link together. A prefill takes at least the GPU's own time, and at least the best division of its
cold experts, by their numbers of rows, between a CPU that reads each weight once for up to 16 rows and a link that
copies each expert once (paper 3.3, 3.4). Nothing is counted for hand-over, for order or for layers that wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROWS_AT_ONCE = 16
"""Rows per expert at which the engine measures its CPU branch beside a single row."""
ROWS_PER_DECODING = 4
"""Rows that share the decoding of a weight."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Bytes of experts per second: by the CPU with one row and with 16, and over the link."""

    cpu_row: float
    cpu_rows: float
    link: float


def best_speeds(rows: Iterable[Mapping[str, Any]]) -> Speeds | None:
    """The highest speeds that any row's engine measured when it was loaded, over all its GPUs; None where none did."""
    found: list[tuple[float, float, float]] = []
    for row in rows:
        measured = [device for device in row.get("devices") or () if device["cpu_row_bytes_per_s"]]
        if measured:
            # One CPU serves all GPUs, and each GPU has a link of its own.
            cpu = [max(device[name] for device in measured) for name in ("cpu_row_bytes_per_s", "cpu_rows_bytes_per_s")]
            found.append((cpu[0], cpu[1], sum(device["link_bytes_per_s"] for device in measured)))
    return Speeds(*(max(values) for values in zip(*found, strict=True))) if found else None


def decode_floor_ms(gpu_ms: float | None, cold_bytes: float | None, speeds: Speeds | None) -> float | None:
    """Of a step that needs so many bytes of cold experts; None where something was not measured."""
    if gpu_ms is None or cold_bytes is None or speeds is None:
        return None
    return max(gpu_ms, 1000 * cold_bytes / (speeds.cpu_row + speeds.link))


def prefill_floor_ms(
    gpu_ms: float | None,
    counts: NDArray[np.integer[Any]],
    hot: NDArray[np.bool_],
    expert_bytes: Sequence[int],
    speeds: Speeds | None,
) -> float | None:
    """Of a pass whose tokens select experts `counts` (L, E) times; None where something was not measured."""
    if gpu_ms is None or speeds is None:
        return None
    rows = np.where(hot, 0, counts)
    sizes = np.broadcast_to(np.asarray(expert_bytes)[:, None], rows.shape)[rows > 0]
    return max(gpu_ms, 1000 * _best_division_s(rows[rows > 0], sizes, speeds))


def _best_division_s(rows: NDArray[np.integer[Any]], sizes: NDArray[np.integer[Any]], speeds: Speeds) -> float:
    """Seconds until CPU and link are done, where experts may be divided between them: the optimum of that problem."""
    arithmetic = np.ceil(rows / ROWS_PER_DECODING) * ROWS_PER_DECODING / ROWS_AT_ONCE / speeds.cpu_rows
    cpu_s = sizes * np.maximum(1 / speeds.cpu_row, arithmetic)
    link_s = sizes / speeds.link
    order = np.argsort(-cpu_s / link_s, kind="stable")
    # Uploads grow from the expert that costs the CPU most; both end together somewhere within one expert.
    uploaded = np.concatenate([[0.0], np.cumsum(link_s[order])])
    computed = np.concatenate([np.cumsum(cpu_s[order][::-1])[::-1], [0.0]])
    after = int(np.argmax(uploaded >= computed))
    if after == 0:
        return 0.0
    before = after - 1
    gap, change = computed[before] - uploaded[before], cpu_s[order[before]] + link_s[order[before]]
    return float(uploaded[before] + gap / change * link_s[order[before]])
