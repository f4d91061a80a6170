"""What the engine's server answers does not depend on where experts lie: slots, embeddings, drafts, checkpoints."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from ostinatod.installer.engine_build import EngineBuild
from tests.e2e.conftest import MODEL
from tests.e2e.programs import ROOT, run_program
from tests.e2e.workers.served import PROMPTS, SLOTS, WITH_CHECKPOINTS

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

PACK = ROOT / "tests" / "data" / "architectures.tar.xz"

NEAR_TIE_NATS = 0.5
"""By so little the stock nodes may prefer another token where answers first differ. They themselves choose another one
for the same prompts, by up to 0.18 nats, when four are read in one batch instead of one after the other."""

EMBEDDINGS_NMSE = 1e-3
"""Measured: 8e-6."""


@pytest.fixture(scope="module")
def served(engine_build: EngineBuild, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What workers/served.py observed."""
    out = tmp_path_factory.mktemp("served") / "served.json"
    worker = (sys.executable, "-m", "tests.e2e.workers.served", str(engine_build.library_directory))
    run_program([*worker, str(MODEL), str(PACK), str(out)], timeout_s=280)
    result: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return result


def test_several_slots_in_one_batch_get_the_answers_of_the_stock_nodes(served: dict[str, Any]) -> None:
    assert (served["residency"]["state"], served["residency"]["hot_experts"]) == ("applied", 256)
    assert served["slots"]["half"]["busy_slots_per_decode"] > SLOTS / 2
    assert len(served["slots"]["disagreement"]) == len(PROMPTS)
    assert max(served["slots"]["disagreement"]) < NEAR_TIE_NATS


def test_embeddings_of_several_inputs_are_those_of_the_stock_nodes(served: dict[str, Any]) -> None:
    assert served["embeddings"]["shape"] == [len(PROMPTS), 512]
    assert 0 < served["embeddings"]["nmse"] < EMBEDDINGS_NMSE


@pytest.mark.parametrize(("drafts", "accepted"), [("looked up", True), ("of its own", False)])
def test_answers_whose_drafts_are_verified_are_those_of_the_stock_nodes(
    served: dict[str, Any], drafts: str, accepted: bool
) -> None:
    """Passes of two to eight tokens, of drafts that are right and, by a draft layer of noise, of some that are not."""
    observed = served["drafts"][drafts]
    assert observed["half"] == observed["stock"]
    assert observed["half"]["drafts"] > 20
    assert (observed["half"]["accepted"] > 20) is accepted


@pytest.mark.parametrize("model", WITH_CHECKPOINTS)
def test_conversations_that_go_back_to_a_checkpoint_get_the_tokens_of_the_stock_nodes(
    served: dict[str, Any], model: str
) -> None:
    turns = served["checkpoints"][model]
    assert turns["half"] == turns["stock"]
    # The first turn reads its 700 tokens; later ones go back to it and read a few more than what is new to them.
    assert [turn["read"] < 100 for turn in turns["half"]] == [False, True, True, True, True]
