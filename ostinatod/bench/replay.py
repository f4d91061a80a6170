"""Sessions replayed on a loaded model: every engine reads the same tokens and emits the recorded ones (paper 4.1).

An output token that was emitted is read in the next decode step; the last one of a turn is read by the next turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinatod.bench.placed_model import PlacedModel
from ostinatod.bench.sessions import Session, Turn

WARM_UP_READ_TOKENS = 512
WARM_UP_STEPS = 16

Mask = NDArray[np.bool_]
Counts = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Coverage:
    """Hot and all routes of one forward phase."""

    hot_routes: int
    routes: int


class RouteCounter:
    """Counts of a model's routes between two moments; None where they are not counted or no set is hot."""

    def __init__(self, model: PlacedModel, hot: Mask | None) -> None:
        self._model, self._hot = model, hot
        self._before = self._counts()

    def since(self, phase: str) -> Coverage | None:
        """Routes of "prefill" or "decode" since the last call for any phase."""
        if self._hot is None or self._before is None:
            return None
        now = self._counts()
        assert now is not None
        changed = now[phase] - self._before[phase]
        self._before = now
        return Coverage(int(changed[self._hot].sum()), int(changed.sum()))

    def _counts(self) -> dict[str, Counts] | None:
        if self._hot is None:
            return None
        counts = self._model.bindings.route_counts(self._model.handle)
        return {"prefill": counts.prefill, "decode": counts.decode}


def warm_up(model: PlacedModel, session: Session, n_ctx: int) -> None:
    """Passes that nobody times, in a context of `n_ctx` tokens: kernels are loaded and graphs are made at their first
    use.
    """
    tokens = [token for turn in session.turns for token in (*turn.new, *turn.output)][: n_ctx - WARM_UP_STEPS]
    model.rewind(0)
    model.read(tokens[:WARM_UP_READ_TOKENS])
    for token in tokens[:WARM_UP_STEPS]:
        model.decode([token])
    model.rewind(0)


def replay_session(
    model: PlacedModel,
    session: Session,
    hot: Mask | None,
    on_turn: Callable[[int, Mapping[str, Any]], None],
    *,
    done: int = 0,
    until: float = float("inf"),
) -> None:
    """Replay a session and tell each turn with its number; the first `done` turns are read without being timed.

    No turn is begun after `until`, unix time. Raises EngineError where a pass fails.
    """
    model.rewind(0)
    model.read(session.prefix)
    counter = RouteCounter(model, hot)
    for number, turn in enumerate(session.turns):
        if time.time() >= until:
            return
        model.rewind(turn.reused)
        if number < done:
            model.read((*turn.new, *turn.output[:-1]))
            continue
        on_turn(number, _timed(model, turn, counter))


def count_session(model: PlacedModel, session: Session) -> dict[str, Any]:
    """Read a session and return its routes (L, E) by phase as lists, and its tokens by phase."""
    model.rewind(0)
    model.read(session.prefix)
    before = model.bindings.route_counts(model.handle)
    for turn in session.turns:
        model.rewind(turn.reused)
        model.read(turn.new)
        model.read_as_output(turn.output[:-1], turn.reused + len(turn.new))
    after = model.bindings.route_counts(model.handle)
    return {
        "session": session.id,
        "layers": after.layers.tolist(),
        "prefill": (after.prefill - before.prefill).tolist(),
        "decode": (after.decode - before.decode).tolist(),
        "new_tokens": sum(len(turn.new) for turn in session.turns),
        "output_tokens": sum(len(turn.output) - 1 for turn in session.turns),
        "turns": len(session.turns),
    }


def _timed(model: PlacedModel, turn: Turn, counter: RouteCounter) -> dict[str, Any]:
    ttft_ms = model.read(turn.new)
    likely = int(np.argmax(model.logits()))
    read = counter.since("prefill")
    decode_ms = sum(model.decode([token]) for token in turn.output[:-1])
    decoded = counter.since("decode")
    steps = len(turn.output) - 1
    return {
        "kind": turn.kind,
        "reused": turn.reused,
        "new": len(turn.new),
        "output": len(turn.output),
        "ttft_ms": round(ttft_ms, 4),
        "tpot_ms": round(decode_ms / steps, 4) if steps else None,
        "total_ms": round(ttft_ms + decode_ms, 4),
        "likely_token": likely,
        "prefill_hot_routes": None if read is None else read.hot_routes,
        "prefill_routes": None if read is None else read.routes,
        "decode_hot_routes": None if decoded is None else decoded.hot_routes,
        "decode_routes": None if decoded is None else decoded.routes,
    }
