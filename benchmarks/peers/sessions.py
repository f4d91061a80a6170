"""Recorded sessions for every engine: the turns that `ostinato bench` replays, under each engine's best setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostinatod.bench.results import TurnResult
from ostinatod.bench.sessions import Limits, Session
from ostinatod.bench.tokens import hashed_tokens, tokenized_session
from ostinatod.bench.traces import choose, read_traces, render_plainly, text_turns
from ostinatod.profiles.gguf_header import read_header


@dataclass(frozen=True, slots=True)
class Replayed:
    """What one engine took under one setting. `turns` by session, in order; `error` where it did not go to its end."""

    engine: str
    options: Mapping[str, Any]
    turns: Mapping[str, Sequence[Mapping[str, Any]]]
    error: str = ""
    gpu_bytes: int | None = None

    def memory(self) -> str:
        """GPU memory as a person reads it."""
        return "GPU memory unknown" if self.gpu_bytes is None else f"{self.gpu_bytes / 2**30:.2f} GiB of GPU memory"

    def done(self) -> int:
        """How many turns it has."""
        return sum(map(len, self.turns.values()))

    def results(self) -> Iterator[TurnResult]:
        """Every turn it has, as the benchmark's statistics read it."""
        for session, turns in self.turns.items():
            for number, turn in enumerate(turns):
                steps = turn["output"] - 1
                tpot_ms = (turn["total_ms"] - turn["ttft_ms"]) / steps if steps else None
                yield TurnResult(setting=self.engine, session=session, turn=number, repeat=0, tpot_ms=tpot_ms, **turn)

    def as_json(self) -> dict[str, Any]:
        """As it is written."""
        return {
            "options": self.options,
            "sessions": self.turns,
            "error": self.error,
            "gpu_bytes": self.gpu_bytes,
        }


def held_out_sessions(
    model: Path, vocabulary: int, trace: Path, development: int, held_out: int, limits: Limits
) -> list[Session]:
    """The sessions that benchmarks/replay.py times with these numbers, in a model's tokens.

    Raises SystemExit for a model with a tokenizer, since what engines would read of its sessions, each by its own
    template, is not the same; and where no turn is within the limits.
    """
    kind = read_header(model).fields.get("tokenizer.ggml.model")
    if kind not in (None, "none"):
        raise SystemExit(f"sessions are replayed on models without a tokenizer, found {kind!r} in {model}")
    recorded = [session for part, session in choose(read_traces(trace), development, held_out) if part == "held-out"]
    sessions = [
        tokenized_session(
            item,
            "held-out",
            text_turns(item, render_plainly),
            lambda text: hashed_tokens(text, vocabulary),
            limits.tokens,
            limits.turns,
        )
        for item in recorded
    ]
    within = [session for session in map(limits.apply, sessions) if session.turns]
    if not within:
        raise SystemExit(f"expected turns within {limits.tokens} tokens per session in {trace}, found none")
    return within
