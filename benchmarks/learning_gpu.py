"""What a learned residency set changes on this machine: recorded sessions replayed in this process, before and after.

    python benchmarks/learning_gpu.py --libraries LIB --model MODEL.gguf --out result.json [--hot 0.44]

Development sessions are replayed under a set that is spread evenly, and their routes are counted. The daemon's planner
learns a set of the same size from them. Held-out sessions, of other tasks, are then timed under both sets: time to
first token of every turn, time per output token one by one, cold routes per token. In between, in the middle of a
conversation, the set is swapped in place: the tokens that the context holds must stay, and the same conversation
without the swap must go on with the same logits.

Sessions come as tokens (`agent_sessions.py`), so any model can be replayed whose vocabulary has as many entries as the
bundled one's, also one without a tokenizer. Needs numpy and the engine's libraries. On a CPU everything but the times
means the same.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
from agent_sessions import RecordedSession, read_sessions
from decode_costs import DecodeCounters, read_counters
from numpy.typing import NDArray
from session_replayer import SKIPPED_STEPS, Played, Replayer, TurnTimes

from ostinatod.bench.memory import memory_for, pool_limit
from ostinatod.bench.placed_model import PASS_TOKENS, EngineLog, PlacedModel
from ostinatod.bench.settings import Setting
from ostinatod.bindings import Bindings, load_bindings
from ostinatod.errors import EngineError
from ostinatod.profiles.cold_cost import ColdCost
from ostinatod.profiles.coverage import coverage, mean_shares
from ostinatod.profiles.experts import ModelExperts, read_experts
from ostinatod.profiles.gguf_model import read_model
from ostinatod.profiles.planner import ExpertPlaces, plan_hot, spread_evenly
from ostinatod.profiles.rates import Forgetting, learned_rates
from ostinatod.profiles.step_time import StepSample, check_predictions, fit_step_time, mean_cold_routes

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
        longest = max(_context_tokens(session, arguments.turns, arguments.answer_tokens) for session in self.sessions)
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

    def play(self, sessions: Sequence[RecordedSession]) -> Played:
        """Show sessions one after the other."""
        played = Played()
        for session in sessions:
            self.replayer.play(session, played)
        return played

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
            "coverage_prefill": _rounded(found.prefill),
            "coverage_decode": _rounded(found.decode),
            "cold_routes_per_token": {phase: round(value, 2) for phase, value in cold.items()},
            "tpot_ms": _spread(steps),
            "ttft_ms": {
                name: _spread([turn.ttft_ms for turn in played.turns if low < turn.new_tokens <= high])
                for name, low, high in _buckets()
            },
        }

    def counters(self) -> DecodeCounters:
        """What the engine has counted of decode so far."""
        return read_counters(self.bindings, self.run.handle, self.run.devices())

    def swap_in_mid_conversation(self, session: RecordedSession, before: Mask, after: Mask) -> dict[str, Any]:
        """A conversation under `before`, then again with the set swapped to `after` half way."""
        plain, swapped = Played(), Played()
        self.use(before)
        self.replayer.play(session, plain)
        half = len(plain.turns) // 2
        told: dict[str, Any] = {"turns": len(plain.turns), "swapped_before_turn": half}

        def between(number: int) -> None:
            if number == half:
                held = self.replayer.held_tokens()
                told.update(self.use(after))
                told["tokens_held"] = [held, self.replayer.held_tokens()]

        self.replayer.play(session, swapped, between=between)
        pairs = list(zip(plain.turns, swapped.turns, strict=True))
        told["same_tokens_reused"] = all(a.held_tokens == b.held_tokens for a, b in pairs[1:])
        told["same_tokens_read"] = all(a.new_tokens == b.new_tokens for a, b in pairs[1:])
        told["nmse_before"] = _nmse(pairs[:half])
        told["nmse_after"] = _nmse(pairs[half:])
        told["same_argmax"] = all(int(np.argmax(a.logits)) == int(np.argmax(b.logits)) for a, b in pairs)
        return told

    def result(self) -> dict[str, Any]:
        """The whole experiment, in the order of the module's description."""
        development, tested = self.of("development"), self.of("held-out")
        self.fitting(lambda pool: spread_evenly(self.places, pool))
        loaded = self.counters()
        started = time.monotonic()
        learned_from = self.play(development)
        print(f"{len(development)} development sessions in {time.monotonic() - started:.0f} s", flush=True)
        rho = learned_rates(learned_from.routes, self.experts.k, self.forgetting)
        learned = self.fitting(lambda pool: plan_hot(rho, self.places, pool))
        even = spread_evenly(self.places, (self.budget,))
        earlier = learned_rates(learned_from.routes[:-1], self.experts.k, self.forgetting)

        swaps = {"learned_to_even": self.use(even)}
        self.play(tested[:1])  # so that neither set is timed while code and memory are cold
        counted = [self.counters()]
        before = self.play(tested)
        counted.append(self.counters())
        told = {"conversation": self.swap_in_mid_conversation(tested[-1], even, learned)}
        counted.append(self.counters())
        after = self.play(tested)
        counted.append(self.counters())
        swaps["even_to_learned"] = {name: told["conversation"][name] for name in ("moved", "moved_bytes", "swap_ms")}
        swaps["learned_to_the_set_of_one_session_less"] = self.use(plan_hot(earlier, self.places, (self.budget,)))
        swaps["and_back"] = self.use(learned)
        seen, coming = _samples([*learned_from.turns, *before.turns], even), _samples(after.turns, learned)
        cost = counted[1].since(loaded).cost(k=self.experts.k, cold_routes=mean_cold_routes(seen))
        costs = {
            name: counters.described(max(1, sum(item.output_tokens for item in played.routes)))
            for name, counters, played in (
                ("before", counted[1].since(counted[0]), before),
                ("after", counted[3].since(counted[2]), after),
            )
        }
        best = plan_hot(mean_shares(after.routes, self.forgetting), self.places, (self.budget,))
        return {
            "hot_experts": int(learned.sum()),
            "hot_share": round(float(learned.sum()) / sum(self.places.n_experts), 4),
            "pool_bytes": self.budget,
            "development": {"sessions": len(development), "tokens": sum(item.tokens for item in learned_from.routes)},
            "held_out": {"sessions": len(tested), "turns": len(after.turns)},
            "before": self.figures(before, even),
            "after": self.figures(after, learned),
            "hindsight_coverage": round(coverage(after.routes, best, self.forgetting).overall, 4),
            **told,
            "swaps": swaps,
            "decode": costs,
            "prediction": prediction(seen, coming, cost),
        }


