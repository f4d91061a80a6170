"""What learning from recorded sessions is worth on sessions of other tasks, computed from recorded route counts.

    python benchmarks/learning_replay.py --routes tests/data/tiny-routes.npz [--out result.json]
    python benchmarks/learning_replay.py --traces TRACES --routes new.npz     # records first; needs the engine

Everything is computed by the planner that the daemon uses:
  held-out     a set learned from the development tasks, on held-out tasks, at three sizes
  curve        the same as the first sessions come in
  drift        coding sessions, then an airline's customers: the next session's coverage, session by session
  wild         a session whose counts are a million times the others', on the experts they use least
  half-life    what forgetting faster or slower does to the next session's coverage
  steps        cold routes per layer of single decode steps, and how often a layer has any
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinatod.machine.cpus import read_cpus
from ostinatod.profiles.cost_model import probability_bounds
from ostinatod.profiles.coverage import coverage, expectations, mean_shares, step_cold_routes
from ostinatod.profiles.planner import ExpertPlaces, plan_hot, spread_evenly
from ostinatod.profiles.rates import Forgetting, learned_rates
from ostinatod.profiles.route_log import SessionRoutes, total_counts
from ostinatod.profiles.skew import check_skew

SHARES = (0.25, 0.44, 0.52)
"""Of the experts kept hot; the paper's pools hold 44.2 % and 51.8 %."""
HALF_LIVES = (1.0, 2.0, 4.0, 8.0, 16.0, 64.0)
WILD_FACTOR = 1_000_000
SEED = 11

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded session: its routes, where it belongs, and its first decode steps (N, L, k) by turn (N,)."""

    domain: str
    part: str
    routes: SessionRoutes
    steps: NDArray[np.integer]
    step_turns: NDArray[np.integer]


class Replay:
    """The computations over one recording."""

    def __init__(self, file: Path) -> None:
        data = np.load(file)
        self.k = int(data["k"])
        self.sessions = _sessions(data)
        n_layers, n_experts = self.sessions[0].routes.prefill.shape
        self.places = ExpertPlaces((0,) * n_layers, (1,) * n_layers, (n_experts,) * n_layers)
        self.forgetting = Forgetting()

    def of(self, part: str, *domains: str) -> list[SessionRoutes]:
        """Sessions of a part, of some domains or all, in the order of their time."""
        return [item.routes for item in self.sessions if item.part == part and (not domains or item.domain in domains)]

    def slots(self, share: float) -> list[int]:
        """The pool that holds a share of the experts, in slots."""
        return [round(share * self.places.total_bytes)]

    def learn(self, sessions: Sequence[SessionRoutes], share: float, forgetting: Forgetting | None = None) -> Mask:
        """The learned set."""
        rho = learned_rates(sessions, self.k, forgetting or self.forgetting)
        return plan_hot(rho, self.places, self.slots(share))

    def measure(self, sessions: Sequence[SessionRoutes], hot: Mask) -> dict[str, float | None]:
        """Coverage and cold routes per token of a set on sessions."""
        found = coverage(sessions, hot, self.forgetting)
        cold = found.cold_routes_per_token(len(self.places.gpu), self.k)
        return {**_rounded(asdict(found)), "cold_routes_per_token": round(cold, 2)}

    def held_out(self) -> list[dict[str, Any]]:
        """Learned from development tasks, measured on held-out ones."""
        rows = []
        for domains in [(), *((domain,) for domain in sorted({item.domain for item in self.sessions}))]:
            tested = self.of("held-out", *domains)
            for share in SHARES:
                best = plan_hot(mean_shares(tested, self.forgetting), self.places, self.slots(share))
                rows.append(
                    {
                        "sessions": "all" if not domains else domains[0],
                        "hot_share": share,
                        "hot_experts": self.slots(share)[0],
                        "random": round(share, 4),
                        "even": self.measure(tested, spread_evenly(self.places, self.slots(share))),
                        "learned": self.measure(tested, self.learn(self.of("development", *domains), share)),
                        "hindsight": self.measure(tested, best),
                    }
                )
        return rows

    def curve(self, share: float) -> list[dict[str, Any]]:
        """Coverage of held-out sessions after the first n development sessions."""
        first, tested = self.of("development"), self.of("held-out")
        counts = [n for n in (1, 2, 4, 8, 16, 32, 64) if n < len(first)]
        return [{"sessions": n, **self.measure(tested, self.learn(first[:n], share))} for n in (*counts, len(first))]

    def drift(self, share: float) -> list[dict[str, Any]]:
        """Coding sessions are learned, then airline sessions come; each row is the next airline session."""
        coding = self.of("development", "swe")
        airline = self.of("development", "airline") + self.of("held-out", "airline")
        frozen = self.learn(coding, share)
        best = plan_hot(mean_shares(airline, self.forgetting), self.places, self.slots(share))
        rows = []
        for n, session in enumerate(airline):
            adapted = self.learn([*coding, *_after(coding, airline[:n])], share)
            rows.append(
                {
                    "airline_sessions_before": n,
                    "frozen": self.measure([session], frozen)["overall"],
                    "adapted": self.measure([session], adapted)["overall"],
                    "hindsight": self.measure([session], best)["overall"],
                }
            )
        return rows

    def wild(self, share: float) -> list[dict[str, Any]]:
        """Coverage of held-out sessions n sessions after a wild one, and without it."""
        clean, tested = self.of("development"), self.of("held-out")
        half = len(clean) // 2
        wild = wild_session(clean)
        even = spread_evenly(self.places, self.slots(share))
        rows = []
        for n in range(len(clean) - half + 1):
            known = [*clean[:half], *_after(clean[:half], [wild, *clean[half : half + n]])]
            without = [*clean[:half], *_after(clean[:half], clean[half : half + n])]
            rows.append(
                {
                    "sessions_since": n,
                    "with_wild": self.measure(tested, self.learn(known, share))["overall"],
                    "without": self.measure(tested, self.learn(without, share))["overall"],
                    "even": self.measure(tested, even)["overall"],
                }
            )
        return rows

    def half_lives(self, share: float) -> list[dict[str, Any]]:
        """Mean coverage of the next session, for mixed work and for work that changes from domain to domain."""
        mixed = [item.routes for item in self.sessions]
        blocks = [item.routes for item in sorted(self.sessions, key=lambda item: item.domain)]
        rows = []
        for half_life in HALF_LIVES:
            forgetting = replace(self.forgetting, half_life_sessions=half_life)
            row: dict[str, Any] = {"half_life_sessions": half_life}
            for name, order in (("mixed", mixed), ("changing", blocks)):
                timed = _after([], order)
                scores = [
                    coverage([timed[n]], self.learn(timed[:n], share, forgetting), self.forgetting).overall
                    for n in range(1, len(timed))
                ]
                row[name] = round(float(np.mean(scores)), 4)
            rows.append(row)
        return rows

    def steps(self, share: float) -> dict[str, Any]:
        """Single decode steps of held-out sessions under the learned and the even set."""
        tested = [item for item in self.sessions if item.part == "held-out"]
        trace = np.concatenate([item.steps for item in tested])
        told: dict[str, Any] = {"decode_steps": len(trace)}
        learned = self.learn(self.of("development"), share)
        for name, hot in (("even", spread_evenly(self.places, self.slots(share))), ("learned", learned)):
            mu, q = expectations(step_cold_routes(trace, hot))
            least, most = probability_bounds(mu, self.k)
            told[name] = {
                "cold_routes_per_step": round(float(mu.sum()), 3),
                "mean_mu": round(float(mu.mean()), 3),
                "mean_q": round(float(q.mean()), 4),
                "q_bounds_from_mu": [round(float(least.mean()), 4), round(float(most.mean()), 4)],
            }
        return told


def wild_session(real: Sequence[SessionRoutes]) -> SessionRoutes:
    """A session of a million routes to each expert of the half that real sessions use least, layer by layer."""
    counts = np.sum(total_counts(real), axis=0)
    unused = np.argsort(np.argsort(counts, axis=1), axis=1) < counts.shape[1] // 2
    routes = np.where(unused, WILD_FACTOR, 0).astype(np.int64)
    return replace(real[0], session="wild", prefill=routes, decode=routes, new_tokens=10**9, output_tokens=10**9)


def _sessions(data: Any) -> list[Recorded]:
    """The recording in an order of time that mixes domains, as a user's work does."""
    ends = np.cumsum(data["step_count"])
    order = np.random.default_rng(SEED).permutation(len(data["session"]))
    found = []
    for time_, row in enumerate(order):
        routes = SessionRoutes(
            session=str(data["session"][row]),
            started_at=float(time_),
            last_at=float(time_),
            requests=int(data["turns"][row]),
            layers=tuple(data["layers"].tolist()),
            prefill=data["prefill"][row].astype(np.int64),
            decode=data["decode"][row].astype(np.int64),
            new_tokens=int(data["prefill_tokens"][row]),
            output_tokens=int(data["decode_tokens"][row]),
        )
        own = slice(ends[row] - data["step_count"][row], ends[row])
        steps, turns = data["steps"][own], data["step_turns"][own]
        found.append(Recorded(str(data["domain"][row]), str(data["part"][row]), routes, steps, turns))
    return found


