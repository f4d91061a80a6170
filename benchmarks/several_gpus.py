"""Layers on several GPUs with an expert pool each and one CPU pool for all, against one GPU and against stock.

    python benchmarks/several_gpus.py --libraries BIN --model MODEL.gguf --sessions tests/data/agent-sessions.npz \\
        --devices 2 --seconds 240 --out RESULT.json

First the answers: with a fixed division of the cold experts (no uploads, a fixed share of the link) several GPUs have
to agree with one to rounding, and with a second run of their own bit for bit. Then the times, with every choice left to
the engine: a decode step and prefills, beside one GPU with the memory of all, stock whole layers in the same memory of
each GPU, and everything on the GPUs. GPUs get equal numbers of layers, and pools as large as the one that needs most.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from placements import stock_layers
from prefill_table import SMALL_BATCH
from row_command import common_arguments, experts_of, measured_rows, numbers
from row_runner import Rows, difference
from text_table import shown, text_table

from ostinatod.bench.memory import memory_for, pool_limit
from ostinatod.bench.settings import Setting
from ostinatod.bindings import NEVER
from ostinatod.profiles.experts import ModelExperts

FIXED: Mapping[str, Any] = {"upload_tokens": NEVER, "link_percent": 30, "borrow": -1}
"""Nothing that an engine chooses by speeds that it measures."""
ROUNDING_NMSE = 1e-6
"""What other orders of a sum make at least; more is allowed where hot experts on one GPU differ more from stock."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


def parts_of(experts: ModelExperts, devices: int) -> list[ModelExperts]:
    """The layers of each GPU."""
    return [
        replace(
            experts,
            layers=tuple(experts.layers[i] for i in part),
            expert_bytes=tuple(experts.expert_bytes[i] for i in part),
            n_experts=tuple(experts.n_experts[i] for i in part),
        )
        for part in np.array_split(np.arange(len(experts.layers)), devices)
    ]


def tensor_split(parts: Sequence[ModelExperts]) -> tuple[float, ...]:
    """Shares with which llama.cpp gives each GPU its part. The output counts as a layer after the last one.

    Layer l of L goes to the first GPU whose shares up to it are more than l/(L + 1) of their sum, so that shares that
    end half a layer before a part does leave nothing to rounding.
    """
    ends = [part.layers[-1] + 0.5 for part in parts[:-1]]
    ends.append(parts[-1].layers[-1] + 2.0)
    return tuple(end - begin for begin, end in zip([0.0, *ends], ends, strict=False))


def hot_bytes(parts: Sequence[ModelExperts], hot: NDArray[np.bool_]) -> list[int]:
    """Bytes of the hot experts (L, E) on each GPU."""
    found, first = [], 0
    for part in parts:
        rows = hot[first : first + len(part.layers)]
        found.append(sum(int(row.sum()) * size for row, size in zip(rows, part.expert_bytes, strict=True)))
        first += len(part.layers)
    return found


class Comparison:
    """The rows, in the order in which they are measured."""

    def __init__(self, rows: Rows, experts: ModelExperts, arguments: argparse.Namespace) -> None:
        self.rows, self.experts, self.arguments = rows, experts, arguments
        self.parts = parts_of(experts, arguments.devices)
        self.split = tensor_split(self.parts)
        self.one = {VISIBLE: os.environ.get(VISIBLE, "0").split(",")[0]}
        self.checks: dict[str, Any] = {}

    def measure(self) -> None:
        """Answers, then times."""
        share, threads = self.arguments.share, self.arguments.threads
        first = self.rows.run(Setting("everything on one GPU", "stock", threads=threads, environment=self.one))
        if not self.rows.is_counted:
            return
        bytes_of_each = hot_bytes(self.parts, self.rows.hot(share))
        limits = [pool_limit(memory_for(taken)) for taken in (sum(bytes_of_each), max(bytes_of_each))]
        name = f"{self.arguments.devices} GPUs"

        def hot(name: str, devices: int, **options: Any) -> Setting:
            where: dict[str, Any] = {"tensor_split": self.split} if devices > 1 else {"environment": self.one}
            own = {"pool_bytes": limits[devices > 1], "pin_bytes": self.arguments.pin_bytes, "threads": threads}
            return Setting(name, "ostinato", **own, **where, **options)

        short: dict[str, Any] = {"lengths": (), "decode_tokens": 16}
        checked = [
            self.rows.run(hot(f"{words}, fixed division", devices, **FIXED), hot=share, **short)
            for words, devices in (("one GPU", 1), (name, 2), (f"{name}, again", 2))
        ]
        self._check(first, checked)
        self.rows.run(hot(name, 2), hot=share)
        self.rows.run(hot("one GPU, the memory of all", 1), hot=share)
        on_cpu = [
            layer
            for part in self.parts
            for layer in stock_layers(part, memory_for(max(bytes_of_each))).get("first", ())
        ]
        stock = Setting(
            f"stock, {name}, {len(on_cpu)} of {len(self.experts.layers)} layers on the CPU",
            "stock",
            load_mode="none",
            min_batch=SMALL_BATCH,
            cpu_layer_ids=tuple(on_cpu),
            tensor_split=self.split,
            threads=threads,
        )
        self.rows.run(stock)
        self.rows.run(Setting(f"everything on {name}", "stock", tensor_split=self.split, threads=threads))

    def _check(self, first: Mapping[str, Any], checked: Sequence[Mapping[str, Any]]) -> None:
        """Compare the answers; a row that failed leaves its comparison out."""
        if any("failed" in row for row in (first, *checked)):
            self.checks["failed"] = "a row could not run"
        else:
            one, several, again = (self.rows.logits(row) for row in checked)
            allowed = max(ROUNDING_NMSE, 2 * difference(one, self.rows.logits(first))["nmse"])
            told = difference(several, one)
            self.checks = {
                "several_against_one": {**told, "allowed_nmse": allowed, "agrees": told["nmse"] <= allowed},
                "again": difference(again, several),
            }
        self.rows.facts["checks"] = self.checks
        self.rows.write()
        print("\n".join(verdict(self.checks)), flush=True)

    @property
    def is_right(self) -> bool:
        """Whether the answers agree."""
        return (
            bool(self.checks)
            and "failed" not in self.checks
            and self.checks["several_against_one"]["agrees"]
            and self.checks["again"]["same_bits"]
        )


