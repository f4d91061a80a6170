"""Finds the quickest of several settings by having each replay the same sessions; what is slower is given up early."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ostinatod.bench.budget import Pace, pace_of
from ostinatod.bench.jobs import OnEvent
from ostinatod.bench.settings import Setting, as_json
from ostinatod.errors import EngineError, EngineLoadError

MORE_LAYERS_TRIED = 4
"""Layers more that are left on the CPU, one after the other, where a stock setting does not fit."""
GIVEN_UP_AT = 1.15
"""Times as long as the best one so far: a candidate is not tried further."""


class SlowerThanBestError(Exception):
    """A candidate takes longer than another one that was tried."""


@dataclass(slots=True)
class Trials:
    """Tries candidates.

    replay      replays the sessions under a setting and tells each turn; raises as `jobs.run_job` does
    turns       of those sessions
    layers      of the model, as far as more of them may go to the CPU where a candidate does not fit; 0 for none
    is_time     whether another candidate may be begun
    show, note  see `comparison.Progress`
    """

    replay: Callable[[Setting, OnEvent], None]
    turns: int
    layers: int
    is_time: Callable[[], bool]
    show: Callable[[str, int, int], None]
    note: Callable[[str], None]
    search: list[Mapping[str, Any]] = field(default_factory=list)
    """Every candidate with its time, or why it has none."""
    paces: dict[str, Pace] = field(default_factory=dict)
    """Of the candidates that were tried to their end, by name."""

    def quickest(self, candidates: Sequence[Setting]) -> Setting | None:
        """The best of them, or the first of those that there was no time to try where no other ran; else None."""
        best: Setting | None = None
        best_ms = float("inf")
        untried: list[Setting] = []
        for candidate in candidates:
            if not self.is_time():
                self._keep(candidate, "not tried for want of time")
                untried.append(candidate)
            elif found := self._fitting(candidate, best_ms):
                setting, total_ms = found
                if total_ms < best_ms:
                    best, best_ms = setting, total_ms
        return best or next(iter(untried), None)

    def _fitting(self, candidate: Setting, best_ms: float) -> tuple[Setting, float] | None:
        """The candidate and its milliseconds; more layers go to the CPU until it fits."""
        most = min(candidate.cpu_layers + MORE_LAYERS_TRIED, self.layers if candidate.kind == "stock" else 0)
        for cpu_layers in range(candidate.cpu_layers, max(candidate.cpu_layers, most) + 1):
            setting = replace(candidate, cpu_layers=cpu_layers)
            try:
                return self._tried(setting, best_ms)
            except EngineError as error:
                self._keep(setting, error.message)
                self.note(f"could not run with {cpu_layers} layers' experts on the CPU: {error.message}")
                if not isinstance(error, EngineLoadError):
                    return None
        return None

    def _tried(self, setting: Setting, best_ms: float) -> tuple[Setting, float] | None:
        turns: list[Mapping[str, Any]] = []

        def on_event(event: Mapping[str, Any]) -> None:
            if event["event"] == "turn":
                turns.append(event)
            self.show(f"trying {setting.name}", len(turns), self.turns)
            if len(turns) < self.turns and sum(turn["total_ms"] for turn in turns) > GIVEN_UP_AT * best_ms:
                raise SlowerThanBestError

        begun = time.monotonic()
        try:
            self.replay(setting, on_event)
        except SlowerThanBestError:
            self._keep(setting, f"slower than another one, given up after {len(turns)} of {self.turns} turns")
            return None
        if len(turns) < self.turns:
            self._keep(setting, f"the time was over after {len(turns)} of {self.turns} turns")
            return None
        total_ms = sum(turn["total_ms"] for turn in turns)
        self.paces[setting.name] = pace_of(turns, time.monotonic() - begun)
        self.search.append({"setting": as_json(setting), "total_ms": round(total_ms, 2), "reason": None})
        return setting, total_ms

    def _keep(self, setting: Setting, reason: str) -> None:
        self.search.append({"setting": as_json(setting), "total_ms": None, "reason": reason})
