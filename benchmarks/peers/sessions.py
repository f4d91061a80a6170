"""Recorded sessions for every engine: the turns that `ostinato bench` replays, under each engine's best setting."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostinatod.bench.sessions import Limits, Session
from ostinatod.bench.tokens import hashed_tokens, tokenized_session
from ostinatod.bench.traces import choose, read_traces, render_plainly, text_turns
from ostinatod.profiles.gguf_header import read_header

Totals = Mapping[tuple[str, int], float]
"""Milliseconds of each turn, by session and number."""


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

    def totals(self) -> Totals:
        """The time of every turn it has."""
        return {(name, i): turn["total_ms"] for name, turns in self.turns.items() for i, turn in enumerate(turns)}

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


def totals_of_replay(file: Path) -> dict[str, Totals]:
    """What benchmarks/replay.py timed, from its turns.jsonl, by setting; medians of repeats."""
    times: dict[str, dict[tuple[str, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "total_ms" in row:
            times[row["setting"]][row["session"], row["turn"]].append(row["total_ms"])
    return {name: {turn: statistics.median(ms) for turn, ms in found.items()} for name, found in times.items()}


def totals_table(engines: Mapping[str, Totals]) -> str:
    """Seconds of each session by engine as a Markdown table, of the turns that every engine in it has."""
    engines = {name: totals for name, totals in engines.items() if totals}
    if not engines:
        return "no session was replayed"
    common = set.intersection(*(set(totals) for totals in engines.values()))
    rows = [["session", "turns", *engines], ["---"] * (len(engines) + 2)]
    for session in [*dict.fromkeys(name for name, _ in next(iter(engines.values()))), ""]:
        turns = [turn for turn in common if session in ("", turn[0])]
        if turns:
            seconds = [sum(totals[turn] for turn in turns) / 1000 for totals in engines.values()]
            rows.append([session or "all", str(len(turns)), *(f"{value:.2f}" for value in seconds)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
