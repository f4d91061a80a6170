"""Where experts lie does not change what the model computes: two branches against the stock nodes, on the CPU."""

from __future__ import annotations

import pytest

from ostinatod.installer.engine_build import EngineBuild
from ostinatod.verification import nmse
from tests.e2e.conftest import RunWorker

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

MIXED_NMSE = 1e-3
"""Hot and cold routes are summed apart, so a token's sum is rounded in another order; layers amplify that, most where
a router's choice is nearly a tie. Measured here: 1.9e-4 (half), 8.2e-5 (random) and 1.2e-4 (all cold). The stock nodes
differ from themselves by 4.9e-4 when the same 173 tokens are read in one pass instead of five."""


def test_a_pool_that_holds_every_expert_changes_no_bit(run_worker: RunWorker, engine_build: EngineBuild) -> None:
    logits = run_worker("placement", engine_build.library_directory)
    assert logits["all_hot"].tobytes() == logits["stock"].tobytes()


def test_mixed_placements_stay_within_rounding_of_the_stock_nodes(
    run_worker: RunWorker, engine_build: EngineBuild
) -> None:
    logits = run_worker("placement", engine_build.library_directory)
    for placement in ("all_cold", "half", "random"):
        assert nmse(logits[placement], logits["stock"]) < MIXED_NMSE, placement
        same = logits[placement].argmax(axis=1) == logits["stock"].argmax(axis=1)
        assert same.mean() > 0.95, placement


def test_the_cpu_branch_does_not_depend_on_the_number_of_threads(
    run_worker: RunWorker, engine_build: EngineBuild
) -> None:
    logits = run_worker("placement", engine_build.library_directory)
    assert logits["random"].tobytes() == logits["random_2_threads"].tobytes()


def test_a_prefix_of_vectors_is_read_as_the_stock_nodes_read_it(
    run_worker: RunWorker, engine_build: EngineBuild
) -> None:
    """What an image becomes: rows without token ids. Measured here: 8e-5 (half) and 7e-5 (all cold)."""
    logits = run_worker("embedded_prefix", engine_build.library_directory)
    text = len(logits["without"])
    assert nmse(logits["without"], logits["stock"][-text:]) > 10 * MIXED_NMSE  # the prefix tells
    for placement in ("half", "all_cold"):
        assert 0 < nmse(logits[placement], logits["stock"]) < MIXED_NMSE, placement
        same = logits[placement].argmax(axis=1) == logits["stock"].argmax(axis=1)
        assert same.mean() > 0.95, placement
        assert set(logits[f"{placement}_routes"]) == {8 * len(logits["stock"])}