def _after(before: Sequence[SessionRoutes], sessions: Sequence[SessionRoutes]) -> list[SessionRoutes]:
    """The sessions as if they came, in this order, after those before."""
    start = max((item.last_at for item in before), default=0.0) + 1
    return [replace(item, started_at=start + n, last_at=start + n) for n, item in enumerate(sessions)]


def _rounded(values: dict[str, float | None]) -> dict[str, float | None]:
    return {key: None if value is None else round(value, 4) for key, value in values.items()}


def _table(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["sessions    hot   random  even    learned  hindsight  cold routes per token: even -> learned"]
    lines += [
        f"{row['sessions']:<10} {row['hot_share']:>4.0%}   {row['random']:.3f}   {row['even']['overall']:.3f}   "
        f"{row['learned']['overall']:.3f}    {row['hindsight']['overall']:.3f}      "
        f"{row['even']['cold_routes_per_token']:.1f} -> {row['learned']['cold_routes_per_token']:.1f}"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--routes", type=Path, help="a recording, such as tests/data/tiny-routes.npz")
    parser.add_argument("--traces", type=Path, help="record these sessions first, into --routes or a new routes.npz")
    parser.add_argument("--share", type=float, default=0.44, help="hot experts, where only one size is computed")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    file = arguments.routes or Path("routes.npz")
    if arguments.traces:
        record = Path(__file__).with_name("record_routes.py")
        subprocess.run([sys.executable, record, "--traces", arguments.traces, "--out", file], check=True)
    elif not arguments.routes:
        parser.error("expected --routes or --traces")

    replay = Replay(file)
    prefill, decode = total_counts(replay.of("development"))
    rows, cpus = replay.held_out(), read_cpus()
    result = {
        "machine": f"{cpus.name}, {cpus.usable_cores} cores, {platform.system()} {platform.release()}",
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "sessions": {part: len(replay.of(part)) for part in ("development", "held-out")},
        "skew": asdict(check_skew(prefill + decode, arguments.share)),
        "share": arguments.share,
        "held_out": rows,
        "curve": replay.curve(arguments.share),
        "drift": replay.drift(arguments.share),
        "wild": replay.wild(arguments.share),
        "half_life": replay.half_lives(arguments.share),
        "steps": replay.steps(arguments.share),
    }
    print(_table(rows))
    for name in ("curve", "drift", "wild", "half_life"):
        print(f"\n{name}")
        print("\n".join(str(row) for row in result[name]))
    print("\nsteps")
    print("\n".join(f"{name}: {value}" for name, value in result["steps"].items()))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
