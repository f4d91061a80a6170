"""Learning between sessions, with an engine that swaps, one that must be restarted, and one that refuses."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ostinatod.config import FOREVER_S
from ostinatod.errors import PlanUnavailable
from ostinatod.learning.application import Applied
from ostinatod.learning.generations import Generation
from ostinatod.learning.model_files import ModelFiles
from ostinatod.learning.service import LearningService
from ostinatod.store.records import ModelRecord
from tests.conftest import PATIENCE_S, ScriptedEngine, eventually
from tests.fakes.gguf import Tensor, model_metadata, write
from tests.fakes.memory_store import record
from tests.unit.learning.conftest import Learning, RunLearning, favours, load, logged

FIRST, LAST = [[0, 1], [0, 1]], [[2, 3], [2, 3]]


def states(learning: Learning, model: ModelRecord) -> list[tuple[int, str, str]]:
    return [(item.generation, item.source, item.state) for item in learning.service.generations.history(model.digest)]


def running(learning: Learning, model: ModelRecord) -> list[list[int]] | None:
    return favours(learning.residencies.running(model.digest))


async def until(condition: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    ends_at = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends_at
        await asyncio.sleep(0.02)


async def engine_generation(learning: Learning, model: ModelRecord) -> int:
    client = learning.loaded.engine_client(model)
    assert client is not None
    status = await client.get_json("/ostinato/status")
    assert isinstance(status, dict)
    return int(status["residency"]["generation"])


def test_the_first_load_starts_with_an_even_set(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        await load(learning, model)
        assert states(learning, model) == [(1, "day0", "active")]
        assert running(learning, model) == [[0, 2], [0, 2]]
        assert await engine_generation(learning, model) == 1

    learn(body)


def test_without_room_for_hot_experts_engines_run_the_stock_code(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        await load(learning, model)
        assert await engine_generation(learning, model) == 0
        learned = await learning.service.learned(model)
        assert learned.plan.proposal is None
        assert "No memory is set aside" in learned.plan.skew.sentence
        with pytest.raises(PlanUnavailable, match="No memory is set aside"):
            await learning.service.apply(model)

    learn(body, hot_experts_fraction=0.0)


def test_an_engine_on_gpus_without_a_pool_is_left_alone(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        await load(learning, model)
        before = states(learning, model)
        learning.log.append(logged([2, 3], at=1))
        assert await learning.service.consider(model) is None
        assert states(learning, model) == before
        assert await engine_generation(learning, model) == 0

    learn(body, backend="cuda", gpu_experts="stock")


def test_one_session_improves_on_the_first_set(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> Applied | None:
        await load(learning, model)
        learning.log.append(logged([2, 3], at=1))
        applied = await learning.service.consider(model)
        assert running(learning, model) == LAST
        assert states(learning, model) == [(2, "learned", "active"), (1, "day0", "superseded")]
        assert await engine_generation(learning, model) == 2
        return applied

    assert learn(body) == Applied(generation=2, moved=3, swap_ms=1.5)


def test_an_engine_that_cannot_swap_is_restarted_with_the_new_set(
    learn: RunLearning, model: ModelRecord, scripted_engine: ScriptedEngine
) -> None:
    async def body(learning: Learning) -> Applied | None:
        await load(learning, model)
        learning.log.append(logged([2, 3], at=1))
        applied = await learning.service.consider(model)
        assert await engine_generation(learning, model) == 2
        return applied

    # The even set [0, 2] becomes [2, 3]: one expert of each layer has to be copied.
    assert learn(body, script={"residency": "restart"}) == Applied(generation=2, moved=2, swap_ms=None)
    assert len(scripted_engine.events("start")) == 2


def test_a_model_that_stays_in_memory_stays_after_a_restart(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        await learning.loaded.load(model, lambda _: None, keep_alive_s=FOREVER_S)
        learning.log.append(logged([2, 3], at=1))
        await learning.service.apply(model)
        loaded = learning.loaded.find(model)
        assert loaded is not None
        assert loaded.expires_at is None

    learn(body, script={"residency": "restart"})


def test_a_restart_waits_for_the_request_in_flight(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        await load(learning, model)
        learning.log.append(logged([2, 3], at=1))
        async with learning.loaded.lease(model):
            applying = asyncio.create_task(learning.service.apply(model))
            done, _ = await asyncio.wait({applying}, timeout=0.3)
            assert not done
        assert (await applying).generation == 2

    learn(body, script={"residency": "restart"})


def test_a_set_that_the_engine_refuses_is_not_kept(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        await load(learning, model)
        learning.log.append(logged([2, 3], at=1))
        with pytest.raises(PlanUnavailable, match="refused the set: does not fit"):
            await learning.service.apply(model)
        assert states(learning, model) == [(1, "day0", "active")]

    learn(body, script={"residency": "refuse"})


def test_a_set_that_a_restarted_engine_refuses_is_taken_back(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        await load(learning, model)
        learning.log.append(logged([2, 3], at=1))
        with pytest.raises(PlanUnavailable, match="refused generation 2: does not fit"):
            await learning.service.apply(model)
        assert states(learning, model) == [(2, "learned", "rolled_back"), (1, "day0", "active")]
        assert running(learning, model) == [[0, 2], [0, 2]]

    learn(body, script={"residency": "restart", "refused": [2]})


def test_a_model_that_is_not_loaded_gets_its_set_with_the_next_load(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        learning.log.append(logged([2, 3], at=1))
        applied = await learning.service.apply(model)
        assert applied == Applied(generation=1, moved=4, swap_ms=None)
        await load(learning, model)
        assert await engine_generation(learning, model) == 1
        assert running(learning, model) == LAST

    learn(body)


def test_small_gains_are_proposed_but_not_applied(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        learning.log += [logged([0, 1], at=at) for at in range(4)]
        await learning.service.apply(model)
        # The running set has one of the two favourites, 21 of 42 routes; the new one both, 40 of 42.
        learning.log += [logged([1, 2], at=at) for at in range(4, 30)]
        learned = await learning.service.learned(model)
        assert learned.plan.proposal is not None
        gain = learned.plan.proposal.gain
        assert gain is not None
        assert gain < 0.5
        assert await learning.service.consider(model) is None
        assert (await learning.service.apply(model)).generation == 2

    learn(body, learn_min_gain=0.5)


def test_what_is_running_is_not_proposed_again(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        learning.log.append(logged([2, 3], at=1))
        await learning.service.apply(model)
        assert (await learning.service.learned(model)).plan.proposal is None
        assert await learning.service.consider(model) is None
        with pytest.raises(PlanUnavailable, match="the set in use is the one that would be planned"):
            await learning.service.apply(model)

    learn(body)


def test_undo_returns_to_the_set_before_and_further_back(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        await load(learning, model)
        learning.log.append(logged([2, 3], at=1))
        await learning.service.apply(model)
        learning.log += [logged([0, 1], at=at) for at in range(2, 30)]
        await learning.service.apply(model)
        assert running(learning, model) == FIRST

        await learning.service.undo(model)
        assert running(learning, model) == LAST
        await learning.service.undo(model)
        assert running(learning, model) == [[0, 2], [0, 2]]
        assert await engine_generation(learning, model) == 5
        with pytest.raises(PlanUnavailable, match="no set before"):
            await learning.service.undo(model)
        assert states(learning, model) == [
            (5, "undo", "active"),
            (4, "undo", "rolled_back"),
            (3, "learned", "rolled_back"),
            (2, "learned", "superseded"),
            (1, "day0", "superseded"),
        ]

    learn(body)


def test_after_an_undo_it_takes_new_sessions_to_change_again(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        await load(learning, model)
        learning.log += [logged([2, 3], at=at) for at in range(4)]
        await learning.service.apply(model)
        await learning.service.undo(model)
        assert await learning.service.consider(model) is None
        later = learning.clock.now + 1
        learning.log += [logged([2, 3], at=later + at) for at in range(3)]
        assert await learning.service.consider(model) is not None
        assert running(learning, model) == LAST

    learn(body)


def test_a_generation_that_does_worse_is_taken_back_by_itself(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        learning.log += [logged([0, 1], at=at) for at in range(6)]
        await learning.service.apply(model)
        learning.log += [logged([2, 3], at=at) for at in range(6, 29)]
        learning.log.append(logged([1], at=29, times=2))
        await learning.service.apply(model)
        # Work that the set before would have served a little better; two such sessions do not tell, three do.
        later = learning.clock.now + 1
        learning.log += [logged([1], at=later + at, times=2) for at in range(2)]
        assert await learning.service.consider(model) is None
        learning.log.append(logged([1], at=later + 2, times=2))
        learning.tpots[2] = [31.0, 29.0, 30.0]
        assert await learning.service.consider(model) is not None

        assert running(learning, model) == FIRST
        newest, worse, _ = learning.service.generations.history(model.digest)
        assert (newest.source, worse.state) == ("undo", "rolled_back")
        # Of 5 routes of each layer, 2 went to the hot experts, where the set before would have had 3.
        assert worse.coverage_measured == pytest.approx(0.4)
        assert (worse.tpot_ms_measured, worse.sessions_measured) == (30.0, 3)
        assert "generation 2 covered 40.0% of 3 sessions, the set before would have covered 60.0%" in newest.note

    learn(body, learn_min_gain=0.99)


def test_a_wild_log_is_left_after_one_session(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        await load(learning, model)
        learning.log.append(logged([1, 3], at=1, times=1_000_000))
        await learning.service.consider(model)
        assert running(learning, model) == [[1, 3], [1, 3]]
        later = learning.clock.now + 1
        learning.log.append(logged([0, 2], at=later))
        await learning.service.consider(model)
        assert running(learning, model) == [[0, 2], [0, 2]]
        assert states(learning, model) == [
            (3, "undo", "active"),
            (2, "learned", "rolled_back"),
            (1, "day0", "superseded"),
        ]
        newest = learning.service.generations.history(model.digest)[0]
        assert newest.note == (
            "in 1 of its newest 1 session generation 2 covered 4.8%, where a set without any learning would have "
            "covered 95.2%; the set of generation 1"
        )

    learn(body)


def test_where_no_set_before_is_better_the_default_comes_back(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        # The model is loaded for the first time with a log that is wild already.
        learning.log.append(logged([1, 3], at=1, times=1_000_000))
        await load(learning, model)
        assert states(learning, model) == [(1, "learned", "active")]
        learning.log.append(logged([0, 2], at=learning.clock.now + 1))
        await learning.service.consider(model)
        assert running(learning, model) == [[0, 2], [0, 2]]
        assert states(learning, model) == [(2, "undo", "active"), (1, "learned", "rolled_back")]
        newest = learning.service.generations.history(model.digest)[0]
        assert newest.note.endswith("would have covered 95.2%; the set without any learning")

    learn(body)


def test_what_is_better_than_the_running_set_but_worse_than_none_is_not_applied(
    learn: RunLearning, model: ModelRecord
) -> None:
    async def body(learning: Learning) -> None:
        learning.log.append(logged([1, 3], at=1, times=1_000_000))
        await load(learning, model)
        # The wild session and the next one make [0, 1], which covers 4 of the last one's 25 parts: better than 2 of 25
        # of the running set, worse than a set without any learning.
        before = learning.clock.now - 10
        last = logged([2], at=before + 1)
        last = dataclasses.replace(last, decode=last.decode * np.array([3, 1, 1, 1]))
        learning.log += [logged([0], at=before), last]
        proposal = (await learning.service.learned(model)).plan.proposal
        assert proposal is not None
        assert proposal.gain == pytest.approx(2 / 25)
        assert await learning.service.consider(model) is None

    learn(body)


def test_uniform_routing_changes_nothing_by_itself(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        await load(learning, model)
        learning.log += [logged([], at=at) for at in range(5)]
        assert await learning.service.consider(model) is None
        assert not (await learning.service.learned(model)).plan.skew.useful

    learn(body)


def test_an_idle_model_is_looked_at_without_being_asked(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        learns = asyncio.create_task(learning.service.run())
        await load(learning, model)
        learning.log.append(logged([2, 3], at=1))
        await until(lambda: running(learning, model) == LAST)
        learns.cancel()
        await asyncio.gather(learns, return_exceptions=True)

    learn(body, learn_idle_s=0.1)


def test_a_model_that_leaves_memory_before_it_is_looked_at_is_learned_from(
    learn: RunLearning, model: ModelRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinatod.learning.service.LOOK_EVERY_S", 0.05)

    async def body(learning: Learning) -> None:
        learns = asyncio.create_task(learning.service.run())
        await load(learning, model)
        learning.log.append(logged([2, 3], at=1))
        # Seen often, but not idle for long enough.
        await asyncio.sleep(1.0)
        assert await learning.loaded.unload(model)
        assert states(learning, model) == [(1, "day0", "active")]
        await until(lambda: running(learning, model) == LAST)
        await load(learning, model)
        assert await engine_generation(learning, model) == 2
        learns.cancel()
        await asyncio.gather(learns, return_exceptions=True)

    learn(body, learn_idle_s=3600.0)


def test_the_room_that_an_engine_tells_is_kept_though_it_is_gone_before_the_first_look(
    learn: RunLearning, model: ModelRecord
) -> None:
    async def body(learning: Learning) -> None:
        learns = asyncio.create_task(learning.service.run())
        await load(learning, model)
        facts = learning.residencies.facts(model)
        assert facts is not None
        await until(lambda: learning.residencies.capacity(facts) is not None)
        assert await engine_generation(learning, model) == 0
        learns.cancel()
        await asyncio.gather(learns, return_exceptions=True)

    learn(body, script={"told": {"slots": 3}}, hot_experts_fraction=0.0, learn_idle_s=1.0)


def test_what_was_logged_when_the_daemon_ended_is_learned_from_when_it_starts_again(
    learn: RunLearning, model: ModelRecord
) -> None:
    async def first(learning: Learning) -> None:
        await load(learning, model)

    async def second(learning: Learning) -> None:
        learning.log.append(logged([2, 3], at=1))
        unused = dataclasses.replace(model, digest="ab" * 32)
        learning.records += [unused, model]
        learns = asyncio.create_task(learning.service.run())
        await until(lambda: running(learning, model) == LAST)
        assert states(learning, unused) == []
        assert learning.loaded.snapshot() == ()
        learns.cancel()
        await asyncio.gather(learns, return_exceptions=True)

    learn(first)
    learn(second)


def test_a_store_that_cannot_be_read_does_not_end_learning(learn: RunLearning, model: ModelRecord) -> None:
    def fails() -> list[ModelRecord]:
        raise sqlite3.DatabaseError("database disk image is malformed")

    async def body(learning: Learning) -> None:
        service = LearningService(
            *(learning.settings, learning.loaded, learning.residencies, lambda _, number: ()), list_records=fails
        )
        learns = asyncio.create_task(service.run())
        await load(learning, model)
        learning.log.append(logged([2, 3], at=1))
        await until(lambda: running(learning, model) == LAST)
        learns.cancel()
        await asyncio.gather(learns, return_exceptions=True)

    learn(body, learn_idle_s=0.2)


def test_a_fault_with_one_model_does_not_end_learning(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        await learning.loaded.load(model, lambda _: None)
        learning.records.append(dataclasses.replace(model, parts=()))
        learning.log.append(logged([2, 3], at=1))
        learns = asyncio.create_task(learning.service.run())
        await until(lambda: running(learning, model) == LAST)
        learns.cancel()
        await asyncio.gather(learns, return_exceptions=True)

    learn(body, learn_idle_s=0.2)


def test_a_set_that_is_applied_while_the_model_loads_runs_when_it_is_loaded(
    learn: RunLearning, model: ModelRecord
) -> None:
    async def body(learning: Learning) -> None:
        learning.log.append(logged([0, 1], at=0))
        await learning.service.apply(model)
        loads = asyncio.create_task(load(learning, model))
        await until(learning.loaded.snapshot)
        learning.log += [logged([2, 3], at=at) for at in (1, 2)]
        applied = await learning.service.apply(model)
        await loads
        assert await engine_generation(learning, model) == applied.generation == 2

    learn(body, script={"load_s": 1.0})


def test_what_a_generation_has_done_so_far_is_told_when_it_is_asked_for(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        await load(learning, model)
        learning.log.append(logged([2, 3], at=time.time() + 1))
        learning.tpots[1] = [30.0, 40.0]
        (day0,) = (await learning.service.learned(model)).history
        # The even set has one of the two favourites: 21 of 42 routes.
        assert (day0.coverage_measured, day0.tpot_ms_measured, day0.sessions_measured) == (0.5, 35.0, 1)
        learning.log.append(logged([2, 3], at=time.time() + 2))
        await learning.service.apply(model)
        assert learning.service.generations.history(model.digest)[-1].sessions_measured == 2

    learn(body, learn_idle_s=FOREVER_S)


def test_the_set_in_use_is_the_one_that_the_engine_runs_with(learn: RunLearning, model: ModelRecord) -> None:
    async def with_room(learning: Learning) -> None:
        await load(learning, model)
        assert (await learning.service.learned(model)).in_use == 1
        await learning.loaded.unload(model)
        assert (await learning.service.learned(model)).in_use == 1

    async def without_room(learning: Learning) -> None:
        assert (await learning.service.learned(model)).in_use is None
        await load(learning, model)
        learned = await learning.service.learned(model)
        assert (learned.in_use, learned.history[0].state) == (None, "active")
        with pytest.raises(PlanUnavailable, match=r"no set in use\. No memory is set aside"):
            await learning.service.undo(model)
        assert states(learning, model) == [(1, "day0", "active")]

    learn(with_room)
    learn(without_room, hot_experts_fraction=0.0)


def test_an_engine_without_a_pool_says_why_there_is_none(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        await load(learning, model)
        learning.log.append(logged([2, 3], at=1))
        learned = await learning.service.learned(model)
        assert learned.plan.skew.sentence.startswith("m runs without a pool for hot experts: ")
        with pytest.raises(PlanUnavailable, match="runs without a pool"):
            await learning.service.apply(model)

    learn(body, backend="cuda", gpu_experts="stock")


def test_a_busy_model_is_left_alone(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        learns = asyncio.create_task(learning.service.run())
        learning.log.append(logged([2, 3], at=1))
        async with learning.loaded.lease(model):
            generation = learning.service.generations.active(model.digest)
            assert generation is not None
            await asyncio.sleep(0.5)
            assert learning.service.generations.active(model.digest) == generation
        learns.cancel()
        await asyncio.gather(learns, return_exceptions=True)

    learn(body, learn_idle_s=0.1)


async def learn_in_the_engine_s_room(learning: Learning, model: ModelRecord) -> Generation:
    """The first generation of an engine that has told its room and was started without a set."""
    await load(learning, model)
    assert await engine_generation(learning, model) == 0
    learning.log.append(logged([2, 3], at=1))
    await learning.service.consider(model)
    active = learning.service.generations.active(model.digest)
    assert active is not None
    return active


def test_the_engine_s_capacity_test_makes_room_from_the_next_look_on(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        active = await learn_in_the_engine_s_room(learning, model)
        # Three slots: two favourites of one layer and one of the other.
        assert active.hot_experts == 3
        assert await engine_generation(learning, model) == active.generation

    learn(body, script={"told": {"slots": 3}}, hot_experts_fraction=0.0)


def test_a_first_set_that_leaves_memory_to_be_lent_stays_until_something_is_learned(
    learn: RunLearning, model: ModelRecord
) -> None:
    async def body(learning: Learning) -> None:
        await load(learning, model)
        learning.log += [logged([], at=at) for at in range(5)]
        await learning.service.consider(model)
        # Not below a set that takes all of the memory: routing is flat.
        learning.log += [logged([], at=learning.clock.now + at) for at in range(1, 4)]
        await learning.service.consider(model)
        assert all(source == "day0" for _, source, _ in states(learning, model))
        learning.log += [logged([2, 3], at=learning.clock.now + at) for at in range(4, 20)]
        await learning.service.consider(model)
        assert running(learning, model) == [[2, 3], [2, 3]]

    facts = ModelFiles().facts(model)
    assert facts is not None
    (size,) = set(facts.experts.expert_bytes)
    told = {"pool_bytes": [4 * size], "unlearned_bytes": [2 * size]}
    learn(body, script={"told": told}, hot_experts_fraction=0.0)


def test_an_engine_that_is_started_again_after_a_crash_has_what_was_learned_since_its_first_start(
    learn: RunLearning, model: ModelRecord
) -> None:
    async def body(learning: Learning) -> None:
        active = await learn_in_the_engine_s_room(learning, model)
        loaded = learning.loaded.find(model)
        assert loaded is not None
        assert loaded.pid is not None
        os.kill(loaded.pid, signal.SIGKILL)
        await asyncio.to_thread(
            eventually, lambda: learning.loaded.engine_client(model) is None, "the daemon to notice the end"
        )
        await load(learning, model)
        assert await engine_generation(learning, model) == active.generation

    learn(body, script={"told": {"slots": 3}}, hot_experts_fraction=0.0)


def test_a_dense_model_has_nothing_to_learn(learn: RunLearning, tmp_path: Path) -> None:
    path = write(tmp_path / "d.gguf", model_metadata(n_experts=0), [Tensor("token_embd.weight", (64, 3), "F32")])
    dense = record("d", path=path)

    async def body(learning: Learning) -> None:
        assert "no routed experts" in (await learning.service.learned(dense)).plan.skew.sentence
        assert learning.residencies.file(dense) is None
        with pytest.raises(PlanUnavailable, match="no routed experts"):
            await learning.service.apply(dense)
        assert await learning.service.consider(dense) is None

    learn(body)


def test_files_that_cannot_be_read_never_keep_a_model_from_loading(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        model.parts[0].unlink()
        await load(learning, model)
        assert await engine_generation(learning, model) == 0
        with pytest.raises(PlanUnavailable, match="cannot be read"):
            await learning.service.learned(model)

    learn(body)
