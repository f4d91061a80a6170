"""The daemon's learning over a model in this process: a file's headers, and sets that are handed to a function."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from daemon_learning import DaemonLearning, Mask
from learning_replay import wild_session

from ostinatod.errors import EngineError, PlanUnavailable
from ostinatod.profiles.experts import read_experts
from ostinatod.profiles.gguf_model import read_model
from tests.fakes.gguf import write_model
from tests.unit.learning.conftest import favours, logged

EVEN, FIRST, LAST = [[0, 2], [0, 2]], [[0, 1], [0, 1]], [[2, 3], [2, 3]]


class Model:
    """Remembers the sets that it was given; refuses some."""

    def __init__(self, directory: Path) -> None:
        self.file = write_model(directory / "m.gguf")
        experts = read_experts(read_model([self.file]))
        assert experts is not None
        self.pool_bytes = experts.places().total_bytes // 2
        self.sets: list[Any] = []
        self.refused: list[list[int]] | None = None

    def use(self, hot: Mask) -> dict[str, Any]:
        if favours(hot) == self.refused:
            raise EngineError("does not fit")
        self.sets.append(favours(hot))
        return {"moved": 3, "swap_ms": 1.5}


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path)


def test_the_model_is_given_what_the_daemon_decides(model: Model, tmp_path: Path) -> None:
    learning = DaemonLearning(model.file, model.pool_bytes, model.use, tmp_path)
    assert (favours(learning.running), learning.active.source) == (EVEN, "day0")
    learning.ended(logged([2, 3], at=1), time.time(), [2.0, 4.0])
    applied = learning.look()
    assert applied is not None
    assert (applied.moved, applied.swap_ms) == (3, 1.5)
    assert model.sets == [EVEN, LAST]
    assert favours(learning.running) == LAST
    assert learning.look() is None
    # What the first answers took is the first set's.
    first = learning.history()[-1]
    assert (first.generation, first.tpot_ms_measured) == (1, 3.0)


def test_sessions_that_were_logged_before_are_learned_at_once(model: Model, tmp_path: Path) -> None:
    learning = DaemonLearning(model.file, model.pool_bytes, model.use, tmp_path, [logged([0, 1], at=1)])
    assert model.sets == [FIRST]
    assert learning.active.source == "learned"


def test_a_set_that_the_model_refuses_is_not_in_use(model: Model, tmp_path: Path) -> None:
    learning = DaemonLearning(model.file, model.pool_bytes, model.use, tmp_path)
    model.refused = LAST
    learning.ended(logged([2, 3], at=1), time.time())
    with pytest.raises(PlanUnavailable, match="does not fit"):
        learning.look()
    assert favours(learning.running) == EVEN


def test_a_set_that_was_learned_from_a_wild_session_is_left_after_a_real_one(model: Model, tmp_path: Path) -> None:
    real = logged([0, 1], at=1)
    wild = wild_session([real])
    assert favours(wild.decode > 0) == LAST
    learning = DaemonLearning(model.file, model.pool_bytes, model.use, tmp_path)
    learning.ended(wild, time.time())
    learning.look()
    assert favours(learning.running) == LAST
    learning.ended(real, time.time())
    learning.look()
    assert (favours(learning.running), learning.active.source) == (EVEN, "undo")
    assert "without any learning" in learning.active.note
