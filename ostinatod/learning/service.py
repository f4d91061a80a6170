"""Learning, running: looks at each idle model between its sessions, and changes its set where that is clearly better.

What it does by itself it can explain and undo: every change is a generation with its reasons and its measured effect,
and one that does worse than the set before it is taken back. Nothing here is on a request's path.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinatod.config import FOREVER_S, Settings
from ostinatod.errors import OstinatoError, PlanUnavailable
from ostinatod.learning.application import Applied, apply_generation
from ostinatod.learning.capacity import Capacity
from ostinatod.learning.effect import JUDGED_SESSIONS, Effect, left_after, measure_effect
from ostinatod.learning.generations import Generation, Generations
from ostinatod.learning.model_files import ModelFacts
from ostinatod.learning.planning import Plan
from ostinatod.learning.residencies import Residencies
from ostinatod.learning.timing import NOTHING_MEASURED, Timing, Timings
from ostinatod.learning.unseen_use import UnseenUse
from ostinatod.loaded import LoadedModel, LoadedModels
from ostinatod.profiles.errors import PlanError
from ostinatod.profiles.skew import Skew
from ostinatod.store.records import ModelRecord

log = logging.getLogger(__name__)

Mask = NDArray[np.bool_]
ReadTpots = Callable[[str, int], Sequence[float]]
"""Times per output token (ms) of requests served with a generation, given the model's fingerprint and its number."""

LOOK_EVERY_S = 5.0

_DENSE = "This model has no routed experts, so there is nothing to learn."
_NO_EXPERTS = Plan(0, Skew(0.0, 0.0, False, _DENSE), None, reasons=(_DENSE,))
_NO_ROOM = (
    "No memory is set aside for hot experts: without a GPU they save nothing, and on a GPU the engine has not told yet "
    "how many fit."
)


@dataclass(frozen=True, slots=True)
class Learned:
    """The state of learning of one model."""

    plan: Plan
    history: tuple[Generation, ...]
    """The newest first."""
    next_generation: int
    in_use: int | None
    """The generation that its engine runs with, or would be started with; None without a set."""


