"""Placement does not change what a model computes on a GPU: pools, skipped routes, the CPU branch, shares, uploads.

Needs an engine built for CUDA and a GPU. OSTINATO_GPU_MODELS names further GGUF files, separated by colons.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ostinatod.models import bundled_file
from ostinatod.verification import nmse
from tests.e2e.test_placement import MIXED_NMSE
from tests.e2e.workers.gpu_placement import MODES
from tests.gpu.conftest import PACK, ROOT, RunGpuWorker

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

MODELS = [bundled_file(), *(Path(name) for name in os.environ.get("OSTINATO_GPU_MODELS", "").split(":") if name)]
NOISE_SHARE = 4.0
"""Of what llama.cpp's own batching does to the same logits."""


@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.stem)
def test_a_gpu_computes_the_same_wherever_experts_lie(model: Path, run_gpu_worker: RunGpuWorker) -> None:
    result = run_gpu_worker("gpu_placement", model, "OUT")
    assert {case["mode"] for case in result["cases"]} == set(MODES)
    for case in result["cases"]:
        assert case["repeats"], case
        assert case["nmse"] <= NOISE_SHARE * result["noise"], case
        if case["mode"] == "split" and case["placement"] == "all_hot":
            assert case["nmse"] == 0.0, case
    used = {
        "choice": "uploaded_experts",
        "upload": "uploaded_experts",
        "threshold": "uploaded_experts",
        "borrowed": "lent",
    }
    for mode, counter in used.items():
        cold = [case for case in result["cases"] if case["mode"] == mode and case["cold_routes"] > 0]
        assert cold
        assert all(case[counter] > 0 for case in cold), mode


def test_graphs_have_room_for_a_second_chain_of_products(run_gpu_worker: RunGpuWorker, tmp_path: Path) -> None:
    """Eight experts per token and few tensors: the scheduler sizes its tables by the number of tensors."""
    model = tmp_path / "many-selected.gguf"
    shape = {
        "layers": 24,
        "embd": 512,
        "ff": 256,
        "experts": 32,
        "used": 8,
        "heads": 4,
        "kv-heads": 2,
        "type": "Q4_K",
        "vocab": 2048,
    }
    options = [word for name, value in shape.items() for word in (f"--{name}", str(value))]
    writer = str(ROOT / "benchmarks" / "synthetic_model.py")
    subprocess.run([sys.executable, writer, str(model), *options], check=True, capture_output=True, timeout=120)
    result = run_gpu_worker("gpu_placement", model, "OUT")
    assert any(case["uploaded_experts"] > 0 for case in result["cases"])


def test_no_architecture_computes_anything_else_wherever_experts_lie(run_gpu_worker: RunGpuWorker) -> None:
    result = run_gpu_worker("gpu_architectures", PACK, "OUT")
    assert result["failed"] == []
    assert len(result["architectures"]) > 60
    cases = [case for architecture in result["architectures"] for case in architecture["cases"]]
    assert any(case["uploaded"] > 0 for case in cases)
    assert any(case["linked"] > 0 for case in cases)


def test_a_prefix_of_vectors_is_read_as_the_stock_nodes_read_it(cuda_libraries: Path, run_worker: RunGpuWorker) -> None:
    logits = run_worker("embedded_prefix", cuda_libraries, "gpu")
    for placement in ("half", "all_cold"):
        assert 0 < nmse(logits[placement], logits["stock"]) < MIXED_NMSE, placement
        assert set(logits[f"{placement}_routes"]) == {8 * len(logits["stock"])}
