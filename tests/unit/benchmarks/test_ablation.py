"""The rows that are asked for and the table that is made of them, over processes that are not started."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from ablation import NO_GRAPHS, Ablation, shown_table

from ostinatod.bench.settings import Setting
from tests.unit.benchmarks.rows import EXPERTS, device, row


class Remembered:
    """In place of `row_runner.Rows`: every stock row takes 6 ms, others 4, 3, 2 ms and so on."""

    def __init__(self) -> None:
        self.asked: list[tuple[Setting, dict[str, Any]]] = []
        self.results: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {}
        self.steps = iter((4.0, 3.0, 2.0, 1.5) * 3)

    def run(self, setting: Setting, **own: Any) -> dict[str, Any]:
        self.asked.append((setting, own))
        is_stock = setting.kind == "stock"
        step = (
            (6.0 - len(setting.cpu_layer_ids) % 2 if setting.cpu_layer_ids else 0.2) if is_stock else next(self.steps)
        )
        measured = row(setting.name, setting.kind, step_ms=step, cpu_layer_ids=setting.cpu_layer_ids)
        self.results.append(measured)
        return measured

    def write(self) -> None:
        """Nothing to keep."""


def measured(**values: Any) -> tuple[Remembered, Ablation]:
    wanted = {
        "device": "gpu",
        "shares": [0.44],
        "stock": ["first", "last"],
        "threads": 0,
        "threads_tried": (4, 2),
        "link": 0,
        "borrow": 7,
        "pin_bytes": 0,
    }
    rows = Remembered()
    ablation = Ablation(rows, EXPERTS, argparse.Namespace(**{**wanted, **values}))  # type: ignore[arg-type]
    ablation.measure()
    return rows, ablation


def test_parts_are_added_one_after_the_other() -> None:
    rows, _ = measured()
    placed = [setting for setting, _ in rows.asked if setting.kind == "ostinato"]
    assert [(s.environment, s.link_percent, s.borrow) for s in placed] == [
        (NO_GRAPHS, -1, -1),
        ({}, -1, -1),
        ({}, 0, -1),
        ({}, 0, 7),
    ]
    assert len({s.pool_bytes for s in placed}) == 1
    stock = [(s.cpu_layer_ids, own) for s, own in rows.asked if s.kind == "stock"]
    assert stock == [
        ((), {}),
        ((0, 1), {"threads_tried": (4, 2)}),
        ((2, 3), {"threads_tried": (4, 2)}),
    ]


def test_a_row_that_could_not_run_is_in_the_table() -> None:
    rows, ablation = measured()
    rows.results[-2].clear()
    rows.results[-2].update({"setting": row("+ borrowed memory")["setting"], "failed": "crashed"})
    last = ablation.table()[-1]
    assert (last["row"], last["step_ms"], last["failed"]) == ("+ borrowed memory", None, "crashed")
    assert "(could not run)" in shown_table(ablation.table())


def test_shares_with_the_same_layers_share_their_stock_rows() -> None:
    # Both leave two layers of four on the CPU; 0.7 leaves none but one.
    rows, ablation = measured(shares=[0.44, 0.48, 0.66])
    assert sum(setting.kind == "stock" for setting, _ in rows.asked) == 1 + 2 + 2
    assert ablation.stock[0.44] == ablation.stock[0.48]


def test_each_row_stands_beside_its_floor_and_the_best_stock_row() -> None:
    _, ablation = measured()
    entries = ablation.table()
    assert [entry["row"] for entry in entries[:3]] == [
        "everything on the GPU",
        "stock, first 2 of 4 layers on the CPU",
        "two branches, no graphs",
    ]
    _, stock, branches, *_ = entries
    # Stock needs two experts of each of two layers: 4 kB over 8 + 2 MB/s.
    assert stock["floor_ms"] == pytest.approx(0.4)
    assert stock["times_stock"] == 1.0
    # Three cold routes of 1 kB: 0.3 ms, more than everything on the GPU takes.
    assert branches["floor_ms"] == pytest.approx(0.3)
    assert branches["times_floor"] == pytest.approx(4.0 / 0.3)
    assert branches["times_stock"] == 1.5
    assert (branches["p10_ms"], branches["p90_ms"]) == (2.0, 8.0)
    assert (branches["gpu_wait_ms"], branches["cpu_busy_ms"]) == (0.5, 0.25)
    assert branches["graph_captures"] is branches["graph_replays"] is None
    assert "44% hot" in shown_table(entries)


def test_lent_memory_is_told_in_experts() -> None:
    rows, ablation = measured()
    rows.results[2]["devices"] = [device(borrowed_bytes=2500), device(borrowed_bytes=500)]
    entry = ablation.table()[2]
    assert entry["borrowed_experts"] == 3.0


def test_captures_are_told_for_all_steps_and_replays_for_one() -> None:
    rows, ablation = measured()
    rows.results[2]["depths"]["64"]["per_step"] |= {"graph_captures": 0.01, "graph_replays": 0.99}
    entry = ablation.table()[2]
    # 200 steps.
    assert (entry["graph_captures"], entry["graph_replays"]) == (2, 0.99)
