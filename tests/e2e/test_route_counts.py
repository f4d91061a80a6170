"""The engine's route counters agree with an independent count of what each layer's router selected."""

from __future__ import annotations

import numpy as np
import pytest

from ostinatod.installer.engine_build import EngineBuild
from tests.e2e.conftest import RunWorker
from tests.e2e.workers.routes import N_DECODE, PROMPTS

pytestmark = pytest.mark.engine

N_LAYERS, N_EXPERTS, K = 8, 64, 8


def test_counters_agree_with_the_evaluation_callback(run_worker: RunWorker, engine_build: EngineBuild) -> None:
    counts = run_worker("routes", engine_build.library_directory)
    assert counts["prefill"].shape == (N_LAYERS, N_EXPERTS)
    assert (counts["prefill"] == counts["oracle_prefill"]).all()
    assert (counts["decode"] == counts["oracle_decode"]).all()


def test_counters_agree_with_the_evaluation_callback_when_experts_are_placed(
    run_worker: RunWorker, engine_build: EngineBuild
) -> None:
    counts = run_worker("routes", engine_build.library_directory, "0.4")
    assert counts["placed"]
    assert counts["prefill"].sum() > 0
    assert (counts["prefill"] == counts["oracle_prefill"]).all()
    assert (counts["decode"] == counts["oracle_decode"]).all()
    _, _, selected_cold = counts["cold"]
    assert 0 < selected_cold < counts["prefill"].sum() + counts["decode"].sum()


def test_every_token_of_a_pass_is_counted_k_times_in_its_phase(
    run_worker: RunWorker, engine_build: EngineBuild
) -> None:
    counts = run_worker("routes", engine_build.library_directory)
    # Two prefills of 57 and 130 tokens. The last layer computes only the tokens whose logits are wanted: one each.
    expected = np.full(N_LAYERS, sum(PROMPTS) * K)
    expected[-1] = len(PROMPTS) * K
    assert counts["prefill"].sum(axis=1).tolist() == expected.tolist()
    assert counts["decode"].sum(axis=1).tolist() == [len(PROMPTS) * N_DECODE * K] * N_LAYERS
