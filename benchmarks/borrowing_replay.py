"""Which rule for borrowed slots pays, on recorded decode steps: the development part chooses, the held-out part judges.

    python benchmarks/borrowing_replay.py --routes tests/data/tiny-routes.npz [--out result.json]

A rule is judged by cold routes served less what its uploads cost, in routes. Two machines are looked at: one where the
link and the CPU do not disturb each other, so that an upload costs next to nothing, and one where both live off the
same memory bandwidth, so that an upload costs what the CPU takes to compute one route. The rule that is best for the
worse of the two is the default. Slots are given as a share of all experts: 1 GB of DeepSeek-V4-Flash's 11,008 experts
of 13.4 MB is 0.7 %, 4 GB are 2.7 %, and the paper's 544 slots are 4.9 %.

And how much of one memory should be lent, behind learned sets and behind sets that nobody has learned.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from learning_replay import Mask, Recorded, Replay
from numpy.typing import NDArray

from ostinatod.machine.cpus import read_cpus
from ostinatod.profiles.borrowing import BorrowingOutcome, BorrowingRule, simulate_borrowing
from ostinatod.profiles.planner import spread_evenly

POOLS = (0.44, 0.52)
LENT = (0.007, 0.027, 0.049)
DECAYS = (0.9, 0.95, 0.97, 0.99)
HYSTERESES = (1.1, 1.5, 2.0, 3.0)
ADMISSIONS = (0.0, 2.0)
RATES = (0.25, 1.0, 4.0)
UPLOAD_COSTS = {"link apart": 0.05, "shared memory": 1.0}
"""Of one upload, in routes computed by the CPU."""
CHOICE_POOL, CHOICE_LENT, CHOICE_RATE = 0.44, 0.027, 1.0

MEMORY = (0.15, 0.5)
"""Of all experts, hot and lent ones together."""
LENT_OF_MEMORY = (0.0625, 0.125, 0.25, 0.375, 0.5)
TAKEN_BACK = (0.06, 0.125)
"""Of that memory, by each prefill: few experts for a short one, all that an eighth has room for by a long one."""

Requests = list[list[list[int]]]


def requests_of(sessions: Sequence[Recorded], hot: Mask) -> Requests:
    """The cold routes of each decode step, by turn: a prefill lies between two turns."""
    layers = np.arange(hot.shape[0])[:, None]
    found: Requests = []
    for item in sessions:
        numbers = layers * hot.shape[1] + item.steps
        cold = ~hot[layers, item.steps]
        for turn in np.unique(item.step_turns):
            rows = np.flatnonzero(item.step_turns == turn)
            found.append([numbers[row][cold[row]].tolist() for row in rows])
    return found


def gains(outcome: BorrowingOutcome) -> dict[str, float]:
    """Share of the cold routes saved on each kind of machine, uploads paid for."""
    total = max(1, outcome.cold_routes)
    return {name: (outcome.served - cost * outcome.uploads) / total for name, cost in UPLOAD_COSTS.items()}


def told(rule: BorrowingRule, outcome: BorrowingOutcome) -> dict[str, Any]:
    """One row of the results."""
    steps, total = max(1, outcome.steps), max(1, outcome.cold_routes)
    return {
        **asdict(rule),
        "cold_routes_per_step": round(outcome.cold_routes / steps, 3),
        "served": round(outcome.served / total, 4),
        "uploads_per_step_used": round(outcome.uploads / steps, 3),
        **{f"gain, {name}": round(value, 4) for name, value in gains(outcome).items()},
    }


def shares(replay: Replay, learned: bool, rule: BorrowingRule) -> list[dict[str, Any]]:
    """How much of one memory to lend: behind sets learned from the development part, and behind sets without any
    learning, which hold as many experts of each layer. On the held-out part.
    """
    held_out = [item for item in replay.sessions if item.part == "held-out"]
    rows = []
    for memory, lent in product(MEMORY, LENT_OF_MEMORY):
        share = memory * (1 - lent)
        hot = (
            replay.learn(replay.of("development"), share)
            if learned
            else spread_evenly(replay.places, replay.slots(share))
        )
        requests = requests_of(held_out, hot)
        for taken_back, rate in product(TAKEN_BACK, (0.5, 2.0)):
            total = memory * replay.places.total_bytes
            placed = replace(rule, slots=round(lent * total), returned=round(taken_back * total), uploads_per_step=rate)
            outcome = simulate_borrowing(requests, placed)
            rows.append(
                {
                    "set": "learned" if learned else "even",
                    "memory": memory,
                    "lent": lent,
                    "taken_back": taken_back,
                    "uploads_per_step": rate,
                    "cold_routes_per_step": round((outcome.cold_routes - outcome.served) / max(1, outcome.steps), 3),
                    "uploads_per_step_used": round(outcome.uploads / max(1, outcome.steps), 3),
                }
            )
            print(rows[-1], flush=True)
    return rows


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--routes", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    replay = Replay(arguments.routes)
    hot = {share: replay.learn(replay.of("development"), share) for share in POOLS}
    parts = {part: [item for item in replay.sessions if item.part == part] for part in ("development", "held-out")}
    traces = {(part, share): requests_of(parts[part], hot[share]) for part in parts for share in POOLS}

    def slots(share: float) -> int:
        return max(1, round(share * replay.places.total_bytes))

    searched = []
    for values in product(DECAYS, HYSTERESES, ADMISSIONS, (CHOICE_RATE,), (False, True)):
        rule = BorrowingRule(slots(CHOICE_LENT), *values)
        outcome = simulate_borrowing(traces["development", CHOICE_POOL], rule)
        searched.append((rule, outcome))
    chosen, _ = max(searched, key=lambda pair: min(gains(pair[1]).values()))
    print("chosen", chosen, flush=True)
    sizes = []
    for part, pool, lent, rate in product(parts, POOLS, LENT, RATES):
        rule = replace(chosen, slots=slots(lent), uploads_per_step=rate)
        outcome = simulate_borrowing(traces[part, pool], rule)
        row = {"part": part, "pool": pool, "lent": lent, **told(rule, outcome)}
        sizes.append(row)
        print(row, flush=True)
    lengths: NDArray[np.int64] = np.array([len(request) for request in traces["development", CHOICE_POOL]])
    cpus = read_cpus()
    result = {
        "machine": f"{cpus.name}, {cpus.usable_cores} cores, {platform.system()} {platform.release()}",
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "requests": {part: len(traces[part, CHOICE_POOL]) for part in parts},
        "steps_per_request": {"median": float(np.median(lengths)), "mean": round(float(lengths.mean()), 1)},
        "upload_costs_in_routes": UPLOAD_COSTS,
        "chosen": asdict(chosen),
        "sizes": sizes,
        "shares": [row for learned in (False, True) for row in shares(replay, learned, chosen)],
        "search": [told(rule, outcome) for rule, outcome in searched],
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
