"""Placement does not change what a model computes on a GPU: pools, skipped routes, the CPU branch, uploads.

Needs an engine built for CUDA and a GPU. OSTINATO_GPU_MODELS names further GGUF files, separated by colons.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ostinatod.errors import EngineNotBuilt
from ostinatod.installer.engine_build import find_engine
from ostinatod.models import bundled_file
from tests.e2e.workers.gpu_placement import MODES

MODELS = [bundled_file(), *(Path(name) for name in os.environ.get("OSTINATO_GPU_MODELS", "").split(":") if name)]
NOISE_SHARE = 4.0
"""Of what llama.cpp's own batching does to the same logits."""


def cuda_libraries() -> Path:
    """Skips where this machine has no engine for CUDA."""
    try:
        build = find_engine()
    except EngineNotBuilt:
        pytest.skip("no engine is built")
    if build.backend != "cuda":
        pytest.skip("the engine is built for the CPU")
    return build.library_directory


@pytest.mark.engine
@pytest.mark.timeout(600)
@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.stem)
def test_a_gpu_computes_the_same_wherever_experts_lie(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "cases.json"
    command = [sys.executable, "-m", "tests.e2e.workers.gpu_placement", str(cuda_libraries()), str(model), str(out)]
    subprocess.run(command, check=True, timeout=600, env={**os.environ, "CUDA_MODULE_LOADING": "EAGER"})
    result = json.loads(out.read_text(encoding="utf-8"))
    assert {case["mode"] for case in result["cases"]} == set(MODES)
    for case in result["cases"]:
        assert case["repeats"], case
        assert case["nmse"] <= NOISE_SHARE * result["noise"], case
        if case["mode"] == "split" and case["placement"] == "all_hot":
            assert case["nmse"] == 0.0, case
    assert any(case["uploaded_experts"] > 0 for case in result["cases"])