class LearningService:
    """Plans, applies, measures and takes back, for all models. Run `run` as a task."""

    def __init__(
        self,
        settings: Settings,
        loaded: LoadedModels,
        residencies: Residencies,
        read_tpots: ReadTpots,
        timings: Timings | None = None,
        *,
        list_records: Callable[[], Sequence[ModelRecord]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._loaded = loaded
        self._residencies = residencies
        self._read_tpots = read_tpots
        self._timings = timings
        self._timing_of: dict[str, Timing] = {}
        self._clock = clock
        self._locks: dict[str, asyncio.Lock] = {}
        self._list_records = list_records
        self._unseen = UnseenUse(settings.learn_idle_s)
        self._told_room: dict[str, int | None] = {}
        """The process of a model's engine that has told its room."""

    @property
    def generations(self) -> Generations:
        """Every set that a model was given."""
        return self._residencies.generations

    def last_timing(self, fingerprint: str) -> Timing:
        """What was known of a model's time per token when it was last planned for; reads nothing."""
        return self._timing_of.get(fingerprint, NOTHING_MEASURED)

    def calibrations(self) -> list[dict[str, Any]]:
        """What engines have measured on this machine, one entry per model. Blocks. Raises PlanUnavailable."""
        return self._timings.calibrations() if self._timings else []

    async def learned(self, record: ModelRecord) -> Learned:
        """What is proposed for a model now, and what it was given before, with what that has done so far.

        Raises PlanUnavailable where the model's files or sessions do not fit each other, RoutingLogUnavailable.
        """
        facts, status = await self._facts(record), await self._status(record)
        plan, room = _NO_EXPERTS, None
        if facts is not None:
            plan = await self._plan(record, facts, status)
            room = await asyncio.to_thread(self._residencies.capacity, facts)
            await self._measure(record, facts)
        history = tuple(await asyncio.to_thread(self.generations.history, record.digest))
        number = await asyncio.to_thread(self.generations.next_number, record.digest)
        return Learned(plan, history, number, _in_use(status, history, has_room=room is not None))

    async def apply(self, record: ModelRecord) -> Applied:
        """Apply what is proposed now, however little it gains. Raises PlanUnavailable with the reason if nothing is."""
        async with self._changing(record):
            facts = await self._facts(record)
            plan = _NO_EXPERTS if facts is None else await self._plan(record, facts, await self._status(record))
            if facts is None or plan.proposal is None:
                raise PlanUnavailable(
                    f"there is no better set for {record.name}: {_why_none(plan)}",
                    hint=f"See what is known: ostinato plan {record.name} --explain",
                )
            await self._measure(record, facts)
            return await self._apply_plan(record, facts, plan, note="applied by the user")

    async def undo(self, record: ModelRecord) -> Applied:
        """Return to the set before the active one. Raises PlanUnavailable where there is none."""
        async with self._changing(record):
            facts, status = await self._facts(record), await self._status(record)
            room = None if facts is None else await asyncio.to_thread(self._room, record, facts, status)
            if isinstance(room, str):
                raise PlanUnavailable(
                    f"{record.name} has no set in use. {room}",
                    hint=f"See its history: ostinato plan {record.name} --history",
                )
            if facts is not None:
                await self._measure(record, facts)
            return await self._go_back(record, facts, note="undone by the user")

    async def run(self) -> None:
        """Look at models for ever: at all once, since nothing is in memory yet, then at those that were used."""
        if self._settings.learn_idle_s == FOREVER_S:
            return
        for record in await self._registered():
            await self._quietly(record, self._look_again)
        while True:
            await asyncio.sleep(min(LOOK_EVERY_S, max(0.05, self._settings.learn_idle_s / 2)))
            models = self._loaded.snapshot()
            for model in models:
                if model.state == "ready" and self._told_room.get(model.record.digest) != model.pid:
                    await self._quietly(model.record, self._learn_room)
            for record in self._unseen.due(models, self._clock()):
                await self._quietly(record, self.consider)

    async def _registered(self) -> Sequence[ModelRecord]:
        try:
            return await asyncio.to_thread(self._list_records)
        except (OstinatoError, OSError, sqlite3.Error) as error:
            log.warning("learning_knows_no_models reason=%r", str(error))
            return ()

    async def _quietly(self, record: ModelRecord, look: Callable[[ModelRecord], Awaitable[object]]) -> None:
        try:
            await look(record)
        except (OstinatoError, PlanError, OSError) as error:
            log.warning("learning_failed model=%s reason=%r", record.name, str(error))
        except Exception:
            # Whatever it is, the models that are used next are to be learned from.
            log.exception("learning_failed model=%s", record.name)

    async def _look_again(self, record: ModelRecord) -> None:
        """A model that was learned for before, whose last sessions may have ended with the daemon."""
        if record.shape.n_experts and await asyncio.to_thread(self.generations.active, record.digest) is not None:
            await self.consider(record)

    async def _learn_room(self, record: ModelRecord) -> None:
        """Keep what an engine tells of its memory, as soon as it does: it may be gone when the model is looked at."""
        loaded = self._loaded.find(record)
        status = await self._status(record)
        if status is None or loaded is None:
            return
        # Also where it cannot be kept: the next look tells it again, and says what failed.
        self._told_room[record.digest] = loaded.pid
        if (facts := await self._facts(record)) is not None:
            await asyncio.to_thread(self._residencies.learn_capacity, facts, status)

    async def consider(self, record: ModelRecord) -> Applied | None:
        """What is done for a model between sessions: measure, go back if that was worse, else change if it gains."""
        loaded = self._loaded.find(record)
        if loaded is not None and (loaded.state != "ready" or _has_no_pool(loaded)):
            return None
        async with self._changing(record):
            facts = await self._facts(record)
            if facts is None:
                return None
            active = await asyncio.to_thread(self.generations.active, record.digest)
            effect = await self._measure(record, facts)
            if active is not None and effect is not None and effect.is_worse:
                log.info("generation_did_worse model=%s generation=%d", record.name, active.generation)
                return await self._go_back(record, facts, note=_worse(active, effect))
            if active is None or active.source != "undo" or (effect and effect.sessions >= JUDGED_SESSIONS):
                # Whoever went back has had a reason; it takes new sessions to overrule it.
                plan = await self._plan(record, facts, await self._status(record))
                if self._is_worth_it(plan, active):
                    return await self._apply_plan(record, facts, plan, note="applied between sessions")
            if active is None or effect is None or not await self._is_below_default(record, effect):
                return None
            note = _below_default(active, effect)
            if effect.is_before_safe:
                return await self._go_back(record, facts, note=note)
            return await self._return_to_default(record, facts, note=note)

    async def _is_below_default(self, record: ModelRecord, effect: Effect) -> bool:
        history = await asyncio.to_thread(self.generations.history, record.digest)
        return effect.shortfall.below >= left_after(history)

    def _is_worth_it(self, plan: Plan, active: Generation | None) -> bool:
        proposal = plan.proposal
        if proposal is None or not plan.skew.useful or not proposal.is_safe:
            return False
        if proposal.coverage_held_out is not None and proposal.coverage_held_out < proposal.coverage_uniform:
            # Better than the running set, perhaps, but worse than having learned nothing.
            return False
        if active is None or active.source in ("day0", "imatrix"):
            # Anything learned is better than a guess, except where it has been compared and is not.
            return proposal.gain is None or proposal.gain > 0
        return proposal.gain is not None and proposal.gain >= self._settings.learn_min_gain

    async def _apply_plan(self, record: ModelRecord, facts: ModelFacts, plan: Plan, *, note: str) -> Applied:
        proposal = plan.proposal
        assert proposal is not None
        residency, generation = await asyncio.to_thread(
            lambda: self._residencies.draft(
                facts,
                proposal.hot,
                "learned",
                sessions=plan.sessions,
                coverage_held_out=proposal.coverage_held_out,
                note=note,
                tpot_ms_predicted=proposal.tpot_ms_predicted,
            )
        )
        return await apply_generation(self._loaded, self.generations, record, residency, generation)

    async def _go_back(self, record: ModelRecord, facts: ModelFacts | None, *, note: str) -> Applied:
        before = await asyncio.to_thread(self.generations.previous, record.digest)
        if before is None or facts is None:
            raise PlanUnavailable(
                f"{record.name} has no set before the one in use",
                hint=f"See its history: ostinato plan {record.name} --history",
            )
        returned = before
        residency, generation = await asyncio.to_thread(
            lambda: self._residencies.draft(
                facts,
                self.generations.residency(record.digest, returned.generation).mask(),
                "undo",
                sessions=returned.sessions,
                coverage_held_out=returned.coverage_held_out,
                note=f"{note}; the set of generation {returned.generation}",
                origin=returned.origin or returned.generation,
            )
        )
        return await apply_generation(self._loaded, self.generations, record, residency, generation, rolled_back=True)

    async def _return_to_default(self, record: ModelRecord, facts: ModelFacts, *, note: str) -> Applied | None:
        capacity = await asyncio.to_thread(self._residencies.capacity, facts)
        if capacity is None:
            return None
        log.info("generation_below_default model=%s", record.name)
        hot, _ = self._residencies.unlearned(facts, capacity)
        note = f"{note}; the set without any learning"
        residency, generation = await asyncio.to_thread(
            lambda: self._residencies.draft(facts, hot, "undo", sessions=0, note=note)
        )
        return await apply_generation(self._loaded, self.generations, record, residency, generation, rolled_back=True)

    async def _plan(self, record: ModelRecord, facts: ModelFacts, status: Mapping[str, Any] | None) -> Plan:
        try:
            return await asyncio.to_thread(self._plan_now, record, facts, status)
        except PlanError as error:
            raise PlanUnavailable(f"{record.name} cannot be planned: {error}") from error

    def _plan_now(self, record: ModelRecord, facts: ModelFacts, status: Mapping[str, Any] | None) -> Plan:
        room = self._room(record, facts, status)
        if isinstance(room, str):
            sessions = len(self._residencies.sessions(facts))
            return Plan(sessions, Skew(0.0, 0.0, False, room), None, reasons=(room,))
        loaded = self._loaded.find(record)
        timing = NOTHING_MEASURED
        if self._timings:
            timing = self._timings.of(facts, status, loaded.build if loaded else None)
        self._timing_of[facts.layout.fingerprint] = timing
        return self._residencies.plan(facts, room, timing)

    def _room(self, record: ModelRecord, facts: ModelFacts, status: Mapping[str, Any] | None) -> Capacity | str:
        """Memory for hot experts, or the sentence that says why there is none."""
        loaded = self._loaded.find(record)
        if loaded is not None and _has_no_pool(loaded):
            return f"{record.name} runs without a pool for hot experts: {loaded.experts.reason}."
        self._residencies.learn_capacity(facts, status)
        return self._residencies.capacity(facts) or _NO_ROOM

    async def _measure(self, record: ModelRecord, facts: ModelFacts) -> Effect | None:
        """What the active generation has done so far, kept with it; None without one."""
        active = await asyncio.to_thread(self.generations.active, record.digest)
        return None if active is None else await asyncio.to_thread(self._measure_now, facts, active)

    def _measure_now(self, facts: ModelFacts, active: Generation) -> Effect | None:
        fingerprint = facts.layout.fingerprint
        before, capacity = self.generations.previous(fingerprint), self._residencies.capacity(facts)
        if capacity is None:
            return None
        running = self.generations.residency(fingerprint, active.generation).mask()
        effect = measure_effect(
            self._residencies.sessions(facts),
            active,
            running,
            None if before is None else self.generations.residency(fingerprint, before.generation).mask(),
            # A set that nobody has learned may leave memory to be lent: it is not judged by what takes all.
            self._residencies.default(facts, capacity) if active.sessions else running,
            self._read_tpots(fingerprint, active.generation),
            self._residencies.forgetting,
        )
        measured = replace(
            active,
            coverage_measured=effect.coverage,
            tpot_ms_measured=effect.tpot_ms,
            sessions_measured=effect.sessions,
        )
        if measured != active:
            self.generations.measured(fingerprint, measured)
        return effect

    async def _status(self, record: ModelRecord) -> Mapping[str, Any] | None:
        """What a loaded engine tells of itself."""
        client = self._loaded.engine_client(record)
        status = await client.get_json("/ostinato/status") if client else None
        return status if isinstance(status, dict) else None

    async def _facts(self, record: ModelRecord) -> ModelFacts | None:
        try:
            return await asyncio.to_thread(self._residencies.facts, record)
        except (PlanError, OSError) as error:
            raise PlanUnavailable(f"the files of {record.name} cannot be read: {error}") from error

    @asynccontextmanager
    async def _changing(self, record: ModelRecord) -> AsyncIterator[None]:
        async with self._locks.setdefault(record.digest, asyncio.Lock()):
            yield


def _has_no_pool(loaded: LoadedModel) -> bool:
    """Whether there is no pool on its GPUs that a set could be put into."""
    return loaded.backend != "cpu" and loaded.experts.chosen == "stock"


def _in_use(status: Mapping[str, Any] | None, history: Sequence[Generation], *, has_room: bool) -> int | None:
    if status is None:
        return next((item.generation for item in history if item.state == "active" and has_room), None)
    residency = status.get("residency")
    if not isinstance(residency, dict) or residency.get("state") != "applied":
        return None
    return next((item.generation for item in history if item.generation == residency.get("generation")), None)


def _why_none(plan: Plan) -> str:
    return plan.skew.sentence if not plan.skew.useful else "the set in use is the one that would be planned"


def _worse(active: Generation, effect: Effect) -> str:
    return (
        f"generation {active.generation} covered {effect.coverage:.1%} of {effect.sessions} sessions, "
        f"the set before would have covered {effect.coverage_before:.1%}"
    )


def _below_default(active: Generation, effect: Effect) -> str:
    short = effect.shortfall
    return (
        f"in {short.below} of its newest {short.among} session{'s' * (short.among != 1)} generation "
        f"{active.generation} covered {short.coverage:.1%}, where a set without any learning would have covered "
        f"{short.coverage_default:.1%}"
    )
