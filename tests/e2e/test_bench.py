"""Recorded sessions replayed on the real engine and the bundled model, end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinatod.bench.comparison import RESULTS_FILE, Comparison, Outcome, compare
from ostinatod.bench.options import Options
from ostinatod.bench.plan import Wanted, planned
from ostinatod.bench.sessions import Limits
from ostinatod.bench.settings import Setting
from ostinatod.installer.engine_build import EngineBuild
from ostinatod.models import bundled_file
from tests.e2e.programs import run_program
from tests.unit.bench.test_traces import session

pytestmark = pytest.mark.engine

CHECKOUT = Path(__file__).parents[2]
SYNTHETIC = CHECKOUT / "benchmarks" / "synthetic_model.py"
SCALING = CHECKOUT / "benchmarks" / "scaling.py"
PLOT_SCALING = CHECKOUT / "benchmarks" / "plot_scaling.py"
ROUTING = Path(__file__).parent / "workers" / "synthetic_routing.py"

LIMITS = Limits(turns=2, output_tokens=6, scale=0.01)
"""Turns of a few dozen tokens: one thread reads them in a second."""


class Quiet:
    """Progress that keeps what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: dict[str, tuple[int, int]] = {}

    def update(self, name: str, completed: int, total: int) -> None:
        self.steps[name] = (completed, total)

    def note(self, text: str) -> None:
        self.notes.append(text)


def comparison(build: EngineBuild, *candidates: Setting, shapes: Any = ()) -> Comparison:
    options = Options(shapes=shapes, limits=LIMITS, threads=1, candidates=candidates)
    wanted = Wanted(held_out=2, development=1, options=options)
    return planned(wanted, build.library_directory, [bundled_file()], on_gpu=False)


STOCK = Setting("stock", "stock", threads=1)
OSTINATO = Setting("ostinato", "ostinato", threads=1)


def test_every_setting_replays_the_same_turns_and_a_cut_run_is_continued(
    engine_build: EngineBuild, tmp_path: Path
) -> None:
    plan, progress = comparison(engine_build, OSTINATO, STOCK), Quiet()
    outcome = compare(plan, tmp_path, progress, resume=False)
    assert outcome.failures == {}
    by_setting = {
        name: [(t.session, t.turn, t.kind, t.reused, t.new, t.output) for t in outcome.turns if t.setting == name]
        for name in ("ostinato", "stock")
    }
    assert by_setting["ostinato"] == by_setting["stock"]
    assert len(by_setting["stock"]) == sum(len(s.turns) for s in outcome.sessions if s.part == "held-out") == 4
    assert all(turn.ttft_ms > 0 and turn.total_ms >= turn.ttft_ms for turn in outcome.turns)
    # Where experts are changes nothing but rounding: both would have said the same first in nearly every turn.
    assert _agreement(outcome) >= 0.75
    # What the development sessions taught covers more of other sessions than its share of the experts.
    placed = [turn for turn in outcome.turns if turn.setting == "ostinato"]
    hot = sum(turn.prefill_hot_routes or 0 for turn in placed) / sum(turn.prefill_routes or 0 for turn in placed)
    assert outcome.chosen.learned.hot.mean() == pytest.approx(0.44, abs=0.01)
    assert hot > 0.5

    file = tmp_path / RESULTS_FILE
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:4]) + lines[4][:20])
    again = compare(plan, tmp_path, Quiet(), resume=True)
    assert file.read_bytes().splitlines(keepends=True)[:4] == lines[:4]
    assert [(t.setting, t.session, t.turn) for t in again.turns] == [
        (t.setting, t.session, t.turn) for t in outcome.turns
    ]
    assert [turn.likely_token for turn in again.turns] == [turn.likely_token for turn in outcome.turns]


def test_a_setting_that_cannot_run_is_told_and_the_others_are_timed(engine_build: EngineBuild, tmp_path: Path) -> None:
    no_python = {"PYTHONHOME": str(tmp_path / "nowhere")}
    broken = Setting("broken ostinato", "ostinato", threads=1, environment=no_python)
    candidates = (broken, Setting("broken stock", "stock", threads=1, environment=no_python), STOCK)
    outcome = compare(comparison(engine_build, *candidates), tmp_path, Quiet(), resume=False)
    assert set(outcome.failures) == {"broken ostinato"}
    assert "broken ostinato: " in outcome.failures["broken ostinato"]
    assert {turn.setting for turn in outcome.turns} == {"stock"}
    assert [
        (item["setting"]["name"], item["total_ms"] is None, bool(item["reason"])) for item in outcome.chosen.search
    ] == [
        ("broken stock", True, True),
        ("stock", False, False),
    ]


def test_logged_lengths_are_replayed_with_their_own_prefix(engine_build: EngineBuild, tmp_path: Path) -> None:
    turns = [("first", 1000, 500, 300), ("after_tool", 1799, 600, 200)]
    shapes = [{"id": name, "part": part, "turns": turns} for name, part in (("a", "held-out"), ("b", "development"))]
    outcome = compare(comparison(engine_build, OSTINATO, shapes=shapes), tmp_path, Quiet(), resume=False)
    # A hundredth of each; the second turn reuses what is there.
    assert [(t.reused, t.new, t.output) for t in outcome.turns] == [(10, 5, 3), (17, 6, 2)]


