"""What a learned residency set changes on this machine: recorded sessions replayed in this process, before and after.

    python benchmarks/learning_gpu.py --libraries LIB --model MODEL.gguf --out result.json [--hot 0.44]

Development sessions are replayed under a set that is spread evenly, and their routes are counted. The daemon's planner
learns a set of the same size from them. Held-out sessions, of other tasks, are then timed under both sets: time to
first token of every turn, time per output token one by one, cold routes per token. Where the engine lends memory, so
are they under the set that a daemon starts with, which leaves more of it. In between, in the middle of a
conversation, the set is swapped in place: the tokens that the context holds must stay, and the same conversation
without the swap must go on with the same logits.

    --drift swe airline     after sessions of one kind those of another come (`learning_changes.py`)
    --adversary             a log that favours what sessions use least (`learning_changes.py`)

These two run the daemon's learning service and need its packages too.

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
from collections.abc import Sequence
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
from agent_sessions import RecordedSession
from learning_experiment import Experiment, Mask, spread
from session_replayer import SKIPPED_STEPS, Played, TurnTimes

from ostinatod.bench.placed_model import EngineLog
from ostinatod.bindings import load_bindings
from ostinatod.profiles.cold_cost import ColdCost
from ostinatod.profiles.coverage import coverage, mean_shares
from ostinatod.profiles.planner import plan_hot, spread_evenly
from ostinatod.profiles.rates import learned_rates
from ostinatod.profiles.route_log import SessionRoutes
from ostinatod.profiles.step_time import StepSample, check_predictions, fit_step_time, mean_cold_routes


def swap_in_mid_conversation(
    experiment: Experiment, session: RecordedSession, before: Mask, after: Mask
) -> dict[str, Any]:
    """A conversation under `before`, then again with the set swapped to `after` half way."""
    plain, swapped = Played(), Played()
    experiment.use(before)
    experiment.replayer.play(session, plain)
    half = len(plain.turns) // 2
    told: dict[str, Any] = {"turns": len(plain.turns), "swapped_before_turn": half}

    def between(number: int) -> None:
        if number == half:
            held = experiment.replayer.held_tokens()
            told.update(experiment.use(after))
            told["tokens_held"] = [held, experiment.replayer.held_tokens()]

    experiment.replayer.play(session, swapped, between=between)
    pairs = list(zip(plain.turns, swapped.turns, strict=True))
    told["same_tokens_reused"] = all(a.held_tokens == b.held_tokens for a, b in pairs[1:])
    told["same_tokens_read"] = all(a.new_tokens == b.new_tokens for a, b in pairs[1:])
    told["nmse_before"] = _nmse(pairs[:half])
    told["nmse_after"] = _nmse(pairs[half:])
    told["same_argmax"] = all(int(np.argmax(a.logits)) == int(np.argmax(b.logits)) for a, b in pairs)
    return told


def before_and_after(experiment: Experiment) -> tuple[dict[str, Any], list[SessionRoutes]]:
    """The experiment in the order of the module's description, and the routes of the development sessions."""
    development, tested = experiment.of("development"), experiment.of("held-out")
    experiment.fitting(lambda pool: spread_evenly(experiment.places, pool))
    loaded = experiment.counters()
    started = time.monotonic()
    learned_from = experiment.play(development)
    print(f"{len(development)} development sessions in {time.monotonic() - started:.0f} s", flush=True)
    rho = learned_rates(learned_from.routes, experiment.experts.k, experiment.forgetting)
    learned = experiment.fitting(lambda pool: plan_hot(rho, experiment.places, pool))
    even = spread_evenly(experiment.places, (experiment.budget,))
    earlier = learned_rates(learned_from.routes[:-1], experiment.experts.k, experiment.forgetting)

    swaps = {"learned_to_even": experiment.use(even)}
    experiment.play(tested[:1])  # so that neither set is timed while code and memory are cold
    counted = [experiment.counters()]
    before = experiment.play_afresh(tested)
    counted.append(experiment.counters())
    told: dict[str, Any] = {"conversation": swap_in_mid_conversation(experiment, tested[-1], even, learned)}
    counted.append(experiment.counters())
    after = experiment.play_afresh(tested)
    counted.append(experiment.counters())
    swaps["even_to_learned"] = {name: told["conversation"][name] for name in ("moved", "moved_bytes", "swap_ms")}
    swaps["learned_to_the_set_of_one_session_less"] = experiment.use(
        plan_hot(earlier, experiment.places, (experiment.budget,))
    )
    swaps["and_back"] = experiment.use(learned)
    smaller = None
    if (room := experiment.unlearned_bytes()) < experiment.budget:
        smaller = spread_evenly(experiment.places, (room,))
        swaps["learned_to_unlearned"] = experiment.use(smaller)
        counted.append(experiment.counters())
        unlearned = experiment.play_afresh(tested)
        counted.append(experiment.counters())
    seen, coming = _samples([*learned_from.turns, *before.turns], even), _samples(after.turns, learned)
    cost = counted[1].since(loaded).cost(k=experiment.experts.k, cold_routes=mean_cold_routes(seen))
    phases = [("before", 0, before, even), ("after", 2, after, learned)]
    if smaller is not None:
        phases.append(("unlearned", 4, unlearned, smaller))
    costs = {
        name: counted[n + 1].since(counted[n]).described(max(1, sum(item.output_tokens for item in played.routes)))
        for name, n, played, _ in phases
    }
    best = plan_hot(mean_shares(after.routes, experiment.forgetting), experiment.places, (experiment.budget,))
    told |= {
        "hot_experts": int(learned.sum()),
        "hot_share": round(float(learned.sum()) / sum(experiment.places.n_experts), 4),
        "pool_bytes": experiment.budget,
        "development": {"sessions": len(development), "tokens": sum(item.tokens for item in learned_from.routes)},
        "held_out": {"sessions": len(tested), "turns": len(after.turns)},
        **{name: experiment.figures(played, hot) for name, _, played, hot in phases},
        "hindsight_coverage": round(coverage(after.routes, best, experiment.forgetting).overall, 4),
        "swaps": swaps,
        "decode": costs,
        "prediction": prediction(seen, coming, cost),
    }
    return told, learned_from.routes


