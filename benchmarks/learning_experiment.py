"""A model, recorded sessions and the sets that it is given: what every experiment on learning plays and measures."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from agent_sessions import RecordedSession, read_sessions
from decode_costs import DecodeCounters, read_counters
from numpy.typing import NDArray
from session_replayer import Played, Replayer

from ostinatod.bench.memory import memory_for, pool_limit
from ostinatod.bench.placed_model import PASS_TOKENS, PlacedModel
from ostinatod.bench.settings import Setting
from ostinatod.bindings import Bindings
from ostinatod.errors import EngineError
from ostinatod.profiles.coverage import coverage
from ostinatod.profiles.experts import ModelExperts, read_experts
from ostinatod.profiles.gguf_model import read_model
from ostinatod.profiles.planner import ExpertPlaces
from ostinatod.profiles.rates import Forgetting

Mask = NDArray[np.bool_]

BUCKETS = (64, 256, 1024)
"""New tokens of a turn, at most; longer ones, mostly first turns, are a bucket of their own."""
BUDGET_STEP = 1 / 128
"""Of all experts' bytes: what a set gives up when the pool has less room than its size says."""


class Experiment:
    """One model, its sessions and its sets."""

    def __init__(self, arguments: argparse.Namespace, bindings: Bindings) -> None:
        header = read_model([arguments.model])
        experts = read_experts(header)
        if experts is None:
            raise SystemExit(f"{arguments.model} has no routed experts")
        self.experts: ModelExperts = experts
        self.places: ExpertPlaces = experts.places()
        self.forgetting = Forgetting()
        self.sessions = [
            session
            for session in read_sessions(arguments.sessions)
            if not arguments.domains or session.domain in arguments.domains
        ]
        longest = max(context_tokens(session, arguments.turns, arguments.answer_tokens) for session in self.sessions)
        self.budget = int(arguments.hot * self.places.total_bytes)
        on_gpu = any(arguments.libraries.glob("libggml-cuda*"))
        setting = Setting(
            "learned",
            "ostinato",
            threads=arguments.threads,
            pool_bytes=pool_limit(memory_for(self.budget)) if on_gpu else self.budget,
            timeout_ms=20_000,
            upload_tokens=arguments.upload_tokens,
            link_percent=arguments.link_percent,
            pin_bytes=arguments.pin_bytes,
        )
        self.run = PlacedModel(bindings, arguments.model, setting, n_ctx=longest + PASS_TOKENS, on_gpu=on_gpu)
        self.bindings = bindings
        self.replayer = Replayer(self.run, bindings, arguments.answer_tokens, arguments.turns)
        self.running: Mask | None = None

    def of(self, part: str) -> list[RecordedSession]:
        """Sessions of a part, those of a domain one after the other."""
        return sorted((item for item in self.sessions if item.part == part), key=lambda item: item.domain)

    def use(self, hot: Mask) -> dict[str, Any]:
        """Swap to a set; how many experts moved, and how long it took. Raises EngineError where it does not fit."""
        new = hot if self.running is None else hot & ~self.running
        started = time.perf_counter()
        self.bindings.set_residency(self.run.handle, hot)
        swap_ms = (time.perf_counter() - started) * 1000
        self.running = hot
        return {"moved": int(new.sum()), "moved_bytes": self.places.hot_bytes(new), "swap_ms": round(swap_ms, 2)}

    def fitting(self, make: Callable[[Sequence[int]], Mask]) -> Mask:
        """The largest set of this kind that the engine takes: alignment and zero slots need some of the pool."""
        while self.budget > 0:
            hot = make((self.budget,))
            try:
                self.use(hot)
                return hot
            except EngineError:
                self.budget -= int(BUDGET_STEP * self.places.total_bytes)
        raise SystemExit("no set fits the expert pool")

    def unlearned_bytes(self) -> int:
        """What of the budget a set should take that nobody has learned, by the engine."""
        shares = [device.pool_unlearned / device.pool_room for device in self.run.devices() if device.is_gpu]
        return int(min(shares, default=1.0) * self.budget)

    def play(self, sessions: Sequence[RecordedSession]) -> Played:
        """Show sessions one after the other."""
        played = Played()
        for session in sessions:
            self.replayer.play(session, played)
        return played

    def play_afresh(self, sessions: Sequence[RecordedSession]) -> Played:
        """Show sessions one after the other to an empty context, so that they read the same under any set."""
        self.replayer.forget()
        return self.play(sessions)

    def figures(self, played: Played, hot: Mask) -> dict[str, Any]:
        """Coverage, cold routes and times of what was played under a set."""
        found = coverage(played.routes, hot, self.forgetting)
        steps = [step for turn in played.turns for step in turn.step_ms]
        cold = {
            phase: sum(int(getattr(item, phase)[~hot].sum()) for item in played.routes) / max(1, tokens)
            for phase, tokens in (
                ("prefill", sum(item.new_tokens for item in played.routes)),
                ("decode", sum(item.output_tokens for item in played.routes)),
            )
        }
        return {
            "coverage": round(found.overall, 4),
            "coverage_prefill": rounded(found.prefill),
            "coverage_decode": rounded(found.decode),
            "cold_routes_per_token": {phase: round(value, 2) for phase, value in cold.items()},
            "tpot_ms": spread(steps),
            "ttft_ms": {
                name: spread([turn.ttft_ms for turn in played.turns if low < turn.new_tokens <= high])
                for name, low, high in buckets()
            },
        }

    def counters(self) -> DecodeCounters:
        """What the engine has counted of decode so far."""
        return read_counters(self.bindings, self.run.handle, self.run.devices())


def context_tokens(session: RecordedSession, turns: int, answer_tokens: int) -> int:
    """What a session takes of the context."""
    return sum(len(turn.new) + min(len(turn.answer), answer_tokens) for turn in session.turns[:turns])


def buckets() -> list[tuple[str, float, float]]:
    edges = (0, *BUCKETS, float("inf"))
    names = [f"{low + 1}-{high}" for low, high in zip((0, *BUCKETS[:-1]), BUCKETS, strict=True)]
    return list(zip([*names, f"more than {BUCKETS[-1]}"], edges[:-1], edges[1:], strict=True))


def spread(values: Sequence[float]) -> dict[str, Any] | None:
    if not values:
        return None
    return {"n": len(values), "p50": round(statistics.median(values), 3), "mean": round(statistics.mean(values), 3)}


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
