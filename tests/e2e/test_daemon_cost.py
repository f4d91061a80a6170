"""The daemon's cost over its engine, measured on the real ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ostinatod.installer.engine_build import EngineBuild
from ostinatod.models import bundled_file

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "daemon_cost.py"

pytestmark = pytest.mark.engine


def test_the_cost_is_measured_with_an_engine_and_a_model_that_are_files(
    engine_build: EngineBuild, tmp_path: Path
) -> None:
    out = tmp_path / "cost.json"
    command = [sys.executable, str(SCRIPT), "--libraries", str(engine_build.library_directory)]
    command += ["--model", str(bundled_file()), "--requests", "2", "--tokens", "2", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text(encoding="utf-8"))
    assert (result["pairs"], result["daemon_core_ms"]["requests"]) == (2, 8)
    assert result["ttft"]["engine_ms"] > 0
    assert result["whole"]["daemon_ms"] > 0
    assert "core time of the daemon" in done.stdout