def prediction(seen: Sequence[StepSample], coming: Sequence[StepSample], cost: ColdCost | None) -> dict[str, Any]:
    """What answers under one set predict for those under another, and what these took.

    cost  of cold routes as the engine measured it under the first set, which is all that a daemon knows then
    """
    fit, check = fit_step_time(seen, cost), check_predictions(seen, cost)
    result: dict[str, Any] = {
        "cost": None if cost is None else _curve(cost, mean_cold_routes(seen), mean_cold_routes(coming)),
        "step_time": None if fit is None else {**_numbers(asdict(fit)), "route_ms": round(fit.route_ms, 5)},
        "check_under_the_even_set": None if check is None else asdict(check),
    }
    if fit is not None and coming:
        expected = [fit.of_request(sample) for sample in coming]
        errors = [sample.tpot_ms / value - 1 for sample, value in zip(coming, expected, strict=True)]
        result["tpot_ms_predicted"] = _spread(expected)
        result["tpot_ms_measured"] = _spread([sample.tpot_ms for sample in coming])
        result["relative_error_p50"] = round(statistics.median(errors), 4)
    result["answers"] = {
        name: [[round(value, 3) for value in astuple(sample)] for sample in samples]
        for name, samples in (("seen", seen), ("coming", coming))
    }
    return result


def _curve(cost: ColdCost, now: float, then: float) -> dict[str, Any]:
    """What is expected of so many cold routes per token by the set: now, and with another set."""
    points = {
        f"{cold:.2f} cold routes": {
            "computed": round(float(cost.computed(cold)), 3),
            "cost_ms": round(float(cost.ms(cold)), 4),
        }
        for cold in (now, then)
    }
    return {"layer_ms": [round(value, 4) for value in cost.layer_ms], "lent": round(cost.lent, 4), **points}


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {name: round(value, 5) for name, value in values.items() if isinstance(value, int | float)}


def _samples(turns: Sequence[TurnTimes], hot: Mask) -> list[StepSample]:
    """One for each answer that is long enough to have times; all under one set."""
    samples = [
        StepSample(
            tpot_ms=statistics.mean(turn.step_ms),
            cold_routes=float(turn.decoded[~hot].sum()) / (len(turn.step_ms) + SKIPPED_STEPS),
            context_tokens=turn.held_tokens + turn.new_tokens + len(turn.step_ms) / 2,
            output_tokens=len(turn.step_ms),
        )
        for turn in turns
        if turn.step_ms
    ]
    usual = mean_cold_routes(samples)
    return [replace(sample, usual_cold_routes=usual) for sample in samples]


