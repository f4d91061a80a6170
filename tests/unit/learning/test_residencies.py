"""Which set an engine starts with, what is kept of every set, and how much room there is."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinatod.errors import PlanUnavailable
from ostinatod.learning.capacity import Capacity, capacity_from_engine, capacity_from_setting
from ostinatod.learning.effect import measure_effect
from ostinatod.learning.generations import Generation, Generations
from ostinatod.learning.residencies import Residencies
from ostinatod.profiles.experts import ModelExperts
from ostinatod.profiles.rates import Forgetting
from ostinatod.profiles.residency import read_residency, write_residency
from ostinatod.profiles.route_log import SessionRoutes
from ostinatod.store.records import ModelRecord
from tests.unit.learning.conftest import HALF, favours, logged
from tests.unit.profiles.test_imatrix import UP, write_imatrix

EXPERTS = ModelExperts(layers=(1, 2), expert_bytes=(100, 200), n_experts=(4, 4), k=2)


@pytest.fixture
def generations(tmp_path: Path) -> Generations:
    return Generations(tmp_path / "data" / "learning.db", tmp_path / "residency")


def residencies(
    generations: Generations, sessions: Sequence[SessionRoutes] = (), fraction: float = HALF
) -> Residencies:
    return Residencies(generations, lambda _: sessions, hot_experts_fraction=fraction, clock=lambda: 1000.5)


def hot_of(sets: Residencies, model: ModelRecord) -> list[list[int]] | None:
    file = sets.file(model)
    return None if file is None else favours(read_residency(file).mask())


def test_the_file_is_one_that_engines_read(generations: Generations, model: ModelRecord) -> None:
    file = residencies(generations).file(model)
    assert file is not None
    residency = read_residency(file)
    assert residency.layout.fingerprint == model.digest
    assert residency.layout.layers == (0, 1)
    assert (residency.generation, residency.created_at_s) == (1, 1000)
    assert residency.provenance["source"] == "day0"


def test_an_imatrix_beside_the_model_makes_the_first_set(generations: Generations, model: ModelRecord) -> None:
    counts = {UP.format(layer): [1, 1, 9, 9] for layer in (0, 1)}
    write_imatrix(model.parts[0].parent / "m-imatrix.gguf", counts)
    assert hot_of(residencies(generations), model) == [[2, 3], [2, 3]]
    (first,) = generations.history(model.digest)
    assert first.source == "imatrix"


def test_an_unusable_imatrix_is_passed_over(generations: Generations, model: ModelRecord) -> None:
    (model.parts[0].parent / "m-imatrix.gguf").write_bytes(b"GGUF but no more")
    assert hot_of(residencies(generations), model) == [[0, 2], [0, 2]]


def test_sessions_that_were_logged_before_make_the_first_set(generations: Generations, model: ModelRecord) -> None:
    assert hot_of(residencies(generations, [logged([1, 2], at=1)]), model) == [[1, 2], [1, 2]]
    (first,) = generations.history(model.digest)
    assert (first.source, first.sessions) == ("learned", 1)


def test_a_set_is_kept_as_long_as_it_fits(generations: Generations, model: ModelRecord) -> None:
    assert hot_of(residencies(generations), model) == [[0, 2], [0, 2]]
    sessions = [logged([1, 2], at=1)]
    # Other sessions alone are no reason to change at a load; less memory is.
    assert hot_of(residencies(generations, sessions), model) == [[0, 2], [0, 2]]
    assert hot_of(residencies(generations, sessions, fraction=0.25), model) == [[1, 2], []]
    assert [item.state for item in generations.history(model.digest)] == ["active", "superseded"]


def test_a_file_that_was_deleted_is_written_again(generations: Generations, model: ModelRecord) -> None:
    sets = residencies(generations)
    first = hot_of(sets, model)
    generations.active_file(model.digest).unlink()
    assert hot_of(sets, model) == first


@pytest.mark.parametrize("damage", ["cut", "of another generation"])
def test_a_file_that_is_not_the_active_set_is_written_again(
    generations: Generations, model: ModelRecord, damage: str
) -> None:
    sets = residencies(generations)
    first = hot_of(sets, model)
    file = generations.active_file(model.digest)
    whole = file.read_bytes()
    if damage == "cut":
        file.write_bytes(whole[:-20])
    else:
        # As a daemon leaves it that is killed between the file and its row.
        next_one = dataclasses.replace(read_residency(file), generation=2, hot=((2, 3), (2, 3)))
        write_residency(file, next_one)
    assert hot_of(sets, model) == first
    assert file.read_bytes() == whole


def test_without_the_setting_no_set_is_made_or_used(generations: Generations, model: ModelRecord) -> None:
    assert residencies(generations).file(model) is not None
    assert residencies(generations, fraction=0.0).file(model) is None


def test_sessions_of_another_shape_are_left_out(generations: Generations, model: ModelRecord) -> None:
    other = dataclasses.replace(logged([1], at=1), layers=(3, 4))
    sets = residencies(generations, [other])
    facts = sets.facts(model)
    assert facts is not None
    assert sets.sessions(facts) == ()


def test_a_damaged_database_never_keeps_a_model_from_loading(tmp_path: Path, model: ModelRecord) -> None:
    (tmp_path / "bad.db").write_bytes(b"no database at all, but long enough to be looked at" * 20)
    generations = Generations(tmp_path / "bad.db", tmp_path / "r")
    assert residencies(generations).file(model) is None
    with pytest.raises(PlanUnavailable, match=r"cannot be read or written: .*\nDelete .*bad.db"):
        generations.history(model.digest)


def test_a_change_that_cannot_be_written_changes_nothing(generations: Generations, model: ModelRecord) -> None:
    sets = residencies(generations)
    sets.file(model)
    path = generations.active_file(model.digest)
    path.unlink()
    path.mkdir()
    facts = sets.facts(model)
    assert facts is not None
    with pytest.raises(PlanUnavailable, match="cannot be read or written"):
        generations.activate(*sets.draft(facts, np.ones((2, 4), np.bool_), "learned", sessions=1))
    assert [(item.generation, item.state) for item in generations.history(model.digest)] == [(1, "active")]


def test_generations_survive_and_belong_to_their_model(tmp_path: Path, model: ModelRecord) -> None:
    places = (tmp_path / "learning.db", tmp_path / "residency")
    residencies(Generations(*places)).file(model)
    assert len(Generations(*places).history(model.digest)) == 1
    assert Generations(*places).history("other") == []
    with pytest.raises(KeyError):
        Generations(*places).residency(model.digest, 2)
    assert (places[0].stat().st_mode & 0o077) == 0


def test_the_setting_asks_for_a_share_of_all_bytes() -> None:
    # 4 * 100 + 4 * 200 bytes.
    assert capacity_from_setting(0.25, EXPERTS) == Capacity((300,), (0, 0), "hot_experts_fraction")
    assert capacity_from_setting(0.0, EXPERTS) is None


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"pool_bytes": 500}, ((500,), (0, 0))),
        ({"pool_bytes": [300, 400], "gpu_of_layer": [0, 1]}, ((300, 400), (0, 1))),
        ({"slots": 3}, ((600,), (0, 0))),
        ({}, None),
        (None, None),
        ({"pool_bytes": None}, None),
        ({"pool_bytes": True}, None),
        ({"pool_bytes": [300], "gpu_of_layer": None}, ((300,), (0, 0))),
        ({"pool_bytes": [300, 400]}, None),
        ({"pool_bytes": [300, 400], "gpu_of_layer": None}, None),
        ({"pool_bytes": [300], "gpu_of_layer": [0, 1]}, None),
        ({"pool_bytes": 300, "gpu_of_layer": [0]}, None),
        ({"slots": [4, "4"]}, None),
    ],
)
def test_what_an_engine_tells_of_its_memory(status: dict[str, Any] | None, expected: Any) -> None:
    found = capacity_from_engine(status, EXPERTS)
    assert (found and (found.pool_bytes, found.gpu)) == expected


def test_a_database_that_is_deleted_meanwhile_is_begun_anew(generations: Generations, model: ModelRecord) -> None:
    sets = residencies(generations)
    first = hot_of(sets, model)
    (file,) = generations.active_file(model.digest).parent.parent.rglob("learning.db")
    for name in ("learning.db", "learning.db-wal", "learning.db-shm"):
        file.with_name(name).unlink(missing_ok=True)
    assert generations.history(model.digest) == []
    assert hot_of(sets, model) == first
    assert [item.generation for item in generations.history(model.digest)] == [1]
    assert file.stat().st_mode & 0o777 == 0o600


def test_several_may_open_a_new_database_at_once_and_write_to_it(tmp_path: Path) -> None:
    capacity = Capacity((800,), (0, 0), "capacity test")
    for turn in range(5):
        begin = threading.Barrier(6)

        def work(name: str, begin: threading.Barrier = begin, turn: int = turn) -> Capacity | None:
            own = Generations(tmp_path / f"{turn}.db", tmp_path / "residency")
            begin.wait()
            for _ in range(5):
                own.keep_capacity(name, capacity)
            return own.capacity(name)

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(work, "abcdef")) == [capacity] * 6


def test_the_last_capacity_test_is_remembered(generations: Generations, model: ModelRecord) -> None:
    sets = residencies(generations, fraction=0.0)
    facts = sets.facts(model)
    assert facts is not None
    sets.learn_capacity(facts, {"slots": 2})
    sets.learn_capacity(facts, {})
    assert hot_of(sets, model) == [[0], [0]]


@pytest.mark.parametrize(
    ("unlearned", "expected"),
    [([200], (200,)), ([300], None), ([400], None), ([200, 100], None), (["200"], None), (None, None)],
)
def test_an_engine_that_lends_memory_tells_what_a_first_set_should_take(unlearned: Any, expected: Any) -> None:
    found = capacity_from_engine({"pool_bytes": [300], "unlearned_bytes": unlearned}, EXPERTS)
    assert found is not None
    assert (found.unlearned_bytes, found.first_bytes) == (expected, expected or (300,))


def test_while_nothing_is_learned_the_engine_lends_more_memory(generations: Generations, model: ModelRecord) -> None:
    log: list[SessionRoutes] = []
    sets = residencies(generations, log, fraction=0.0)
    facts = sets.facts(model)
    assert facts is not None
    (size,) = set(facts.experts.expert_bytes)
    sets.learn_capacity(facts, {"pool_bytes": [4 * size], "unlearned_bytes": [2 * size]})
    capacity = sets.capacity(facts)
    assert capacity == Capacity((4 * size,), (0, 0), "capacity test", (2 * size,))
    assert hot_of(sets, model) == [[0], [0]]
    # A learned set takes all that sets may take, and is judged against one that does.
    log.append(logged([1, 2], at=1))
    planned = sets.plan(facts, capacity).proposal
    assert planned is not None
    assert favours(planned.hot) == [[1, 2], [1, 2]]
    assert favours(sets.default(facts, capacity)) == [[0, 2], [0, 2]]


def test_a_first_set_follows_what_the_engine_has_to_lend(generations: Generations, model: ModelRecord) -> None:
    sets = residencies(generations, fraction=0.0)
    facts = sets.facts(model)
    assert facts is not None
    (size,) = set(facts.experts.expert_bytes)
    sets.learn_capacity(facts, {"pool_bytes": [4 * size]})
    assert hot_of(sets, model) == [[0, 2], [0, 2]]
    # An engine that lends memory, or has less to lend, gets a smaller one; one that has more keeps what it has.
    for room, made in ((2, 2), (3, 2), (2, 2)):
        sets.learn_capacity(facts, {"pool_bytes": [4 * size], "unlearned_bytes": [room * size]})
        assert hot_of(sets, model) == [[0], [0]]
        assert len(generations.history(model.digest)) == made
    # Where so little is left that it holds none, all of it is for hot experts: once, not at every load.
    sets.learn_capacity(facts, {"pool_bytes": [4 * size], "unlearned_bytes": [size // 2]})
    for _ in range(2):
        assert hot_of(sets, model) == [[0], [0]]
    generations.restore_file(model.digest, 2)


def test_flat_routes_that_were_logged_before_make_no_first_set(generations: Generations, model: ModelRecord) -> None:
    flat = [logged([], at=at) for at in range(3)]
    assert hot_of(residencies(generations, flat), model) == [[0, 2], [0, 2]]
    (first,) = generations.history(model.digest)
    assert first.source == "day0"


def test_an_imatrix_fills_all_of_the_memory(generations: Generations, model: ModelRecord) -> None:
    write_imatrix(model.parts[0].parent / "m-imatrix.gguf", {UP.format(layer): [1, 1, 9, 9] for layer in (0, 1)})
    sets = residencies(generations, fraction=0.0)
    facts = sets.facts(model)
    assert facts is not None
    (size,) = set(facts.experts.expert_bytes)
    sets.learn_capacity(facts, {"pool_bytes": [4 * size], "unlearned_bytes": [2 * size]})
    assert hot_of(sets, model) == [[2, 3], [2, 3]]


def test_an_effect_counts_only_sessions_that_began_after_the_change() -> None:
    hot = np.array([[True, True, False, False]] * 2)
    sessions = [logged([2, 3], at=1), *(logged([0, 1], at=at) for at in (5, 6, 7, 8))]
    even = np.array([[True, False, True, False]] * 2)
    active = Generation(2, 5, "learned", "active", 9, 4, 0, None, None, None, 0, "")
    effect = measure_effect(sessions, active, hot, ~hot, even, [30.0, 10.0, 20.0], Forgetting())
    assert effect.sessions == 4
    assert effect.coverage == pytest.approx(40 / 42)
    assert effect.tpot_ms == 20.0
    assert not effect.is_worse
    assert (effect.shortfall.below, effect.shortfall.among) == (0, 4)
    assert measure_effect(sessions, active, ~hot, hot, even, [], Forgetting()).is_worse
    early = measure_effect(sessions[:3], active, ~hot, hot, even, [], Forgetting())
    assert not early.is_worse
    # Two sessions began since; 2/42 of the routes of each are less than the even set's half.
    assert (early.shortfall.below, early.shortfall.among) == (2, 2)
    assert early.shortfall.coverage == pytest.approx(2 / 42)
    assert early.shortfall.coverage_default == pytest.approx(0.5)
