"""Floors against hand-made cases, and against every division of a few experts."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from floors import Speeds, best_speeds, decode_floor_ms, prefill_floor_ms

from tests.unit.benchmarks.rows import device, row

SPEEDS = Speeds(cpu_row=8e6, cpu_rows=1e6, link=2e6)


def test_a_step_is_bound_by_the_gpu_or_by_its_cold_bytes() -> None:
    # 20 kB over 8 + 2 MB/s take 2 ms
    assert decode_floor_ms(1.0, 20_000, SPEEDS) == pytest.approx(2.0)
    assert decode_floor_ms(3.0, 20_000, SPEEDS) == 3.0


@pytest.mark.parametrize("missing", range(3))
def test_a_floor_of_something_unknown_is_unknown(missing: int) -> None:
    known: list[Any] = [1.0, 20_000.0, SPEEDS]
    known[missing] = None
    assert decode_floor_ms(*known) is None


def test_a_prefill_without_cold_experts_is_bound_by_the_gpu() -> None:
    counts = np.array([[5, 0, 3]])
    assert prefill_floor_ms(7.0, counts, counts > 0, [1000], SPEEDS) == 7.0


def test_two_cold_experts_are_divided_so_that_both_sides_end_together() -> None:
    # One with 16 rows takes the CPU 1 ms and the link 0.5 ms, one with a row, decoded as for four, 0.25 ms. After those
    # the first one is left to both: x of it is uploaded in 0.5 x, the rest computed in 1 - x, and 0.5 x = 0.25 + 1 - x.
    counts = np.array([[16, 1, 9]])
    hot = np.array([[False, False, True]])
    assert prefill_floor_ms(0.0, counts, hot, [1000], SPEEDS) == pytest.approx(1.25 / 3)


def test_no_division_of_whole_experts_is_quicker() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        counts = rng.integers(0, 40, (2, 4))
        floor = prefill_floor_ms(0.0, counts, np.zeros((2, 4), bool), [1000, 3000], SPEEDS)
        sizes = np.array([[1000] * 4, [3000] * 4]).ravel()
        rows = counts.ravel()
        cpu = np.where(rows > 0, sizes * np.maximum(1 / 8e6, np.ceil(rows / 4) * 4 / 16 / 1e6), 0)
        link = np.where(rows > 0, sizes / 2e6, 0)
        best = min(
            max(cpu[~np.array(chosen)].sum(), link[np.array(chosen)].sum())
            for chosen in itertools.product([True, False], repeat=8)
        )
        assert floor is not None
        assert floor <= best * 1000 + 1e-9
        assert floor >= 0.7 * best * 1000


def test_speeds_are_the_best_of_all_rows_and_links_add_up() -> None:
    slow = row("a")
    two = {**row("b"), "devices": [device(cpu_row_bytes_per_s=9e6), device(link_bytes_per_s=3e6)]}
    none = {**row("c"), "devices": [device(cpu_row_bytes_per_s=0.0, link_bytes_per_s=99e6)]}
    assert best_speeds([slow, two, none, row("d", "stock")]) == Speeds(9e6, 1e6, 5e6)
    assert best_speeds([row("d", "stock"), {"failed": "no"}]) is None
