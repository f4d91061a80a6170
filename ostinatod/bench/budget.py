"""How many turns of which sessions fit into a number of seconds, by what the settings took in their trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ostinatod.bench.sessions import Limits, Session

LEAST_TURNS = 3
"""Of each session: rather fewer sessions than shorter ones."""
LEAST_TURNS_OF_TWO = 2
"""Where there are two sessions: a single one has no interval."""
RESERVE = 0.9
"""Of the time that is left may be planned."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What a setting takes.

    ready_s      until its first turn
    first_ms     for each token of a session's first turn
    turn_ms      for reading a later turn
    step_ms      for each token emitted
    """

    ready_s: float
    first_ms: float
    turn_ms: float
    step_ms: float

    def seconds(self, sessions: Sequence[Session], turns: int | None = None) -> float:
        """Of the first `turns` turns of each session, or of all."""
        found = 1000 * self.ready_s
        for session in sessions:
            for number, turn in enumerate(session.turns[:turns]):
                found += self.turn_ms if number else len(turn.new) * self.first_ms
                found += (len(turn.output) - 1) * self.step_ms
        return found / 1000


def pace_of(turns: Sequence[Mapping[str, Any]], wall_s: float) -> Pace:
    """From the turns of a trial, as its process told them, and the seconds that it took in all."""
    first = [turn for turn in turns if turn["turn"] == 0]
    later = [turn for turn in turns if turn["turn"] != 0] or first
    steps = sum(turn["output"] - 1 for turn in turns)
    return Pace(
        ready_s=max(0.0, wall_s - sum(turn["total_ms"] for turn in turns) / 1000),
        first_ms=sum(turn["ttft_ms"] for turn in first) / max(1, sum(turn["new"] for turn in first)),
        turn_ms=sum(turn["ttft_ms"] for turn in later) / max(1, len(later)),
        step_ms=sum(turn["total_ms"] - turn["ttft_ms"] for turn in turns) / max(1, steps),
    )


def affordable(paces: Sequence[Pace], sessions: Sequence[Session], seconds: float) -> list[Session]:
    """The beginnings of as many sessions as all settings can replay within the time; the first turns of one at least.

    All sessions with as many turns as fit, and where those are fewer than LEAST_TURNS, fewer sessions; rather two short
    ones than a single longer one.
    """
    longest = max(len(session.turns) for session in sessions)
    for count in range(len(sessions), 0, -1):
        chosen = sessions[:count]
        fitting = [
            turns
            for turns in range(1, longest + 1)
            if sum(pace.seconds(chosen, turns) for pace in paces) <= RESERVE * seconds
        ]
        turns = max(fitting, default=0)
        least = LEAST_TURNS if count > 2 else LEAST_TURNS_OF_TWO
        if turns >= min(least, longest) or count == 1:
            return [Limits(turns=max(turns, 1)).apply(session) for session in chosen]
    raise AssertionError("there is a session")
