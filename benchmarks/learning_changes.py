"""How the daemon's learning follows work that changes, and what a log made to mislead it costs; times measured.

Both need development sessions that were played before, whose routes are the log to begin with. What the daemon decides
it decides by itself (`daemon_learning.py`); here sessions are played under the sets that it has chosen.

drift      Sessions of one kind were learned. Those of another come, and held-out ones of that kind are timed under each
           set on the way, under an even one, and under the one that learning from that kind alone gives.
adversary  Wild sessions are logged, a million routes to each expert of the half that real ones use least. Real ones
           follow and are timed under what the daemon uses by then, and under its default.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from agent_sessions import RecordedSession
from daemon_learning import DaemonLearning
from learning_experiment import Experiment, Mask
from learning_replay import wild_session
from session_replayer import Played, TurnTimes
from text_table import shown, text_table

from ostinatod.learning.application import Applied
from ostinatod.profiles.coverage import coverage, mean_shares
from ostinatod.profiles.planner import plan_hot, spread_evenly
from ostinatod.profiles.rates import learned_rates
from ostinatod.profiles.route_log import SessionRoutes

TIMED_AFTER = (1, 2, 4, 8, 16)
"""Sessions of the new kind; and after the last."""
REAL_SESSIONS = 6
"""That follow wild ones, at most."""


@dataclass(frozen=True, slots=True)
class Attack:
    """What is logged that no model has routed."""

    name: str
    known: tuple[SessionRoutes, ...]
    """Real sessions that were logged before."""
    wild_before: int
    """Wild sessions before the first real one that is timed."""
    wild_between: int
    """After every one of these."""


def drift(experiment: Experiment, known: Sequence[SessionRoutes], kind: str, model: Path) -> dict[str, Any]:
    """Sessions of `kind` come after those that are known. Ends with the last set in use."""
    coming, tested = (
        [session for session in experiment.of(part) if session.domain == kind] for part in ("development", "held-out")
    )
    if not (known and coming and tested):
        raise SystemExit(f"expected sessions to drift from, and development and held-out ones of {kind}")
    pool = (experiment.budget,)
    rows: list[dict[str, Any]] = []

    def timed(name: str, hot: Mask, **told: Any) -> Played:
        played = experiment.play_afresh(tested)
        rows.append({"set": name, **told, **experiment.figures(played, hot)})
        return played

    even = spread_evenly(experiment.places, pool)
    experiment.use(even)
    routes = timed("even", even).routes
    with TemporaryDirectory() as directory:
        learning = DaemonLearning(model, experiment.budget, experiment.use, Path(directory), known)
        last = learning.running
        timed("before", last, sessions=0, **_generation(learning))
        steps, new = [], []
        for number, session in enumerate(coming, 1):
            played, applied = _served(experiment, learning, session)
            new += played.routes
            hot = learning.running
            covered = coverage(routes, hot, experiment.forgetting).overall
            steps.append({"sessions": number, **_decided(learning, applied), "coverage_held_out": round(covered, 4)})
            if (number in TIMED_AFTER or number == len(coming)) and not np.array_equal(hot, last):
                timed("adapted", hot, sessions=number, **_generation(learning))
                last = hot
        least_gain, in_use = learning.least_gain, learning.running
    alone = plan_hot(learned_rates(new, experiment.experts.k, experiment.forgetting), experiment.places, pool)
    experiment.use(alone)
    timed("alone", alone, sessions=len(coming))
    experiment.use(in_use)
    best = plan_hot(mean_shares(routes, experiment.forgetting), experiment.places, pool)
    aim = coverage(routes, alone, experiment.forgetting).overall - least_gain
    return {
        "known_sessions": len(known),
        "held_out": {"sessions": len(tested), "kind": kind},
        "rows": rows,
        "steps": steps,
        "hindsight_coverage": round(coverage(routes, best, experiment.forgetting).overall, 4),
        "least_gain": least_gain,
        "sessions_until_as_good_as_alone": next(
            (step["sessions"] for step in steps if step["coverage_held_out"] >= aim), None
        ),
    }


def adversary(experiment: Experiment, known: Sequence[SessionRoutes], model: Path) -> dict[str, Any]:
    """Wild logs on the first day, after learning, and between all sessions. Leaves any set in use."""
    work = [*experiment.of("held-out"), *experiment.of("development")][:REAL_SESSIONS]
    default = spread_evenly(experiment.places, (experiment.budget,))
    experiment.use(default)
    usual = [experiment.play_afresh([session]) for session in work]
    wild = wild_session([*known, *(played.routes[0] for played in usual)])
    attacks = (
        Attack("first day", (), wild_before=3, wild_between=0),
        Attack("after learning", tuple(known), wild_before=8, wild_between=0),
        Attack("one between all sessions", tuple(known), wild_before=1, wild_between=1),
    )
    told = [_attacked(experiment, attack, wild, list(zip(work, usual, strict=True)), model) for attack in attacks]
    return {"sessions": len(work), "turns": sum(len(played.turns) for played in usual), "attacks": told}


def _attacked(
    experiment: Experiment,
    attack: Attack,
    wild: SessionRoutes,
    work: Sequence[tuple[RecordedSession, Played]],
    model: Path,
) -> dict[str, Any]:
    """One attack. `work` are real sessions, and what they did under the default set."""
    default = spread_evenly(experiment.places, (experiment.budget,))
    rows = []
    with TemporaryDirectory() as directory:
        learning = DaemonLearning(model, experiment.budget, experiment.use, Path(directory), attack.known)
        decisions = [_shown_wild(learning, wild, number) for number in range(attack.wild_before)]
        for number, (session, usual) in enumerate(work, attack.wild_before):
            hot, served = learning.running, _generation(learning)
            is_default = bool(np.array_equal(hot, default))
            began_at = time.time()
            # Under the default set it would do again what it has done.
            played = usual if is_default else experiment.play_afresh([session])
            learning.ended(played.routes[0], began_at, _tpots_ms(played.turns))
            told = {"turns": len(played.turns), "timed": not is_default, **served}
            for name, doing, mask in (("", played, hot), ("_default", usual, default)):
                covered = coverage(doing.routes, mask, experiment.forgetting).overall
                told |= {f"coverage{name}": round(covered, 4), **_times(doing.turns, name)}
            told["then"] = _decided(learning, learning.look())
            rows.append(told)
            decisions += [_shown_wild(learning, wild, number) for _ in range(attack.wild_between)]
        history = [
            {name: getattr(item, name) for name in ("generation", "source", "state", "coverage_held_out", "note")}
            for item in reversed(learning.history())
        ]
    below = [row for row in rows if row["coverage"] < row["coverage_default"]]
    request_ms, usual_ms = (sum(row[name] for row in below) for name in ("request_ms", "request_ms_default"))
    return {
        "name": attack.name,
        "known_sessions": len(attack.known),
        "wild_before": attack.wild_before,
        "wild_between": attack.wild_between,
        "after_wild": decisions,
        "rows": rows,
        "below_default": {
            "sessions": len(below),
            "turns": sum(row["turns"] for row in below),
            "request_ms": round(request_ms, 1),
            "request_ms_default": round(usual_ms, 1),
        },
        "all": {name: round(sum(row[name] for row in rows), 1) for name in ("request_ms", "request_ms_default")},
        "history": history,
    }


def _served(
    experiment: Experiment, learning: DaemonLearning, session: RecordedSession
) -> tuple[Played, Applied | None]:
    """A session is played and logged, and the daemon looks at the model."""
    began_at = time.time()
    played = experiment.play_afresh([session])
    learning.ended(played.routes[0], began_at, _tpots_ms(played.turns))
    return played, learning.look()


def _shown_wild(learning: DaemonLearning, wild: SessionRoutes, number: int) -> dict[str, Any]:
    learning.ended(replace(wild, session=f"wild-{number}"), time.time())
    return _decided(learning, learning.look())


def _decided(learning: DaemonLearning, applied: Applied | None) -> dict[str, Any]:
    """What a look at the model led to."""
    if applied is None:
        return {"changed": False, **_generation(learning)}
    swap_ms = None if applied.swap_ms is None else round(applied.swap_ms, 2)
    return {"changed": True, "moved": applied.moved, "swap_ms": swap_ms, **_generation(learning)}


def _generation(learning: DaemonLearning) -> dict[str, Any]:
    return {"generation": learning.active.generation, "source": learning.active.source}


def _tpots_ms(turns: Sequence[TurnTimes]) -> list[float]:
    return [statistics.mean(turn.step_ms) for turn in turns if turn.step_ms]


def _times(turns: Sequence[TurnTimes], name: str) -> dict[str, float | None]:
    """Medians, and all requests together."""
    steps = [step for turn in turns for step in turn.step_ms]
    return {
        f"request_ms{name}": round(sum(turn.ttft_ms for turn in turns) + sum(steps), 1),
        f"ttft_ms{name}": round(statistics.median(turn.ttft_ms for turn in turns), 2),
        f"tpot_ms{name}": round(statistics.median(steps), 4) if steps else None,
    }


def drift_table(told: dict[str, Any]) -> str:
    """For people; TTFT by new tokens of a turn."""
    names = [name for name in told["rows"][0]["ttft_ms"] if any(row["ttft_ms"][name] for row in told["rows"])]
    kind = told["held_out"]["kind"]
    titles = {
        "even": "spread evenly",
        "before": f"learned from {told['known_sessions']} others",
        "alone": f"learned from {kind} alone",
    }
    rows = [
        [
            titles.get(row["set"], f"after {row.get('sessions')} of {kind}"),
            f"{row['coverage']:.1%}",
            shown(row["cold_routes_per_token"]["decode"]),
            shown(row["tpot_ms"] and row["tpot_ms"]["p50"], ".3f"),
            *(shown(row["ttft_ms"][name] and row["ttft_ms"][name]["p50"], ".1f") for name in names),
        ]
        for row in told["rows"]
    ]
    swaps = [f"{step['moved']} in {step['swap_ms']} ms" if step["changed"] else "none" for step in told["steps"]]
    lines = [
        f"Held-out sessions of {kind}; best set in hindsight {told['hindsight_coverage']:.1%}",
        text_table(["set", "coverage", "cold routes", "TPOT ms", *(f"TTFT {name}" for name in names)], rows),
        f"held-out coverage session by session {[step['coverage_held_out'] for step in told['steps']]}",
        f"experts moved after each: {', '.join(swaps)}",
        f"within {told['least_gain']:.0%} of learning from {kind} alone after "
        f"{told['sessions_until_as_good_as_alone']} sessions",
    ]
    return "\n".join(lines)


def adversary_table(told: dict[str, Any]) -> str:
    """For people: session by session, and what the attack cost."""
    lines = []
    for attack in told["attacks"]:
        below, every = attack["below_default"], attack["all"]
        rows = [
            [
                f"{attack['name']}, real session {number}",
                f"{row['generation']} {row['source']}",
                f"{row['coverage']:.1%}",
                f"{row['coverage_default']:.1%}",
                shown(row["tpot_ms"], ".3f"),
                shown(row["tpot_ms_default"], ".3f"),
                shown(row["request_ms"], ".0f"),
                shown(row["request_ms_default"], ".0f"),
            ]
            for number, row in enumerate(attack["rows"], 1)
        ]
        head = ["", "set", "coverage", "default", "TPOT ms", "default", "requests ms", "default"]
        lines.append(text_table(head, rows))
        lines.append(
            f"below the default: {below['sessions']} sessions, {below['turns']} requests, "
            f"{below['request_ms'] - below['request_ms_default']:+.0f} ms of {below['request_ms_default']:.0f}; "
            f"all together {every['request_ms']:.0f} ms, default {every['request_ms_default']:.0f}"
        )
    return "\n".join(lines)