def test_sessions_that_read_more_than_their_context_holds_are_replayed(
    engine_build: EngineBuild, tmp_path: Path
) -> None:
    # 200 tokens and 20 more, then 230 and 10 without any of them: 460 in all, in a context of 256.
    turns = [("first", 0, 20_000, 2000), ("after_tool", 0, 23_000, 1000)]
    shapes = [{"id": name, "part": part, "turns": turns} for name, part in (("a", "held-out"), ("b", "development"))]
    outcome = compare(comparison(engine_build, OSTINATO, shapes=shapes), tmp_path, Quiet(), resume=False)
    assert [(t.reused, t.new) for t in outcome.turns] == [(0, 200), (0, 230)]


def test_the_command_compares_and_leaves_a_report(engine_build: EngineBuild, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ostinatod", "bench", "tiny", "--sessions", "1", "--development", "1", "--json"]
    command += ["--turns", "2", "--scale", "0.01", "--max-output-tokens", "4", "--threads", "1", "--trial-turns", "1"]
    environment = {**os.environ, "OSTINATO_HOME": str(tmp_path / "home"), "XDG_RUNTIME_DIR": str(tmp_path)}
    environment["OSTINATO_ENGINE_CACHE"] = str(engine_build.directory.parent)
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, timeout=110, env=environment
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["base"] == "ostinato"
    assert [item["turns"] for item in told["settings"]] == [2, 2]
    assert {item["setting"]["name"] for item in told["facts"]["search"]} == {"stock mmap", "stock none"}
    assert any("scaled to 0.01" in note for note in told["notes"])
    assert (tmp_path / "out" / "plot.svg").read_text().startswith("<svg")
    assert json.loads((tmp_path / "out" / "report.json").read_text())["settings"] == told["settings"]


def test_synthetic_routing_is_skewed_and_keeps_to_what_was_read_before(
    engine_build: EngineBuild, tmp_path: Path
) -> None:
    looking_back = _routing(engine_build, tmp_path, "3")
    blind = _routing(engine_build, tmp_path, "0")
    # A set of 44 % learned from some sessions takes much more of the others' routes than a random one would.
    assert looking_back["coverage"] > 0.6
    # Consecutive tokens share experts more often than their session's frequencies explain, because of what came before.
    assert looking_back["next"] > 1.15 * looking_back["chance"]
    assert looking_back["next"] / looking_back["chance"] > 1.1 * blind["next"] / blind["chance"]


def test_scaling_measures_both_sides_at_every_context(engine_build: EngineBuild, tmp_path: Path) -> None:
    model, out = _synthetic(tmp_path, "3"), tmp_path / "scaling.json"
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(session(task)) + "\n" for task in "abc"))
    command = ["--libraries", str(engine_build.library_directory), "--model", str(model), "--out", str(out)]
    command += [
        "--sessions",
        str(trace),
        "--device",
        "cpu",
        "--base-threads",
        "1",
        "--development",
        "1",
        "--turns",
        "1",
        "--contexts",
        "64,16",
    ]
    command += ["--lengths", "8", "--decode-tokens", "4", "--repeats", "1"]
    _run(str(SCALING), *command)
    rows = json.loads(out.read_text())["rows"]
    assert [(row["setting"]["name"], row["context"]) for row in rows] == [
        (name, context) for name in ("stock", "ostinato") for context in (16, 64)
    ]
    assert all(row["decode_ms"] > 0 and row["prefill_ms"]["8"] > 0 for row in rows)
    _run(str(SCALING), *command, "--threads", "1,2", "--resume", "--seconds", "60")
    again = json.loads(out.read_text())
    # What is known, by this sweep or another one, is not measured again; the new point is in the file with it.
    assert again["rows"][: len(rows)] == rows
    assert [
        (row["sweep"], row["setting"]["name"], row["setting"]["threads"]) for row in again["rows"][len(rows) :]
    ] == [
        ("threads", "stock", 2),
        ("threads", "ostinato", 2),
    ]
    assert again["left_out"] == []
    assert again["base"] == {"context": 64, "share": 0.44, "threads": 1}
    _run(str(PLOT_SCALING), str(out), str(tmp_path / "scaling.svg"))
    # Both sides' decode and prefill, by context and by threads.
    assert (tmp_path / "scaling.svg").read_text().count("<polyline") == 8


def _agreement(outcome: Outcome) -> float:
    said = {(t.setting, t.session, t.turn): t.likely_token for t in outcome.turns}
    stock = {key: token for key, token in said.items() if key[0] == "stock"}
    return float(np.mean([said["ostinato", key[1], key[2]] == token for key, token in stock.items()]))


def _routing(build: EngineBuild, folder: Path, context: str) -> dict[str, float]:
    """Coverage and locality of a small synthetic model, measured through the engine's own counters."""
    out = folder / "routing.npz"
    _run(str(ROUTING), str(build.library_directory), str(_synthetic(folder, context)), str(out))
    with np.load(out) as measured:
        return {name: float(measured[name]) for name in measured.files}


def _synthetic(folder: Path, context: str) -> Path:
    """A model of 2 layers with 64 experts, whose routing follows topics before a token with the weight `context`."""
    file = folder / "synthetic.gguf"
    shape = ["--layers", "2", "--embd", "128", "--ff", "32", "--experts", "64", "--used", "6", "--type", "Q8_0"]
    shape += ["--heads", "2", "--kv-heads", "1", "--head-dim", "64", "--vocab", "4096", "--context", context]
    _run(str(SYNTHETIC), str(file), *shape)
    return file


def _run(*command: str) -> None:
    run_program([sys.executable, *command], timeout_s=100)
