"""What benchmarks/peers times of our own engine without a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.peers.cpu_experts import main
from ostinatod.installer.engine_build import EngineBuild
from tests.unit.peers.mxfp4_layer import write_layer

pytestmark = pytest.mark.engine


def test_the_cpu_branch_answers_with_the_products_of_cold_experts(
    engine_build: EngineBuild, pinned_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = write_layer(tmp_path, n_in=512, n_ff=256), tmp_path / "result.json"
    options = {
        "model": model, "out": out, "libraries": engine_build.library_directory, "threads": 2,
        "headers": pinned_source / "ggml" / "include", "methods": "", "cases": "1:1,1:3,20", "steps": 10,
    }  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["cpu_experts", *(f"--{name}={value}" for name, value in options.items())])

    code = main()

    engines = json.loads(out.read_text(encoding="utf-8"))["engines"]
    assert code == 0, engines
    cases = engines["ostinato"]["cases"]
    assert [case["cold_routes"] for case in cases[:2]] == [1, 3]
    assert all(case["ms"] > 0 and 0 < case["nmse"] < 1e-3 for case in cases)
