"""What each part of decoding saves, as in the paper's Table 8b, at given shares of hot experts.

Stock whole layers at their best, two branches without CUDA graphs, + graphs, + link sharing, + borrowed memory:

    python benchmarks/ablation.py --libraries BIN --model MODEL.gguf --sessions tests/data/agent-sessions.npz \\
        --shares 0.44,0.52 --seconds 300 --out RESULT.json

Every row is a process of its own. Stock may use as much GPU memory for experts as the hot ones and the staging buffer
take together, for as many whole layers as fit; its upload buffers come on top. Several choices of those layers are
tried, and CPU layouts that cannot be uploaded, each with the quickest of several numbers of threads: the best one
counts. All rows decode the same tokens behind the same contexts.

Beside each row stands the floor of the run: the larger of the step time with every expert on the GPU, and the row's own
cold bytes per step over the speeds of host memory and link together, as the engine measured them in this run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from floors import best_speeds, decode_floor_ms
from placements import stock_layers
from prefill_table import cold_bytes_of
from row_command import common_arguments, experts_of, measured_rows, numbers
from row_runner import Rows
from text_table import shown, text_table

from ostinatod.bench.memory import memory_for, pool_limit
from ostinatod.bench.placed_model import usable_cores
from ostinatod.bench.settings import Setting
from ostinatod.profiles.experts import ModelExperts

NO_GRAPHS = {"GGML_CUDA_DISABLE_GRAPHS": "1"}
NONE = -1
"""As `link_percent` and `borrow`: not used."""
REPACKED = "repacked"

COUNTERS: Mapping[str, tuple[str, float]] = {
    "cold_routes": ("cold_routes", 1),
    "gpu_wait_ms": ("waited_ns", 1e6),
    "cpu_busy_ms": ("cpu_busy_ns", 1e6),
    "graph_replays": ("graph_replays", 1),
    "direct_passes": ("direct_passes", 1),
    "borrowed_uploads": ("borrowed_uploads", 1),
}
"""What a row tells of a step: the counter in `bindings.DeviceStatus`, which stock rows have not, and its unit."""

COLUMNS = (
    ("ms per step", "step_ms", ".3f"),
    ("p10", "p10_ms", ".3f"),
    ("p90", "p90_ms", ".3f"),
    ("x stock", "times_stock", ".2f"),
    ("cold routes", "cold_routes", ".2f"),
    ("GPU wait ms", "gpu_wait_ms", ".3f"),
    ("CPU busy ms", "cpu_busy_ms", ".3f"),
    ("captures", "graph_captures", ".0f"),
    ("replays", "graph_replays", ".2f"),
    ("direct", "direct_passes", ".2f"),
    ("lent to", "borrowed_experts", ".0f"),
    ("uploads", "borrowed_uploads", ".3f"),
    ("floor ms", "floor_ms", ".3f"),
    ("x floor", "times_floor", ".2f"),
)


class Ablation:
    """The rows of one model, and the table that is made of them."""

    def __init__(self, rows: Rows, experts: ModelExperts, arguments: argparse.Namespace) -> None:
        self.rows, self.experts, self.arguments = rows, experts, arguments
        self.on_gpu = arguments.device == "gpu"
        self.shares: list[float] = arguments.shares
        self._known: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.stock: dict[float, list[dict[str, Any]]] = {share: [] for share in self.shares}
        self.steps: dict[float, list[dict[str, Any]]] = {share: [] for share in self.shares}
        self.all_on_gpu: dict[str, Any] = {}

    def measure(self) -> None:
        """Every row, those first without which the table says least."""
        self.all_on_gpu = self.rows.run(Setting("everything on the GPU", "stock", threads=self.arguments.threads))
        first, *others = self.arguments.stock
        for share in self.shares:
            self._stock(share, first)
            self._steps(share)
        for share in self.shares:
            for variant in others:
                self._stock(share, variant)

    def table(self) -> list[dict[str, Any]]:
        """One entry for each row of each share: null is what is not known."""
        speeds = best_speeds(self.rows.results)
        gpu_ms = _found(self.all_on_gpu).get("decode_ms")
        entries = [{"share": None, "row": "everything on the GPU", **_measured(self.all_on_gpu)}]
        for share in self.shares:
            best = min(
                (row for row in self.stock[share] if _found(row)),
                key=lambda row: _found(row)["decode_ms"],
                default=None,
            )
            for row in [*([best] if best else self.stock[share][:1]), *self.steps[share]]:
                found = _found(row)
                measured = _measured(row)
                floor = None
                if found:
                    floor = decode_floor_ms(gpu_ms, cold_bytes_of(row, found, self.experts), speeds)
                stock_ms = _found(best)["decode_ms"] if best else None
                step = measured["step_ms"]
                entries.append(
                    {
                        "share": share,
                        "row": row["setting"]["name"],
                        **measured,
                        "borrowed_experts": _borrowed(row, self.experts),
                        "times_stock": stock_ms / step if stock_ms and step else None,
                        "floor_ms": floor,
                        "times_floor": step / floor if step and floor else None,
                        "failed": row.get("failed"),
                    }
                )
        return entries

    def _stock(self, share: float, variant: str) -> None:
        """One choice of whole layers, unless another share has had the same."""
        gpu_bytes = memory_for(share * self.experts.places().total_bytes)
        layers = stock_layers(self.experts, gpu_bytes) if self.on_gpu else {"first": ()}
        on_cpu = layers.get("first" if variant == REPACKED else variant, ())
        key = (variant == REPACKED, on_cpu)
        if key not in self._known:
            name = f"stock, {variant} {len(on_cpu)} of {len(self.experts.layers)} layers on the CPU"
            setting = Setting(
                name, "stock", load_mode="none", cpu_layer_ids=on_cpu, repacked=variant == REPACKED, threads=0
            )
            self._known[key] = self.rows.run(setting, threads_tried=self.arguments.threads_tried)
        self._keep(self.stock[share], self._known[key])

    def _steps(self, share: float) -> None:
        """Part after part. All have a staging buffer: the same memory, and the link's speed is measured."""
        pool_bytes = pool_limit(memory_for(share * self.experts.places().total_bytes))

        def setting(name: str, link: int, borrow: int, environment: Mapping[str, str] = {}) -> Setting:
            return Setting(
                name,
                "ostinato",
                threads=self.arguments.threads,
                pool_bytes=pool_bytes,
                pin_bytes=self.arguments.pin_bytes,
                link_percent=link,
                borrow=borrow,
                environment=environment,
            )

        link, borrow = self.arguments.link, self.arguments.borrow
        for each in (
            setting("two branches, no graphs", NONE, NONE, NO_GRAPHS),
            setting("+ graph", NONE, NONE),
            setting("+ link sharing", link, NONE),
            setting("+ borrowed memory", link, borrow),
        ):
            self._keep(self.steps[share], self.rows.run(each, hot=share))

    def _keep(self, kept: list[dict[str, Any]], row: dict[str, Any]) -> None:
        """A row where it belongs, and the table so far in the file."""
        kept.append(row)
        self.rows.facts["ablation"] = self.table()
        self.rows.write()


