"""The engine on a GPU: steps bit for bit, counters, the server's answers, and what its faults look like to clients.

Needs an engine built for CUDA and a GPU. OSTINATO_GPU_MODELS names further GGUF files, separated by colons.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ostinatod.models import bundled_file
from tests.e2e.test_served_placement import EMBEDDINGS_NMSE, NEAR_TIE_NATS
from tests.e2e.workers.tiny_recipes import Encoder, make_model, read_pack
from tests.gpu.conftest import PACK, ROOT, RunGpuWorker

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

MODEL = bundled_file()
FURTHER = [Path(name) for name in os.environ.get("OSTINATO_GPU_MODELS", "").split(":") if name]


BORROWING = ("--borrow-every", 7, "--share", 0.3, "--pool-mib", 21)
"""A pool that does not hold all experts, so that there is staging memory to lend. 16 MiB of it are no experts'."""

RECORDING = ("--record", "--share", 0.3, "--pool-mib", 21)

STEPS = 2000


@pytest.fixture(scope="session")
def wide_model(cuda_libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts that a share can be taken of, of six types: the bundled model's have 64 hidden columns, the least there
    can be.
    """
    recipe = next(recipe for recipe in read_pack(PACK) if recipe.name == "qwen3moe")
    path = tmp_path_factory.mktemp("wide") / "wide.gguf"
    make_model(recipe, "quantised", Encoder(cuda_libraries), path)
    return path


@pytest.mark.parametrize(
    ("link_percent", "borrowing"),
    [(-1, ()), (40, ()), (40, BORROWING), (-1, RECORDING)],
    ids=["split", "link", "link-and-borrowed-memory", "memory-borrowed-as-serving-does"],
)
def test_two_thousand_steps_equal_those_of_a_synchronous_reference(
    run_gpu_worker: RunGpuWorker, wide_model: Path, link_percent: int, borrowing: tuple[object, ...]
) -> None:
    more = ("--device", "gpu", "--steps", STEPS, "--swap-every", 400, "--idle-s", 12, "--link-percent", link_percent)
    model = wide_model if link_percent > 0 else MODEL
    result = run_gpu_worker("bitwise", model, "OUT", *more, *borrowing)
    assert (result["differs_from_reference_at"], result["differs_from_itself_at"]) == (None, None)
    assert result["distinct_outputs"] == STEPS + 1
    assert result["answers_waited_for"] > STEPS
    assert (max if "--record" in borrowing else min)(result["borrowed"], default=0) > 0 or not borrowing
    for devices in result["devices"]:
        assert (devices[0]["linked"] > 0) is (link_percent > 0)
    engine, _, reference = result["graphs"]
    for tokens, least in (("one_token", 0.85), ("several_tokens", 0.5)):
        _, replays, direct = engine[tokens]
        assert replays > least * (replays + direct) > 0
        assert reference[tokens][1] == 0


@pytest.mark.parametrize("model", FURTHER, ids=lambda path: path.stem)
def test_steps_of_a_large_model_equal_those_of_a_synchronous_reference(
    run_gpu_worker: RunGpuWorker, model: Path
) -> None:
    result = run_gpu_worker("bitwise", model, "OUT", "--device", "gpu", "--steps", 500, "--swap-every", 150)
    assert (result["differs_from_reference_at"], result["differs_from_itself_at"]) == (None, None)


@pytest.mark.parametrize("upload_tokens", [1 << 30, 32], ids=["split", "upload"])
def test_counters_agree_with_the_evaluation_callback(
    cuda_libraries: Path, run_worker: RunGpuWorker, upload_tokens: int
) -> None:
    counts = run_worker("routes", cuda_libraries, "0.4", "gpu", str(upload_tokens))
    assert np.array_equal(counts["prefill"], counts["oracle_prefill"])
    assert np.array_equal(counts["decode"], counts["oracle_decode"])
    published, by_cpu, selected = counts["cold"]
    assert published == selected > 0
    assert by_cpu == published if upload_tokens > 1000 else by_cpu < published


def test_the_server_answers_what_stock_nodes_answer(run_gpu_worker: RunGpuWorker) -> None:
    served = run_gpu_worker("served", MODEL, PACK, "OUT", "--device", "gpu")
    assert max(served["slots"]["disagreement"]) < NEAR_TIE_NATS
    assert served["slots"]["half"]["busy_slots_per_decode"] > 2
    assert 0 < served["embeddings"]["nmse"] < EMBEDDINGS_NMSE
    # No token of the repeated text is nearly tied; those of a model of noise are.
    looked_up, of_its_own = (served["drafts"][name] for name in ("looked up", "of its own"))
    assert looked_up["half"] == looked_up["stock"]
    assert looked_up["half"]["accepted"] > 20
    assert of_its_own["half"]["drafts"] > 20
    for turns in served["checkpoints"].values():
        assert [turn["read"] for turn in turns["half"]] == [turn["read"] for turn in turns["stock"]]


def test_a_saved_prompt_is_gone_on_with_after_a_restart(run_gpu_worker: RunGpuWorker) -> None:
    saved = run_gpu_worker("saved_prompts", MODEL, PACK, "OUT", "--device", "gpu")
    for placements in saved["models"].values():
        for observed in placements.values():
            assert observed["restored"] == observed["goes_on"]
            assert observed["restored"]["read"] < 30


def test_no_fault_gives_a_wrong_answer_or_hangs(run_gpu_worker: RunGpuWorker, faults_library: Path) -> None:
    result = run_gpu_worker("gpu_faults", MODEL, faults_library, "OUT")
    assert result["bad"] == []
    assert all(observed.get("taken", True) for observed in result["observations"])


def test_products_leave_out_routes_and_are_right_in_every_other_row(programs: Path, cuda_libraries: Path) -> None:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(cuda_libraries)}
    program = [str(programs / "ostinato-skip-test")]
    done = subprocess.run(program, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout
    assert "zero slots and skipped" in done.stdout
