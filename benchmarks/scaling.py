"""What a decode step and a prefill cost with growing context, pool and threads: stock llama.cpp against hot experts.

    python benchmarks/scaling.py --libraries BIN --model MODEL.gguf --sessions TRACES.jsonl.gz --out scaling.json \\
        --contexts 1024,4096,16384,65536 --shares 0.1,0.25,0.5,0.75,1 --threads 2,4,8,15

Three sweeps, each with the other two values fixed (--share, the first context, all threads): contexts, shares of the
experts on the GPU, threads. The hot experts are learned from development sessions for each share, and the tokens read
are those of held-out ones. Stock keeps as many whole layers on the GPU as fit into the same memory, page-locked,
uploading from 32 tokens, with the threads of the CPU branch. Results are written after every point.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostinatod.bench.comparison import Steps
from ostinatod.bench.jobs import run_job
from ostinatod.bench.learning import learn
from ostinatod.bench.plan import Wanted, planned
from ostinatod.bench.sessions import Limits, of_part
from ostinatod.bench.settings import Setting, as_json, cpu_layers_for
from ostinatod.errors import EngineError, OstinatoError


@dataclass(frozen=True, slots=True)
class Point:
    """One process: a share of the experts, threads, and the contexts that it goes through."""

    sweep: str
    share: float
    threads: int
    contexts: tuple[int, ...]


class Notes:
    """Progress as lines on stderr."""

    def update(self, name: str, completed: int, total: int) -> None:
        """Steps before the sweeps are told when they end."""
        if completed == total:
            self.note(f"{name}: {total}")

    def note(self, text: str) -> None:
        """See `comparison.Progress`."""
        print(text, file=sys.stderr, flush=True)


def points(arguments: argparse.Namespace) -> Iterator[Point]:
    """What is measured, in order."""
    first = arguments.contexts[:1]
    yield Point("context", arguments.share, arguments.base_threads, arguments.contexts)
    for share in arguments.shares:
        yield Point("pool", share, arguments.base_threads, first)
    for threads in arguments.threads:
        yield Point("threads", arguments.share, threads, first)


def settings(point: Point, cpu_layers: int, *, on_gpu: bool) -> list[Setting]:
    """Both sides of a point."""
    stock = Setting("stock", "stock", cpu_layers, "none", 32 if on_gpu else None, threads=point.threads)
    return [stock, Setting("ostinato", "ostinato", threads=point.threads)]


def measure(steps: Steps, arguments: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
    """One row for each point, side and context; a side that fails has a row with its reason."""
    plan = steps.plan
    steps.tokenize()
    steps.n_ctx = max(steps.n_ctx, max(arguments.contexts) + max(arguments.lengths) + 512)
    counted, _ = steps.count()
    held_out = list(of_part(steps.sessions, "held-out"))
    for point in points(arguments):
        learned = learn(counted, plan.experts, round(point.share * plan.experts.places().total_bytes))
        steps.keep_hot(learned)
        cpu_layers = cpu_layers_for(plan.experts, learned.pool_bytes) if plan.on_gpu else 0
        for setting in settings(point, cpu_layers, on_gpu=plan.on_gpu):
            rows: list[Mapping[str, Any]] = []
            job = {
                **steps.model_job("sweep", held_out, setting),
                "depths": point.contexts,
                "lengths": arguments.lengths,
                "decode_tokens": arguments.decode_tokens,
                "repeats": arguments.repeats,
            }
            own = {"sweep": point.sweep, "share": point.share, "setting": as_json(setting)}
            try:
                run_job(job, setting, rows.append)
            except EngineError as error:
                yield {**own, "failed": error.message}
            yield from ({**own, **row} for row in rows if row["event"] == "depth")


def line_of(row: Mapping[str, Any]) -> str:
    """A row for people."""
    setting = row["setting"]
    head = f"{row['sweep']:<8} {setting['name']:<9} share {row['share']:.2f} threads {setting['threads'] or 'all':>3}"
    if "failed" in row:
        return f"{head} failed: {row['failed']}"
    prefill = " ".join(f"{tokens}:{ms:.1f}" for tokens, ms in row["prefill_ms"].items())
    return f"{head} context {row['context']:>6} decode {row['decode_ms']:8.3f} prefill {prefill}"


def numbers(text: str) -> tuple[int, ...]:
    """A list such as 1,2,4."""
    return tuple(int(item) for item in text.split(",") if item)


def main(given: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--libraries", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, nargs="+", help="all parts, in order")
    parser.add_argument("--sessions", type=Path, help="a trace file; the bundled sessions otherwise")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--contexts", type=numbers, default=(1024, 4096, 16384, 65536))
    parser.add_argument("--shares", type=lambda text: [float(item) for item in text.split(",") if item], default=[])
    parser.add_argument("--threads", type=numbers, default=())
    parser.add_argument("--share", type=float, default=0.44, help="where the pool is not what is swept")
    parser.add_argument("--base-threads", type=int, default=0, help="where threads are not what is swept; 0 for all")
    parser.add_argument("--development", type=int, default=3, help="sessions to learn from")
    parser.add_argument("--turns", type=int, default=12, help="of each session")
    parser.add_argument("--max-tokens-per-session", type=int, default=16384)
    parser.add_argument("--lengths", type=numbers, default=(128, 512, 2048))
    parser.add_argument("--decode-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args(given)
    wanted = Wanted(
        trace=arguments.sessions,
        held_out=2,
        development=arguments.development,
        limits=Limits(arguments.turns, arguments.max_tokens_per_session),
        hot_share=arguments.share,
        threads=arguments.base_threads,
    )
    rows: list[Mapping[str, Any]] = []
    try:
        plan = planned(wanted, arguments.libraries, arguments.model, on_gpu=arguments.device == "gpu")
        with tempfile.TemporaryDirectory() as directory:
            for row in measure(Steps(plan, Notes(), Path(directory)), arguments):
                rows.append(row)
                print(line_of(row), flush=True)
                told = {"command": " ".join(sys.argv), "date": time.strftime("%Y-%m-%d"), "rows": rows}
                arguments.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    except OstinatoError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 1 if any("failed" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
