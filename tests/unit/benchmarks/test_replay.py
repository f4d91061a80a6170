"""How often `replay.py` says that it will load the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from replay import loads

from ostinatod.bench.comparison import Comparison
from ostinatod.bench.options import Options
from ostinatod.bench.settings import Setting
from tests.unit.benchmarks.rows import EXPERTS

PAIR = (Setting("ostinato", "ostinato"), Setting("stock", "stock", 2))
PLAN = Comparison(
    libraries=Path("lib"),
    model=Path("m.gguf"),
    experts=EXPERTS,
    context_tokens=4096,
    recorded=(),
    on_gpu=True,
    pool_bytes=100,
    options=Options(),
)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Learning, five settings of stock tried, and both sides timed.
        ({}, 1 + 5 + 2),
        ({"candidates": PAIR}, 1 + 2),
        # What must fit into a time is tried for its pace, unless no turn may be spent on that.
        ({"candidates": PAIR, "seconds": 60.0}, 1 + 2 + 2),
        ({"candidates": PAIR, "seconds": 60.0, "trial_turns": 0}, 1 + 2),
        ({"candidates": PAIR, "repeats": 3}, 1 + 6),
        ({"times_all": True, "seconds": 60.0}, 1 + 6),
    ],
)
def test_loads_are_those_of_learning_trials_and_timing(options: dict[str, Any], expected: int) -> None:
    assert loads(replace(PLAN, options=Options(**options))) == expected
