"""A small version of the load test: every answer reaches its own client, and nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ostinatod import locations
from ostinatod.installer.engine_build import EngineBuild

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "load_test.py"


@pytest.mark.engine
@pytest.mark.timeout(420)
def test_no_answer_is_lost_or_crossed_and_nothing_is_left(engine_build: EngineBuild, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, str(SCRIPT), "--clients", "8", "--requests", "60", "--out", str(result)]
    environment = {**os.environ, "OSTINATO_ENGINE_CACHE": str(locations.engine_cache_dir())}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    told = json.loads(result.read_text())
    assert told["problems"] == []
    outcomes = told["outcomes"]
    assert outcomes.get("right", 0) + outcomes.get("different", 0) + outcomes.get("left", 0) == 60
    assert outcomes["right"] >= 30
    assert set(told["by_dialect"]) == {
        *("chat", "completions", "responses", "messages", "ollama-chat", "ollama-generate"),
    }
