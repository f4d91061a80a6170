"""Waits after tool outputs by their length (issue of short prefills): the settings, and the table that is printed.

Stock settings have as many whole layers' experts on the GPU as fit what hot experts and staging buffer may take.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from floors import Speeds, best_speeds, decode_floor_ms, prefill_floor_ms
from numpy.typing import NDArray
from placements import cold_bytes, stock_layers
from text_table import shown, text_table

from ostinatod.bench.memory import memory_for, pool_limit
from ostinatod.bench.settings import Setting
from ostinatod.bindings import NEVER
from ostinatod.profiles.experts import ModelExperts

DEPTHS = (8192, 32768)
LENGTHS = (32, 64, 128, 185, 249, 343, 511, 512, 768, 1024, 2048, 4096)
SMALL_BATCH, LARGE_BATCH = 32, 512
"""Values of GGML_OP_OFFLOAD_MIN_BATCH, and the paper's threshold."""
MARGIN_BYTES = 1 << 30
"""What the engine leaves free on a GPU when it takes memory for experts, for all that computing takes later."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A row to measure; None where the common values hold."""

    setting: Setting
    hot: float | None = None
    lengths: tuple[int, ...] | None = None
    repeats: int | None = None

    def own(self) -> dict[str, Any]:
        """What differs from the common job."""
        values = {"lengths": self.lengths, "repeats": self.repeats}
        return {name: value for name, value in values.items() if value is not None}


def planned_rows(
    experts: ModelExperts, share: float, lengths: Sequence[int], threads: int, pin_bytes: int, *, on_gpu: bool
) -> list[Planned]:
    """The rows, the most telling ones first. Slow ones are timed once, without a pass before.

    share      of all experts that is hot
    pin_bytes  see `bindings.PlacementOptions`

    From LARGE_BATCH tokens on both thresholds run the same code, so the larger one is timed up to it. The first row
    counts routes, so it has the engine's products of experts (`expert-tiles.cuh`); on a GPU the second
    one has stock's own.
    """
    hot_bytes = share * experts.places().total_bytes
    on_cpu = stock_layers(experts, memory_for(hot_bytes)).get("first", ()) if on_gpu else ()
    many = f"{len(on_cpu)}/{len(experts.layers)}"
    up_to = tuple(length for length in lengths if length <= LARGE_BATCH)

    def stock(mode: Any, batch: int, **own: Any) -> Planned:
        words = "page-locked" if mode == "none" else "memory-mapped"
        name = f"stock {many} {words}, from {batch}"
        return Planned(
            Setting(name, "stock", load_mode=mode, min_batch=batch, cpu_layer_ids=on_cpu, threads=threads), **own
        )

    def hot(name: str, **options: Any) -> Planned:
        own = Setting(
            f"{share:.0%} hot, {name}",
            "ostinato",
            pool_bytes=pool_limit(memory_for(hot_bytes)),
            pin_bytes=pin_bytes,
            threads=threads,
            **options,
        )
        return Planned(own, share)

    return [
        Planned(Setting("everything on the GPU", "stock", threads=threads)),
        *([Planned(Setting("everything on the GPU, stock's products", "stock", threads=threads))] if on_gpu else []),
        stock("none", SMALL_BATCH),
        hot("choice per expert"),
        hot("the same without prefetch", prefetch_us=-1),
        hot("split only", upload_tokens=NEVER),
        hot("upload only", upload_tokens=SMALL_BATCH, upload_all_tokens=SMALL_BATCH),
        hot("single threshold", upload_tokens=LARGE_BATCH, upload_all_tokens=LARGE_BATCH),
        stock("none", LARGE_BATCH, lengths=up_to, repeats=0),
        stock("mmap", LARGE_BATCH, lengths=up_to, repeats=0),
        stock("mmap", SMALL_BATCH, repeats=0),
    ]


def add_floors(
    rows: Sequence[dict[str, Any]], experts: ModelExperts, counted: Mapping[str, NDArray[Any]], hot: Mapping[float, Any]
) -> None:
    """Put the floors of this run into every row: `floor_ms` of a step, and `prefill_floor_ms` by length.

    rows     of `row_runner`; the first one without layers on the CPU has the GPU's own times
    counted  routes of every pass of the first row
    hot      (L, E) the hot experts of each share
    """
    speeds = best_speeds(rows)
    gpu = next((row for row in rows if is_all_on_gpu(row) and "depths" in row), None)
    for row in rows:
        share = row.get("hot")
        for depth, found in row.get("depths", {}).items():
            of_gpu = gpu["depths"].get(depth) if gpu else None
            gpu_ms = of_gpu["decode_ms"] if of_gpu else None
            found["floor_ms"] = decode_floor_ms(gpu_ms, cold_bytes_of(row, found, experts), speeds)
            if share is None or not of_gpu:
                continue
            found["prefill_floor_ms"] = {
                length: _prefill_floor(of_gpu["prefill_ms"].get(length), passes, hot[share], experts, speeds)
                for length in found.get("prefill_ms", {})
                if (passes := counted.get(f"prefill/{depth}/{length}")) is not None
            }


def is_all_on_gpu(row: Mapping[str, Any]) -> bool:
    """Whether stock has no layer on the CPU in this row."""
    setting = row["setting"]
    return setting["kind"] == "stock" and not setting["cpu_layers"] and not setting["cpu_layer_ids"]


