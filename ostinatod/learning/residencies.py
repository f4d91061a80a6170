"""Which residency set an engine is started with, and the first set of a model. Everything here may block."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinatod.errors import OstinatoError
from ostinatod.learning.capacity import Capacity, capacity_from_engine, capacity_from_setting
from ostinatod.learning.generations import Generation, Generations, Source
from ostinatod.learning.model_files import ModelFacts, ModelFiles
from ostinatod.learning.planning import Plan, PlanningInput, day_zero, make_plan
from ostinatod.learning.timing import NOTHING_MEASURED, Timing
from ostinatod.profiles.errors import PlanError
from ostinatod.profiles.planner import moved
from ostinatod.profiles.rates import Forgetting
from ostinatod.profiles.residency import Residency, hot_lists
from ostinatod.profiles.route_log import SessionRoutes
from ostinatod.store.records import ModelRecord

log = logging.getLogger(__name__)

Mask = NDArray[np.bool_]
ReadSessions = Callable[[str], Sequence[SessionRoutes]]
"""The logged sessions of a model, given its fingerprint; see `routing_log.reader.sessions`."""


class Residencies:
    """The sets of all models: what is in use, what would be planned, and what an engine starts with."""

    def __init__(
        self,
        generations: Generations,
        read_sessions: ReadSessions,
        *,
        hot_experts_fraction: float,
        forgetting: Forgetting | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.generations = generations
        self._read_sessions = read_sessions
        self._fraction = hot_experts_fraction
        self._forgetting = forgetting or Forgetting()
        self._clock = clock
        self._files = ModelFiles()

    def file(self, record: ModelRecord) -> Path | None:
        """The residency file to start an engine of this model with; None leaves it to the stock code.

        Makes the first set where there is room for one and none yet, and a new one where the last does not fit any
        more. Learning must never keep a model from loading: what fails here is logged, and the model loads without.
        """
        try:
            facts = self.facts(record)
            capacity = None if facts is None else self.capacity(facts)
            if facts is None or capacity is None:
                return None
            active = self.generations.active(record.digest)
            if active is not None and self._fits(facts, capacity, active):
                return self.generations.restore_file(record.digest, active.generation)
            hot, source, sessions = self._first(facts, capacity)
            if not hot.any():
                return None
            residency, generation = self.draft(facts, hot, source, sessions=sessions)
            return self.generations.activate(residency, generation)
        except (PlanError, OSError, OstinatoError) as error:
            log.warning("residency_unavailable model=%s reason=%r", record.name, str(error))
            return None

    def facts(self, record: ModelRecord) -> ModelFacts | None:
        """The model's experts; None for a dense model. Raises HeaderError, OSError."""
        return None if record.shape.is_embedding else self._files.facts(record)

    def capacity(self, facts: ModelFacts) -> Capacity | None:
        """Memory for hot experts: the setting's share, else what an engine told last; None where nobody has."""
        asked = capacity_from_setting(self._fraction, facts.experts)
        return asked or self.generations.capacity(facts.layout.fingerprint)

    def learn_capacity(self, facts: ModelFacts, status: Mapping[str, Any] | None) -> None:
        """Keep what a loaded engine tells of its memory."""
        told = capacity_from_engine(status, facts.experts)
        if told is not None and told != self.generations.capacity(facts.layout.fingerprint):
            self.generations.keep_capacity(facts.layout.fingerprint, told)

    def sessions(self, facts: ModelFacts) -> tuple[SessionRoutes, ...]:
        """Logged sessions that fit the model's layers. Raises RoutingLogUnavailable."""
        shape = (facts.layout.layers, facts.layout.n_experts)
        found = self._read_sessions(facts.layout.fingerprint)
        return tuple(item for item in found if (item.layers, item.n_experts) == shape)

    def running(self, fingerprint: str) -> Mask | None:
        """(L, E) the set of the active generation."""
        active = self.generations.active(fingerprint)
        return None if active is None else self.generations.residency(fingerprint, active.generation).mask()

    def plan(self, facts: ModelFacts, capacity: Capacity, timing: Timing = NOTHING_MEASURED) -> Plan:
        """What would be better now. Raises CapacityError, RoutingLogUnavailable."""
        given = self._input(facts, capacity, self.running(facts.layout.fingerprint))
        return make_plan(replace(given, timing=timing))

    def draft(
        self,
        facts: ModelFacts,
        hot: Mask,
        source: Source,
        *,
        sessions: int,
        coverage_held_out: float | None = None,
        note: str = "",
        origin: int | None = None,
        tpot_ms_predicted: float | None = None,
    ) -> tuple[Residency, Generation]:
        """The next generation with this set, not yet active."""
        fingerprint = facts.layout.fingerprint
        number, now = self.generations.next_number(fingerprint), self._clock()
        provenance = {
            "source": source,
            "sessions": sessions,
            "coverage_held_out": coverage_held_out,
            "half_life_sessions": self._forgetting.half_life_sessions,
            "prefill_weight": self._forgetting.prefill_weight,
            "note": note,
        }
        residency = Residency(facts.layout, number, int(now), provenance, hot_lists(hot))
        generation = Generation(
            generation=number,
            created_at=now,
            source=source,
            state="active",
            sessions=sessions,
            hot_experts=int(hot.sum()),
            moved=moved(self.running(fingerprint), hot),
            coverage_held_out=coverage_held_out,
            coverage_measured=None,
            tpot_ms_measured=None,
            sessions_measured=0,
            note=note,
            origin=origin,
            tpot_ms_predicted=tpot_ms_predicted,
        )
        return residency, generation

    @property
    def forgetting(self) -> Forgetting:
        """What sessions weigh."""
        return self._forgetting

    def _input(self, facts: ModelFacts, capacity: Capacity, running: Mask | None) -> PlanningInput:
        return PlanningInput(
            places=facts.experts.places(capacity.gpu),
            k=facts.experts.k,
            pool_bytes=capacity.pool_bytes,
            sessions=self.sessions(facts),
            running=running,
            forgetting=self._forgetting,
            prior=facts.prior,
        )

    def _first(self, facts: ModelFacts, capacity: Capacity) -> tuple[Mask, Source, int]:
        """A set without regard to the one before: learned where sessions were logged, else that of day 0."""
        plan = make_plan(self._input(facts, capacity, None))
        if plan.proposal is not None and plan.proposal.is_safe and plan.skew.useful:
            return plan.proposal.hot, "learned", plan.sessions
        hot, source = self.unlearned(facts, capacity)
        return hot, source, 0

    def unlearned(self, facts: ModelFacts, capacity: Capacity) -> tuple[Mask, Source]:
        """The set to run with while nothing is learned, and what it is made from."""
        places = facts.experts.places(capacity.gpu)
        if facts.prior is not None:
            return day_zero(places, capacity.pool_bytes, facts.prior, facts.experts.k), "imatrix"
        hot = day_zero(places, capacity.first_bytes, None, facts.experts.k)
        # So little is left that it would hold none: then all of it is for hot experts.
        return hot if hot.any() else day_zero(places, capacity.pool_bytes, None, facts.experts.k), "day0"

    def default(self, facts: ModelFacts, capacity: Capacity) -> Mask:
        """What a learned set is judged against: the set without any knowledge of sessions, in all of the memory that a
        learned one takes.
        """
        return day_zero(facts.experts.places(capacity.gpu), capacity.pool_bytes, facts.prior, facts.experts.k)

    def _fits(self, facts: ModelFacts, capacity: Capacity, active: Generation) -> bool:
        hot = self.generations.residency(facts.layout.fingerprint, active.generation).mask()
        places = facts.experts.places(capacity.gpu)
        # A set of day 0 is to leave what is lent now.
        largest = self.unlearned(facts, capacity)[0] if active.source == "day0" else None
        for gpu, budget in enumerate(capacity.pool_bytes):
            on_gpu = (np.array(places.gpu) == gpu)[:, None]
            if places.hot_bytes(hot & on_gpu) > (budget if largest is None else places.hot_bytes(largest & on_gpu)):
                return False
        return True
