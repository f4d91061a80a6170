"""The rows of the preset, the floors that are put into rows, and the tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hot_experts import read_planned, with_copy_blocks
from plot_prefill import draw
from prefill_table import LENGTHS, add_floors, planned_rows, tables

from ostinatod.bench.memory import pool_limit
from ostinatod.bindings import NEVER
from tests.unit.benchmarks.rows import EXPERTS, row


def test_the_preset_has_every_setting_that_is_compared() -> None:
    rows = planned_rows(EXPERTS, 0.44, LENGTHS, 0, 0, on_gpu=True)
    stock = [(r.setting.load_mode, r.setting.min_batch, r.setting.cpu_layer_ids) for r in rows if r.hot is None]
    # 44 % and an eighth of the sum are 50.3 %: two of four layers stay on the GPU.
    assert stock == [
        ("mmap", None, ()),
        ("mmap", None, ()),
        ("none", 32, (0, 1)),
        ("none", 512, (0, 1)),
        ("mmap", 512, (0, 1)),
        ("mmap", 32, (0, 1)),
    ]
    hot = [r.setting for r in rows if r.hot == 0.44]
    uploads = [(s.upload_tokens, s.upload_all_tokens, s.prefetch_us) for s in hot]
    assert uploads == [(0, 0, 0), (0, 0, -1), (NEVER, 0, 0), (32, 32, 0), (512, 512, 0)]
    assert {max(r.lengths) for r in rows if r.lengths} == {512}
    assert len({r.setting.name for r in rows}) == len(rows)


def test_floors_and_ratios_stand_below_each_row_of_hot_experts() -> None:
    sides = [{"cold_routes": 16.0, "cpu_routes": 4.0, "uploaded": 2.0, "uploaded_bytes": 3e6}]
    results = [
        row("all", "stock", step_ms=0.5, prefill_ms={"8": 0.1}),
        row("stock", "stock", step_ms=4.0, prefill_ms={"8": 3.0}, cpu_layer_ids=(0, 1)),
        row("stock too", "stock", step_ms=4.0, prefill_ms={"8": 2.4}, cpu_layer_ids=(0, 1)),
        row("hot", prefill_ms={"8": 0.8}, prefill_sides={"8": sides}),
        {"setting": row("late")["setting"], "failed": "no time was left"},
    ]
    hot = np.ones((4, 8), bool)
    hot[0, 0] = hot[0, 1] = False
    passes = np.zeros((3, 4, 8), int)
    passes[:, 0, :2] = 16, 1  # see test_floors
    passes[:, 3, 5] = 100
    add_floors(results, EXPERTS, {"prefill/64/8": passes}, {0.5: hot})
    found = results[3]["depths"]["64"]
    assert found["prefill_floor_ms"] == {"8": pytest.approx(1.25 / 3)}
    # 3 cold routes of 1 kB over 8 + 2 MB/s are 0.3 ms, less than the GPU's 0.5.
    assert found["floor_ms"] == 0.5
    assert results[1]["depths"]["64"]["floor_ms"] == 0.5

    times, where, memory, failed = tables(results, EXPERTS)
    assert [line.split() for line in times.splitlines()[-3:]] == [
        ["hot", "1.00", "1"],
        ["best", "stock", "/", "this", "3.0x"],
        ["floor", "0.50", "0"],
    ]
    assert [line.split()[-1] for line in where.splitlines()[-4:]] == ["2.00", "0.50", "2", "3"]
    # 3.0 GB when it was ready and a GiB of margin: 3.5 GB is within the promise.
    assert memory.splitlines()[-1].split() == ["hot", "3.00", "3.50", "4.07", "0.00"]
    assert failed == "late: no time was left"


def test_a_plot_has_a_panel_for_each_context_and_takes_results_of_one() -> None:
    one = {"setting": {"name": "<old>"}, "prefill_ms": {"32": 10.0, "64": 20.0}}
    two = {"setting": {"name": "new"}, "depths": {d: {"prefill_ms": one["prefill_ms"]} for d in ("8192", "32768")}}
    assert draw({"model": "m", "results": [one]}).count("<polyline") == 1
    drawn = draw({"model": "m", "results": [two, {"setting": {"name": "x"}, "failed": "no"}]})
    assert drawn.count("<polyline") == 2
    assert drawn.index("8,192") < drawn.index("32,768")


def test_settings_of_a_file_may_have_their_own_lengths_and_repeats(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('[{"name": "a", "kind": "ostinato", "hot": 0.5, "lengths": [8], "repeats": 0, "borrow": 5}]')
    (planned,) = read_planned(file, EXPERTS, 5)
    assert planned.own() == {"lengths": (8,), "repeats": 0}
    assert (planned.hot, planned.setting.borrow) == (0.5, 5)
    # 16 kB of hot experts, an eighth of the sum for staging, and what rounding needs.
    assert (planned.setting.pool_bytes, planned.setting.pin_bytes) == (pool_limit(round(16_000 / 0.875)), 5)
    file.write_text('[{"name": "a", "kind": "ostinato", "hot": 0.5, "pool_bytes": 7, "pin_bytes": 9}]')
    (planned,) = read_planned(file, EXPERTS, 5)
    assert (planned.setting.pool_bytes, planned.setting.pin_bytes) == (7, 9)


def test_numbers_of_copy_blocks_are_tried_behind_the_first_row_of_hot_experts() -> None:
    rows = planned_rows(EXPERTS, 0.44, LENGTHS, 0, 0, on_gpu=True)
    tried = with_copy_blocks(rows, (4, 16))
    names = [row.setting.name for row in tried]
    assert names[3:7] == [
        "44% hot, choice per expert",
        "44% hot, choice per expert, 4 copy blocks",
        "44% hot, choice per expert, 16 copy blocks",
        "44% hot, the same without prefetch",
    ]
    assert [row.setting.copy_blocks for row in tried[3:7]] == [0, 4, 16, 0]
    # The same memory, experts and lengths.
    assert (tried[4].hot, tried[4].lengths) == (0.44, tried[3].lengths)
    assert tried[4].setting.pool_bytes == tried[3].setting.pool_bytes
    assert [*tried[:4], *tried[6:]] == rows
    assert with_copy_blocks(rows, ()) == rows
    assert with_copy_blocks(rows[:3], (4,)) == rows[:3]