def verdict(checks: Mapping[str, Any]) -> Iterator[str]:
    """What the comparisons say, in sentences."""
    if "failed" in checks:
        yield f"answers were not compared: {checks['failed']}"
        return
    told, again = checks["several_against_one"], checks["again"]
    yield (
        f"several GPUs against one: NMSE {told['nmse']:.1e} ({'within' if told['agrees'] else 'ABOVE'} "
        f"{told['allowed_nmse']:.1e}), same token {told['same_argmax']:.3f}"
    )
    bits = "the same bits" if again["same_bits"] else f"OTHER BITS, NMSE {again['nmse']:.1e}"
    yield f"a second run: {bits}"


def tables(results: Sequence[Mapping[str, Any]], lengths: Sequence[int]) -> Iterator[str]:
    """Times, then what each GPU had."""
    rows = [row for row in results if row.get("depths")]
    times = []
    for row in rows:
        found = next(iter(row["depths"].values()))
        prefill = found.get("prefill_ms", {})
        cells = [shown(prefill.get(str(length)), ".1f") for length in lengths]
        splits = (row.get("splits") or ["-"])[0]
        times.append([row["setting"]["name"], f"{found['decode_ms']:.3f}", *cells, splits, f"{row.get('nmse', 0):.1e}"])
    yield "\nmilliseconds\n" + text_table(["", "step", *map(str, lengths), "splits", "nmse"], times)
    each = []
    for row in rows:
        found = next(iter(row["depths"].values()))
        for number, device in enumerate(row.get("devices") or ()):
            per_step = found["texts"][0]["per_step"][number]
            each.append(
                [
                    f"{row['setting']['name']}: {device['name']}",
                    *(shown(device[name] / 1e9) for name in ("pool_capacity", "pool_used", "staging_bytes")),
                    shown(per_step["cold_routes"]),
                    shown(per_step["waited_ns"] / 1e6, ".3f"),
                    shown(per_step.get("graph_captures"), ".3f"),
                    shown(per_step.get("graph_replays")),
                ]
            )
    header = ["", "pool GB", "used", "staging", "cold routes", "GPU wait ms", "captures", "replays"]
    yield "\nby GPU, per step\n" + text_table(header, each)
    yield from (f"{row['setting']['name']}: {row['failed']}" for row in results if "failed" in row)


def main(given: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = common_arguments(__doc__)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--share", type=float, default=0.44, help="of the experts that are hot")
    parser.add_argument("--depth", type=int, default=8192)
    parser.add_argument("--lengths", type=numbers, default=(64, 512, 2048))
    parser.add_argument("--decode-tokens", type=int, default=128)
    arguments = parser.parse_args(given)
    experts = experts_of(arguments.model)
    if not 1 < arguments.devices <= len(experts.layers):
        raise SystemExit(f"expected 2 to {len(experts.layers)} devices, found {arguments.devices}")
    with measured_rows(arguments, depths=(arguments.depth,), lengths=arguments.lengths) as rows:
        comparison = Comparison(rows, experts, arguments)
        comparison.measure()
    print("\n".join(tables(rows.results, arguments.lengths)))
    return 0 if comparison.is_right and not any("failed" in row for row in rows.results) else 1


if __name__ == "__main__":
    sys.exit(main())
