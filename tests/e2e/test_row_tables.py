"""The tables of rows, as they are made on a GPU, on the CPU with short lengths and the real engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ostinatod.installer.engine_build import EngineBuild
from ostinatod.models import bundled_file
from tests.e2e.programs import run_program

pytestmark = pytest.mark.engine

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SESSIONS = Path(__file__).parents[1] / "data" / "agent-sessions.npz"
SHORT = ("--device", "cpu", "--threads", "1", "--profile-tokens", "96", "--sessions", str(SESSIONS), "--seconds", "90")


def run(script: str, build: EngineBuild, out: Path, *options: str) -> tuple[dict[str, Any], str]:
    """What a script left and printed."""
    command = [sys.executable, str(BENCHMARKS / script), "--libraries", str(build.library_directory)]
    command += ["--model", str(bundled_file()), "--out", str(out), *SHORT, *options]
    printed = run_program(command, timeout_s=100)
    told: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return told, printed


def test_settings_are_timed_behind_every_context_and_say_what_the_first_one_says(
    engine_build: EngineBuild, tmp_path: Path
) -> None:
    settings = tmp_path / "settings.json"
    stock = {"name": "stock", "kind": "stock", "threads": 1}
    hot = {"name": "half hot", "kind": "ostinato", "threads": 1, "hot": 0.5, "lengths": [4], "repeats": 0, "borrow": -1}
    settings.write_text(json.dumps([stock, {**stock, "name": "again"}, hot]))
    lengths = ("--depths", "24,48", "--lengths", "4,8", "--decode-tokens", "3")
    told, printed = run("hot_experts.py", engine_build, tmp_path / "out.json", "--settings", str(settings), *lengths)
    first, again, placed = told["results"]
    said = [[row["depths"][depth]["texts"][0]["likely_token"] for depth in ("24", "48")] for row in (first, again)]
    assert [list(row["depths"]) for row in told["results"]] == [["48", "24"]] * 3
    assert [list(row["depths"]["24"]["prefill_ms"]) for row in told["results"]] == [["4", "8"], ["4", "8"], ["4"]]
    # The second row restored the contexts that the first one read.
    assert again["same_bits"]
    assert said[0] == said[1]
    assert not placed["same_bits"]
    assert placed["nmse"] < 1e-2
    # The hottest half of the experts takes more than half of the routes.
    assert 0.5 < placed["coverage"] < 1
    assert placed["devices"][0]["pool_used"] > 0
    # Stock divides nothing, and to a CPU nothing is uploaded.
    assert (first["upload_costs"], placed["upload_costs"]) == ([], [[]])
    assert "behind a context of 24 tokens" in printed


def test_the_ablation_adds_part_after_part(engine_build: EngineBuild, tmp_path: Path) -> None:
    options = (
        "--shares",
        "0.5",
        "--depth",
        "16",
        "--new-tokens",
        "4",
        "--decode-tokens",
        "3",
        "--texts",
        "2",
        "--threads-tried",
        "1",
    )
    told, printed = run("ablation.py", engine_build, tmp_path / "out.json", *options, "--stock", "first")
    entries = told["ablation"]
    assert [entry["row"] for entry in entries] == [
        "everything on the GPU",
        "stock, first 0 of 8 layers on the CPU",
        "two branches, no graphs",
        "+ graph",
        "+ link sharing",
        "+ borrowed memory",
    ]
    assert all(entry["p10_ms"] <= entry["step_ms"] <= entry["p90_ms"] for entry in entries)
    assert all(len(row["depths"]["16"]["texts"]) == 2 for row in told["results"])
    # Nothing is measured of a link without a GPU, so no floor is told.
    assert [entry.get("floor_ms") for entry in entries] == [None] * 6
    assert "50% hot" in printed
