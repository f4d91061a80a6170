"""Layers of each GPU, rows that are asked for, and what is said about answers, over processes that are not started."""

from __future__ import annotations

import argparse
import bisect
import itertools
from typing import Any

import numpy as np
import pytest
from several_gpus import FIXED, VISIBLE, Comparison, hot_bytes, parts_of, tables, tensor_split, verdict

from ostinatod.bench.settings import Setting
from ostinatod.profiles.experts import ModelExperts
from tests.unit.benchmarks.rows import EXPERTS, device, row


def gpu_of(layer: int, layers: int, split: tuple[float, ...]) -> int:
    """As llama.cpp finds it."""
    ends = list(itertools.accumulate(share / sum(split) for share in split))
    return bisect.bisect_right(ends, layer / (layers + 1))


@pytest.mark.parametrize(("layers", "devices"), [(4, 2), (8, 2), (9, 2), (8, 3), (10, 4), (43, 4)])
def test_every_gpu_gets_its_part(layers: int, devices: int) -> None:
    experts = ModelExperts(tuple(range(layers)), (10,) * layers, (4,) * layers, 2)
    parts = parts_of(experts, devices)
    split = tensor_split(parts)
    assert [gpu_of(layer, layers, split) for layer in range(layers)] == [
        number for number, part in enumerate(parts) for _ in part.layers
    ]
    assert gpu_of(layers, layers, split) == devices - 1  # the output


def test_hot_experts_are_counted_by_gpu() -> None:
    hot = np.zeros((4, 8), bool)
    hot[0, :3] = hot[3, 0] = True
    assert hot_bytes(parts_of(EXPERTS, 2), hot) == [3000, 1000]


class Remembered:
    """In place of `row_runner.Rows`; every row answers 1, but for those that are named."""

    is_counted = True

    def __init__(self, others: dict[str, float]) -> None:
        self.asked: list[tuple[Setting, dict[str, Any]]] = []
        self.facts: dict[str, Any] = {}
        self._others = others

    def run(self, setting: Setting, **own: Any) -> dict[str, Any]:
        self.asked.append((setting, own))
        return row(setting.name, setting.kind)

    def hot(self, share: float) -> np.ndarray[Any, Any]:
        """Half of the experts of the first two layers, a quarter of the others'."""
        counts = np.array([4, 4, 2, 2])
        return np.arange(8) < counts[:, None]

    def logits(self, of: dict[str, Any]) -> np.ndarray[Any, Any]:
        return np.array([[1.0, self._others.get(of["setting"]["name"], 2.0)]], np.float32)

    def write(self) -> None:
        """Nothing to keep."""


def compared(**others: float) -> tuple[Remembered, Comparison]:
    rows = Remembered({name.replace("_", " "): value for name, value in others.items()})
    arguments = argparse.Namespace(devices=2, share=0.375, threads=0, pin_bytes=0)
    comparison = Comparison(rows, EXPERTS, arguments)  # type: ignore[arg-type]
    comparison.measure()
    return rows, comparison


def test_answers_come_before_times_and_pools_are_as_large_as_the_larger_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "3,5")
    rows, comparison = compared()
    assert comparison.is_right
    placed = [(s, own) for s, own in rows.asked if s.kind == "ostinato"]
    assert [own.get("lengths") for _, own in placed] == [(), (), (), None, None]
    assert [s.link_percent for s, _ in placed] == [FIXED["link_percent"]] * 3 + [0, 0]
    several = [s for s, _ in placed if s.tensor_split]
    assert len(several) == 3
    assert {s.environment.get(VISIBLE) for s, _ in placed if not s.tensor_split} == {"3"}
    # 8 kB of the first two layers and 4 kB of the others are hot: 12 kB on one GPU, at most 8 kB on each of two.
    one = next(s for s, _ in placed if not s.tensor_split)
    assert one.pool_bytes > several[0].pool_bytes > 8000 / 0.875
    # 8 kB and an eighth of the sum hold one whole layer on each GPU.
    stock = next(s for s, _ in rows.asked if s.name.startswith("stock"))
    assert stock.cpu_layer_ids == (0, 2)


def test_other_bits_of_a_second_run_are_told() -> None:
    rows, comparison = compared(**{"2_GPUs,_again,_fixed_division": 2.5})
    assert not comparison.is_right
    told = list(verdict(comparison.checks))
    assert "within" in told[0]
    assert "OTHER BITS" in told[1]
    assert rows.facts["checks"] == comparison.checks


def test_answers_that_differ_by_more_than_rounding_are_told() -> None:
    _, comparison = compared(**{"2_GPUs,_fixed_division": 2.1, "2_GPUs,_again,_fixed_division": 2.1})
    assert not comparison.is_right
    assert "ABOVE" in next(verdict(comparison.checks))


def test_each_gpu_has_a_line() -> None:
    found = row("2 GPUs", prefill_ms={"8": 5.0})
    one = {**device(pool_capacity=7_000_000_000), "name": "CUDA0", "pool_used": 6_000_000_000}
    found["devices"] = [one, {**one, "name": "CUDA1"}]
    per_step = {"cold_routes": 2.0, "waited_ns": 5e5, "graph_captures": 0.25}
    found["depths"]["64"]["texts"] = [{"per_step": [per_step, {**per_step, "cold_routes": 3.0}]}]
    times, each = tables([found], (8,))
    assert times.splitlines()[-1].split() == ["2", "GPUs", "1.000", "5.0", "-", "0.0e+00"]
    assert [line.split() for line in each.splitlines()[-2:]] == [
        ["2", "GPUs:", "CUDA0", "7.00", "6.00", "0.00", "2.00", "0.500", "0.250", "-"],
        ["2", "GPUs:", "CUDA1", "7.00", "6.00", "0.00", "3.00", "0.500", "0.250", "-"],
    ]