def shown_table(entries: Sequence[Mapping[str, Any]]) -> str:
    """The table for people."""
    lines = []
    for share in dict.fromkeys(entry["share"] for entry in entries):
        if share is not None:
            lines.append([f"{share:.0%} hot", *[""] * len(COLUMNS)])
        for entry in entries:
            if entry["share"] == share:
                cells = [shown(entry.get(name), form) for _, name, form in COLUMNS]
                lines.append([entry["row"] + (" (could not run)" if entry.get("failed") else ""), *cells])
    return text_table(["", *(title for title, _, _ in COLUMNS)], lines)


def _found(row: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The figures behind the only depth."""
    depths: Mapping[str, Any] = (row or {}).get("depths") or {}
    return next(iter(depths.values()), {})


def _measured(row: Mapping[str, Any]) -> dict[str, Any]:
    found = _found(row)
    low, high = found.get("decode_ms_spread", (None, None))
    per_step = found.get("per_step", {})
    captured = per_step.get("graph_captures")
    counted = {"graph_captures": None if captured is None else round(captured * found["steps"])}
    counted |= {
        name: per_step[counter] / unit if counter in per_step else None for name, (counter, unit) in COUNTERS.items()
    }
    return {"step_ms": found.get("decode_ms"), "p10_ms": low, "p90_ms": high, **counted}


def _borrowed(row: Mapping[str, Any], experts: ModelExperts) -> float | None:
    """Experts in lent memory when the row ended, over all GPUs."""
    lent = [device["borrowed_bytes"] for device in row.get("devices") or () if "borrowed_bytes" in device]
    return sum(lent) / (sum(experts.expert_bytes) / len(experts.expert_bytes)) if lent else None


def default_threads() -> tuple[int, ...]:
    """Numbers of threads that stock is tried with: all cores, one less, three quarters and half of them."""
    cores = usable_cores()
    return tuple(dict.fromkeys(max(1, n) for n in (cores, cores - 1, cores * 3 // 4, cores // 2)))


def main(given: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = common_arguments(__doc__)
    parser.add_argument("--shares", type=lambda text: [float(item) for item in text.split(",")], default=[0.44, 0.52])
    parser.add_argument("--depth", type=int, default=8192)
    parser.add_argument("--texts", type=int, default=4, help="contexts of different text, each with a turn behind it")
    parser.add_argument("--new-tokens", type=int, default=249, help="that each turn reads before it emits")
    parser.add_argument("--decode-tokens", type=int, default=192, help="that each turn emits")
    parser.add_argument("--stock", type=lambda text: text.split(","), default=["first", "last", REPACKED])
    parser.add_argument("--threads-tried", type=numbers, default=default_threads(), help="by stock")
    parser.add_argument("--link", type=int, default=0, help="percent; 0 for the engine's own choice")
    parser.add_argument("--borrow", type=int, default=0, help="percent; 0 for the engine's own choice")
    arguments = parser.parse_args(given)
    experts = experts_of(arguments.model)
    turns = {"texts": arguments.texts, "new_tokens": arguments.new_tokens}
    with measured_rows(arguments, depths=(arguments.depth,), **turns) as rows:
        ablation = Ablation(rows, experts, arguments)
        ablation.measure()
        entries = ablation.table()
    print(f"\n{shown_table(entries)}")
    return 1 if any("failed" in row for row in rows.results) else 0


if __name__ == "__main__":
    sys.exit(main())