def changes(
    experiment: Experiment, arguments: argparse.Namespace, routes: Sequence[SessionRoutes]
) -> tuple[dict[str, Any], str]:
    """What was asked for besides, given the development sessions' routes; with tables for people."""
    # Needs the daemon's packages, and a machine for experiments may have numpy alone.
    from learning_changes import adversary, adversary_table, drift, drift_table

    told: dict[str, Any] = {}
    tables = []
    if arguments.drift:
        first, then = arguments.drift
        names = {session.name for session in experiment.of("development") if session.domain == first}
        known = [session for session in routes if session.session in names]
        told["drift"] = {"from": first, "to": then, **drift(experiment, known, then, arguments.model)}
        tables.append(drift_table(told["drift"]))
    if arguments.adversary:
        told["adversary"] = adversary(experiment, routes, arguments.model)
        tables.append(adversary_table(told["adversary"]))
    return told, "\n".join(tables)


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
        result["tpot_ms_predicted"] = spread(expected)
        result["tpot_ms_measured"] = spread([sample.tpot_ms for sample in coming])
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


def _nmse(pairs: Sequence[tuple[TurnTimes, TurnTimes]]) -> float:
    """Normalised mean square error of the second of each pair's logits."""
    error = sum(float(((a.logits.astype(np.float64) - b.logits) ** 2).sum()) for a, b in pairs)
    return error / max(sum(float((a.logits.astype(np.float64) ** 2).sum()) for a, _ in pairs), 1e-30)


def _summary(result: dict[str, Any]) -> str:
    lines = []
    for name in (name for name in ("before", "unlearned", "after") if name in result):
        told = result[name]
        waits = ", ".join(f"{bucket}: {spread['p50']}" for bucket, spread in told["ttft_ms"].items() if spread)
        lines.append(
            f"{name:<9} coverage {told['coverage']:.3f}, cold routes per token {told['cold_routes_per_token']}, "
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
            f"{name:<9} of {cold} cold routes of a decoded token {told['computed_routes_per_token']} are computed, in "
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
    parser.add_argument("--drift", nargs=2, metavar=("FROM", "TO"), help="kinds of sessions: the first was learned")
    parser.add_argument("--adversary", action="store_true", help="mislead the log, and time what follows")
    parser.add_argument("--hot", type=float, default=0.44, help="share of the experts' bytes that is hot")
    parser.add_argument("--turns", type=int, default=8, help="of each session, at most")
    parser.add_argument("--answer-tokens", type=int, default=64, help="of each answer, at most; decoded one by one")
    parser.add_argument(
        "--upload-tokens",
        type=int,
        default=0,
        help="passes of so many may upload cold experts; 0: the engine's own number",
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

    def keep(result: dict[str, Any]) -> None:
        result["seconds"] = round(time.monotonic() - started)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    try:
        experiment = Experiment(arguments, bindings)
        devices = [device.name for device in experiment.run.devices()]
        told, routes = before_and_after(experiment)
        result = {
            "machine": f"{platform.node()}, {platform.machine()}, {os.cpu_count()} logical cores, {', '.join(devices)}",
            "date": time.strftime("%Y-%m-%d"),
            "command": " ".join(["python", *sys.argv]),
            "model": arguments.model.name,
            **told,
        }
        keep(result)
        print(_summary(result), flush=True)
        if arguments.drift or arguments.adversary:
            told, table = changes(experiment, arguments, routes)
            keep(result | told)
            print(table)
    except BaseException:
        sys.stderr.write(log.text[-3000:])
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
