"""What `scaling.py` measures, over processes that are not started, and what its plot draws."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from plot_scaling import draw, points_of
from scaling import Point, Sweeps, known_rows, line_of, points, settings

from ostinatod.bench.comparison import Steps
from ostinatod.bench.settings import Setting, as_json
from tests.unit.benchmarks.rows import EXPERTS

BASE = {"context": 1024, "share": 0.5, "threads": 15}


def asked(**changes: Any) -> argparse.Namespace:
    values: dict[str, Any] = {"contexts": (1024, 8192), "share": 0.5, "base_threads": 15, "shares": [], "threads": ()}
    return argparse.Namespace(**{**values, **changes})


def row(sweep: str, kind: Any, ms: float, *, context: int = 1024, share: float = 0.5, threads: int = 15) -> Any:
    setting = as_json(Setting(kind, kind, threads=threads))
    prefill = {"128": 10 * ms, "1024": 20 * ms}
    measured = {"context": context, "decode_ms": ms, "prefill_ms": prefill, "cold_routes_per_token": 1.0}
    return {"sweep": sweep, "share": share, "setting": setting, **measured}


def measured(*rows: Any) -> dict[str, Any]:
    return {"model": "<v4>", "base": BASE, "rows": list(rows)}


def test_what_the_sweeps_have_in_common_is_measured_once() -> None:
    found = list(points(asked(shares=[0.1, 0.5, 1.0], threads=(2, 15))))
    assert found == [
        Point("context", 0.5, 15, (1024, 8192)),
        Point("pool", 0.1, 15, (1024,)),
        Point("pool", 1.0, 15, (1024,)),
        Point("threads", 0.5, 2, (1024,)),
    ]


def test_both_sides_of_a_point_have_its_threads_and_stock_its_layers() -> None:
    stock, hot = settings(Point("threads", 0.5, 4, (1024,)), 3, 152, on_gpu=True)
    assert (stock.threads, stock.cpu_layers, stock.load_mode, stock.min_batch) == (4, 3, "none", 32)
    assert (hot.kind, hot.threads, hot.staging_experts, stock.staging_experts) == ("ostinato", 4, 152, 0)
    assert settings(Point("pool", 0.5, 0, (8,)), 0, 0, on_gpu=False)[0].min_batch is None


class ScriptedSteps:
    """Steps of which every process takes 10 s of a clock of their own."""

    def __init__(self, seconds: float) -> None:
        self.plan = SimpleNamespace(experts=EXPERTS, on_gpu=True)
        self.sessions: list[Any] = []
        self.n_ctx, self.left_s, self.clock = 0, seconds, 0.0

    def tokenize(self) -> None: ...

    def count(self) -> tuple[list[Any], int]:
        return [], 0

    def learned(self, counted: Any, pool_bytes: int) -> Any:
        return SimpleNamespace(pool_bytes=pool_bytes)

    def keep_hot(self, learned: Any) -> None: ...

    def limited(self, setting: Setting, pool_bytes: int) -> Setting:
        return setting

    def model_job(self, *_: Any) -> dict[str, Any]:
        return {}

    def run(self, job: Any, setting: Setting, on_event: Any) -> None:
        self.left_s -= 10.0
        self.clock += 10.0
        for depth in job["depths"]:
            on_event({"event": "depth", "context": depth, "decode_ms": 1.0, "prefill_ms": {}})


def test_a_point_that_has_no_time_for_both_sides_is_left_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = ScriptedSteps(seconds=40.0)
    monkeypatch.setattr("scaling.time.monotonic", lambda: steps.clock)
    own = {"lengths": (8,), "decode_tokens": 4, "repeats": 1, "whole_layers": 43}
    sweeps = Sweeps(cast(Steps, steps), asked(shares=[0.25, 1.0], **own), [])
    rows = list(sweeps.measure())
    assert [(row["sweep"], row["setting"]["kind"]) for row in rows] == [
        ("context", "stock"),
        ("context", "stock"),
        ("context", "ostinato"),
        ("context", "ostinato"),
    ]
    assert sweeps.left_out == [
        f"pool {share} {kind} 15 threads" for share in ("0.25", "1.00") for kind in ("stock", "ostinato")
    ]


def test_a_plot_has_two_panels_for_each_sweep_and_the_common_row_is_in_all() -> None:
    rows = [
        row("context", kind, ms, context=at) for at, ms in ((1024, 1.0), (8192, 2.0)) for kind in ("stock", "ostinato")
    ]
    rows += [row("pool", kind, 0.4, share=1.0) for kind in ("stock", "ostinato")]
    rows += [row("threads", "ostinato", 3.0, threads=2)]
    assert list(points_of(rows, "pool", BASE)["stock"]) == [50, 100]
    assert list(points_of(rows, "threads", BASE)["ostinato"]) == [2, 15]
    drawn = draw(measured(*rows))
    root = ElementTree.fromstring(drawn)
    lines = root.findall(".//{http://www.w3.org/2000/svg}polyline")
    # Two sides: one line each for decode, and one for each of two lengths.
    assert len(lines) == 3 * 2 * 3
    for words in (
        "tokens of context",
        ">% of the experts hot<",
        "threads of the CPU",
        "stock, 1,024 new tokens",
        "&lt;v4&gt;",
    ):
        assert words in drawn
    places = [
        [float(number) for pair in line.attrib["points"].split() for number in pair.split(",")]
        for line in lines
        if line.attrib["points"]
    ]
    assert all(0 <= number <= 320 for line in places for number in line)


def test_a_sweep_of_one_point_is_not_drawn_and_failures_are_left_out() -> None:
    failed = {"sweep": "pool", "share": 0.1, "setting": as_json(Setting("stock", "stock")), "failed": "no"}
    rows = [row("context", "stock", 1.0), row("context", "stock", 2.0, context=8192), failed]
    drawn = draw(measured(*rows))
    assert drawn.count("<polyline") == 3
    assert ">% of the experts hot<" not in drawn
    assert "<polyline" not in draw(measured(rows[0], failed))
    assert "failed: no" in line_of(failed)


def test_times_below_a_millisecond_have_ticks() -> None:
    rows = [row("context", "stock", 0.3), row("context", "stock", 0.6, context=8192)]
    assert ">0.2</text>" in draw(measured(*rows))


def test_threads_that_are_not_known_have_no_place_on_an_axis() -> None:
    rows = [row("context", "stock", 1.0, threads=0), row("threads", "stock", 2.0, threads=4)]
    assert points_of(rows, "threads", {**BASE, "threads": 0}) == {}


def test_failed_rows_are_measured_again(tmp_path: Any) -> None:
    file = tmp_path / "scaling.json"
    assert known_rows(file) == []
    file.write_text('{"rows": [{"context": 1}, {"failed": "no"}]}')
    assert known_rows(file) == [{"context": 1}]