def _buckets() -> list[tuple[str, float, float]]:
    edges = (0, *BUCKETS, float("inf"))
    names = [f"{low + 1}-{high}" for low, high in zip((0, *BUCKETS[:-1]), BUCKETS, strict=True)]
    return list(zip([*names, f"more than {BUCKETS[-1]}"], edges[:-1], edges[1:], strict=True))


def _spread(values: Sequence[float]) -> dict[str, Any] | None:
    if not values:
        return None
    return {"n": len(values), "p50": round(statistics.median(values), 3), "mean": round(statistics.mean(values), 3)}


def _nmse(pairs: Sequence[tuple[TurnTimes, TurnTimes]]) -> float:
    """Normalised mean square error of the second of each pair's logits."""
    error = sum(float(((a.logits.astype(np.float64) - b.logits) ** 2).sum()) for a, b in pairs)
    return error / max(sum(float((a.logits.astype(np.float64) ** 2).sum()) for a, _ in pairs), 1e-30)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _context_tokens(session: RecordedSession, turns: int, answer_tokens: int) -> int:
    """What a session takes of the context."""
    return sum(len(turn.new) + min(len(turn.answer), answer_tokens) for turn in session.turns[:turns])


def _summary(result: dict[str, Any]) -> str:
    lines = []
    for name in ("before", "after"):
        told = result[name]
        waits = ", ".join(f"{bucket}: {spread['p50']}" for bucket, spread in told["ttft_ms"].items() if spread)
        lines.append(
            f"{name:<7} coverage {told['coverage']:.3f}, cold routes per token {told['cold_routes_per_token']}, "
            f"TPOT {told['tpot_ms']['p50']} ms, TTFT by new tokens {waits} ms"
        )
    talk = result["conversation"]
    lines.append(
        f"swap in mid-conversation: {talk['moved']} experts in {talk['swap_ms']} ms, "
        f"tokens held {talk['tokens_held']}, same tokens reused {talk['same_tokens_reused']}, "
        f"NMSE {talk['nmse_after']:.1e}"
    )
    for name, told in result["decode"].items():
        if not told["cpu_branch"]:
            continue
        cold = result[name]["cold_routes_per_token"]["decode"]
        lines.append(
            f"{name:<7} of {cold} cold routes of a decoded token {told['computed_routes_per_token']} are computed, in "
            f"{told['layers_with_any_per_token']} layers; waits {told['waited_ms_per_token']} ms"
        )
        lines += [
            f"        CPU branch {fit['alpha_ms']} + {fit['beta_ms']} r ms, GPU {told['overlap']['gpu_branch_ms']} + "
            f"{fit['link_ms']} r ms"
            for fit in told["cpu_branch"]
        ]
    if "relative_error_p50" in (told := result["prediction"]):
        lines.append(
            f"TPOT predicted {told['tpot_ms_predicted']['p50']} ms, measured {told['tpot_ms_measured']['p50']} ms "
            f"({told['relative_error_p50']:+.1%} in the median of turns)"
        )
    return "\n".join(lines)


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    sessions = Path(__file__).parents[1] / "tests" / "data" / "agent-sessions.npz"
    parser.add_argument("--libraries", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sessions", type=Path, default=sessions)
    parser.add_argument("--domains", nargs="*", help="only these")
    parser.add_argument("--hot", type=float, default=0.44, help="share of the experts' bytes that is hot")
    parser.add_argument("--turns", type=int, default=8, help="of each session, at most")
    parser.add_argument("--answer-tokens", type=int, default=64, help="of each answer, at most; decoded one by one")
    parser.add_argument(
        "--upload-tokens", type=int, default=0, help="passes of so many may upload cold experts; 0: none"
    )
    parser.add_argument("--link-percent", type=int, default=0, help="0: as measured; -1: none in place")
    parser.add_argument("--pin-bytes", type=int, default=0, help="host memory to page-lock; 0: what can be spared")
    parser.add_argument("--threads", type=int, default=0, help="of the CPU branch; 0: as many as are worth having")
    arguments = parser.parse_args()

    bindings = load_bindings(arguments.libraries)
    core: Any = bindings.llama_cpp.llama_cpp
    log = EngineLog(core)
    core.llama_backend_init()
    started = time.monotonic()
    try:
        experiment = Experiment(arguments, bindings)
        devices = [device.name for device in experiment.run.devices()]
        result = {
            "machine": f"{platform.node()}, {platform.machine()}, {os.cpu_count()} logical cores, {', '.join(devices)}",
            "date": time.strftime("%Y-%m-%d"),
            "command": " ".join(["python", *sys.argv]),
            "model": arguments.model.name,
            **experiment.result(),
            "seconds": round(time.monotonic() - started),
        }
    except BaseException:
        sys.stderr.write(log.text[-3000:])
        raise
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(_summary(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
