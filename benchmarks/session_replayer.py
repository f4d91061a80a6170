"""Recorded sessions shown to a model in this process as a server with one slot shows them: figures of every turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from agent_sessions import RecordedSession, Tokens
from numpy.typing import NDArray

from ostinatod.bench.placed_model import PASS_TOKENS, PlacedModel
from ostinatod.bindings import Bindings, RouteCounts
from ostinatod.profiles.route_log import SessionRoutes

SKIPPED_STEPS = 2
"""Of every answer, while graphs for single tokens are built or captured again."""


@dataclass(frozen=True, slots=True)
class TurnTimes:
    """One turn. Times are milliseconds."""

    held_tokens: int
    """That were not read again."""
    new_tokens: int
    ttft_ms: float
    step_ms: tuple[float, ...]
    logits: NDArray[np.float32]
    """After the prompt was read."""
    decoded: NDArray[np.int64]
    """(L, E) routes of the answer."""


@dataclass(slots=True)
class Played:
    """What some sessions did."""

    turns: list[TurnTimes] = field(default_factory=list)
    routes: list[SessionRoutes] = field(default_factory=list)


class Replayer:
    """Shows sessions to a model as a server with one slot and prompt reuse would."""

    def __init__(self, run: PlacedModel, bindings: Bindings, answer_tokens: int, max_turns: int) -> None:
        self.run = run
        self.bindings = bindings
        self._answer_tokens = answer_tokens
        self._max_turns = max_turns
        self._read: list[int] = []

    def counts(self) -> RouteCounts:
        """Routes so far."""
        return self.bindings.route_counts(self.run.handle)

    def held_tokens(self) -> int:
        """Tokens that the context holds, as the engine says."""
        core: Any = self.bindings.llama_cpp.llama_cpp
        return int(core.llama_memory_seq_pos_max(core.llama_get_memory(self.run.context), 0)) + 1

    def forget(self) -> None:
        """Start with an empty context, whatever was played before."""
        self.run.rewind(0)
        self._read.clear()

    def play(self, session: RecordedSession, into: Played, *, between: Callable[[int], None] | None = None) -> None:
        """Show one session; `between` is called before each turn with its number."""
        before, new_tokens, output_tokens = self.counts(), 0, 0
        for number, turn in enumerate(session.turns[: self._max_turns]):
            if between:
                between(number)
            new = self._beyond_common(turn.new) if number == 0 else turn.new
            held = self.held_tokens()
            ttft_ms = sum(self._pass(new[at : at + PASS_TOKENS]) for at in range(0, len(new), PASS_TOKENS))
            logits = self.run.logits()
            answer = turn.answer[: self._answer_tokens]
            read = self.counts().decode
            steps = [self._pass(answer[i : i + 1]) for i in range(len(answer))]
            decoded = (self.counts().decode - read).astype(np.int64)
            times = (ttft_ms, tuple(steps[SKIPPED_STEPS:]), logits)
            into.turns.append(TurnTimes(held, len(new), *times, decoded))
            new_tokens += len(new)
            output_tokens += len(answer)
        after = self.counts()
        at = float(len(into.routes))
        into.routes.append(
            SessionRoutes(
                session=session.name,
                started_at=at,
                last_at=at,
                requests=len(session.turns),
                layers=tuple(after.layers.tolist()),
                prefill=(after.prefill - before.prefill).astype(np.int64),
                decode=(after.decode - before.decode).astype(np.int64),
                new_tokens=new_tokens,
                output_tokens=output_tokens,
            )
        )

    def _beyond_common(self, tokens: Tokens) -> Tokens:
        """What of a first prompt is not in the context already: another session may have begun alike."""
        common = 0
        while common < min(len(tokens) - 1, len(self._read)) and tokens[common] == self._read[common]:
            common += 1
        self.run.rewind(common)
        del self._read[common:]
        return tokens[common:]

    def _pass(self, tokens: Tokens) -> float:
        elapsed_ms = self.run.decode(tokens.tolist())
        self._read += tokens.tolist()
        return elapsed_ms