def cold_bytes_of(row: Mapping[str, Any], found: Mapping[str, Any], experts: ModelExperts) -> float:
    """Bytes of experts in host memory that a decoded token needs: all that it selects in stock layers on the CPU."""
    setting = row["setting"]
    if setting["kind"] == "stock":
        return cold_bytes(experts, setting["cpu_layer_ids"] or experts.layers[: setting["cpu_layers"]])
    sizes = dict(zip(experts.layers, experts.expert_bytes, strict=True))
    return float(found["per_step"].get("cold_routes", 0.0) * sum(sizes.values()) / len(sizes))


def tables(results: Sequence[Mapping[str, Any]], experts: ModelExperts) -> Iterator[str]:
    """A table for each depth, then memory, as text."""
    rows = [row for row in results if row.get("depths")]
    for depth in sorted({depth for row in rows for depth in row["depths"]}, key=int):
        yield f"\nmilliseconds behind a context of {int(depth):,} tokens, by new tokens\n{_times(rows, depth)}"
        if any(row["depths"].get(depth, {}).get("prefill_sides", {}) and row.get("hot") for row in rows):
            yield f"\nwhere cold routes went behind {int(depth):,} tokens\n{_sides(rows, depth)}"
    yield f"\nGPU memory, GB\n{_memory(rows)}"
    yield from (f"{row['setting']['name']}: {row['failed']}" for row in results if "failed" in row)


def _times(rows: Sequence[Mapping[str, Any]], depth: str) -> str:
    lengths = sorted({int(n) for row in rows for n in row["depths"].get(depth, {}).get("prefill_ms", {})})
    stock = [row for row in rows if row["setting"]["kind"] == "stock" and not is_all_on_gpu(row)]
    best = {n: min((ms for row in stock if (ms := _at(row, depth, n)) is not None), default=None) for n in lengths}
    lines = []
    for row in rows:
        found = row["depths"].get(depth)
        if not found:
            continue
        lines.append(
            [row["setting"]["name"], f"{found['decode_ms']:.2f}", *(shown(_at(row, depth, n), ".0f") for n in lengths)]
        )
        if row.get("hot") is None:
            continue
        pairs = [(best[n], _at(row, depth, n)) for n in lengths]
        lines.append(["  best stock / this", "", *(f"{a / b:.1f}x" if a and b else "-" for a, b in pairs)])
        floors = found.get("prefill_floor_ms", {})
        lines.append(["  floor", shown(found["floor_ms"]), *(shown(floors.get(str(n)), ".0f") for n in lengths)])
    return text_table(["", "step", *map(str, lengths)], lines)


def _sides(rows: Sequence[Mapping[str, Any]], depth: str) -> str:
    """Routes left to the CPU per new token, and megabytes uploaded, by length."""
    placed = [row for row in rows if row.get("hot") is not None and row["depths"].get(depth, {}).get("prefill_sides")]
    lengths = sorted({int(n) for row in placed for n in row["depths"][depth]["prefill_sides"]})
    lines = []
    for row in placed:
        sides = row["depths"][depth]["prefill_sides"]

        def total(n: int, name: str, sides: Mapping[str, Any] = sides) -> float | None:
            return sum(device.get(name, 0) for device in sides[str(n)]) if sides.get(str(n)) else None

        lines.append([row["setting"]["name"], *[""] * len(lengths)])
        for words, name, unit in (
            ("cold routes per token", "cold_routes", None),
            ("left to the CPU, per token", "cpu_routes", None),
            ("experts uploaded", "uploaded", 1),
            ("MB uploaded", "uploaded_bytes", 1e6),
        ):
            values = [(n, total(n, name)) for n in lengths]
            form = ".2f" if unit is None else ".0f"
            lines.append([f"  {words}", *(shown(None if v is None else v / (unit or n), form) for n, v in values)])
    return text_table(["", *map(str, lengths)], lines)


def _memory(rows: Sequence[Mapping[str, Any]]) -> str:
    """In use when a row was ready, after its longest request, and what the engine's capacity test promised."""
    lines = []
    for row in rows:
        loaded, used = row["gpu_bytes_loaded"], row.get("gpu_bytes_used") or []
        promised = [value + MARGIN_BYTES for value in loaded] if row.get("hot") is not None else []
        row_devices = row.get("devices") or []
        experts = sum(device["pool_used"] + device["staging_bytes"] for device in row_devices)
        values = (sum(loaded), sum(used), sum(promised), experts)
        lines.append([row["setting"]["name"], *(shown(value / 1e9 if value else None) for value in values)])
    return text_table(["", "loaded", "after the longest", "promised at most", "pool and staging"], lines)


def _at(row: Mapping[str, Any], depth: str, length: int) -> float | None:
    value: float | None = row["depths"].get(depth, {}).get("prefill_ms", {}).get(str(length))
    return value


def _prefill_floor(
    gpu_ms: float | None,
    passes: NDArray[Any],
    hot: NDArray[np.bool_],
    experts: ModelExperts,
    speeds: Speeds | None,
) -> float | None:
    """Median over the passes that the first row timed."""
    found = [prefill_floor_ms(gpu_ms, counts, hot, experts.expert_bytes, speeds) for counts in passes]
    known = [value for value in found if value is not None]
    return float(np.median(known)) if known else None
