"""Hot experts and layers on the CPU within the same memory."""

from __future__ import annotations

import numpy as np
from placements import cold_bytes, hottest, stock_layers

from tests.unit.benchmarks.rows import EXPERTS


def test_the_hottest_share_is_taken_over_all_layers() -> None:
    counts = np.array([[9, 1, 0, 8], [2, 7, 0, 0]], np.uint64)
    assert hottest(counts, 0.375).tolist() == [[True, False, False, True], [False, True, False, False]]


def test_stock_fills_the_same_memory_with_whole_layers() -> None:
    # Two of four layers are 16 kB.
    assert stock_layers(EXPERTS, 16_500) == {"first": (0, 1), "last": (2, 3), "spread": (0, 3)}
    assert stock_layers(EXPERTS, 15_999)["first"] == (0, 1, 2)
    assert stock_layers(EXPERTS, 32_000) == {}


def test_a_token_reads_its_selected_experts_of_the_layers_on_the_cpu() -> None:
    assert cold_bytes(EXPERTS, (1, 3)) == 4_000
