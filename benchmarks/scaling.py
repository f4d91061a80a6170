"""What a decode step and a prefill cost with growing context, pool and threads: stock llama.cpp against hot experts.

    python benchmarks/scaling.py --libraries BIN --model MODEL.gguf --sessions TRACES.jsonl.gz --out scaling.json \\
        --contexts 1024,4096,16384,65536 --shares 0.1,0.25,0.5,0.75,1 --threads 2,4,8,15 --seconds 300

Three sweeps, each with the other two values fixed (--share, the first context, --base-threads): contexts, shares of the
experts that are hot, threads. What the sweeps have in common is measured once, with the contexts. `plot_scaling.py`
draws the file. The hot experts are learned from development sessions for each share, and the tokens read
are those of held-out ones. Stock keeps as many whole layers on the GPU as fit into the memory of hot experts and
staging buffer, page-locked, uploading from 32 tokens, with the threads of the CPU branch.

Results are written after every point. With --seconds, points that would not fit are left out and named; with --resume,
those that are in the file are not measured again.
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

from this_machine import expected, machine, write_json

from ostinatod.bench.comparison import END_S, Steps
from ostinatod.bench.jobs import OUT_OF_TIME
from ostinatod.bench.memory import memory_for, staging_experts_of_whole
from ostinatod.bench.options import Options
from ostinatod.bench.plan import Wanted, planned
from ostinatod.bench.sessions import Limits, of_part
from ostinatod.bench.settings import Setting, as_json, cpu_layers_for
from ostinatod.errors import EngineError, OstinatoError

SPARE_TOKENS = 512
"""Of the context, beyond the deepest request."""


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
        if share != arguments.share:
            yield Point("pool", share, arguments.base_threads, first)
    for threads in arguments.threads:
        if threads != arguments.base_threads:
            yield Point("threads", arguments.share, threads, first)


def settings(point: Point, cpu_layers: int, staging_experts: int, *, on_gpu: bool) -> list[Setting]:
    """Both sides of a point."""
    stock = Setting("stock", "stock", cpu_layers, "none", 32 if on_gpu else None, threads=point.threads)
    return [stock, Setting("ostinato", "ostinato", threads=point.threads, staging_experts=staging_experts)]


class Side:
    """One setting at a point; `rows` are those that are known."""

    def __init__(self, point: Point, setting: Setting, rows: Sequence[Mapping[str, Any]]) -> None:
        self.setting = setting
        # As it comes out of a file, so that it can be compared with what is known.
        self.own = json.loads(json.dumps({"sweep": point.sweep, "share": point.share, "setting": as_json(setting)}))
        known = {row["context"] for row in rows if "context" in row and self.own.items() <= row.items()}
        self.contexts = sorted(set(point.contexts) - known)
        """That are to be measured."""
        self.words = f"{point.sweep} {point.share:.2f} {setting.name} {setting.threads or 'all'} threads"


class Sweeps:
    """Measures points; `rows` are those that are known, and are not measured again."""

    def __init__(self, steps: Steps, arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
        self.steps, self.arguments, self.rows = steps, arguments, rows
        self.left_out: list[str] = []
        self._walls: dict[str, float] = {}

    def measure(self) -> Iterator[dict[str, Any]]:
        """One row for each point, side and context; a side that fails has a row with its reason."""
        steps, plan = self.steps, self.steps.plan
        steps.tokenize()
        steps.n_ctx = max(steps.n_ctx, max(self.arguments.contexts) + max(self.arguments.lengths) + SPARE_TOKENS)
        counted, _ = steps.count()
        for point in points(self.arguments):
            hot_bytes = point.share * plan.experts.places().total_bytes
            learned = steps.learned(counted, memory_for(hot_bytes) if plan.on_gpu else round(hot_bytes))
            steps.keep_hot(learned)
            cpu_layers = cpu_layers_for(plan.experts, learned.pool_bytes) if plan.on_gpu else 0
            whole = self.arguments.whole_layers
            staging = staging_experts_of_whole(plan.experts, whole, point.share) if whole and plan.on_gpu else 0
            sides = [
                Side(point, steps.limited(setting, learned.pool_bytes), self.rows)
                for setting in settings(point, cpu_layers, staging, on_gpu=plan.on_gpu)
            ]
            yield from self._point([side for side in sides if side.contexts])

    def _point(self, sides: Sequence[Side]) -> Iterator[dict[str, Any]]:
        """What is missing of a point, unless there is no time for all of it: one side alone compares nothing."""
        # What another point of the same side has taken is what this one takes at least.
        needed_s = sum(self._walls.get(side.setting.kind, 0.0) for side in sides)
        if self.steps.left_s < needed_s + END_S:
            self.left_out += [side.words for side in sides]
            return
        for side in sides:
            yield from self._side(side)

    def _side(self, side: Side) -> Iterator[dict[str, Any]]:
        setting, own, contexts = side.setting, side.own, side.contexts
        job = {
            **self.steps.model_job("sweep", list(of_part(self.steps.sessions, "held-out")), setting),
            "depths": contexts,
            "lengths": self.arguments.lengths,
            "decode_tokens": self.arguments.decode_tokens,
            "repeats": self.arguments.repeats,
        }
        begun, failed = time.monotonic(), ""
        found: list[Mapping[str, Any]] = []
        try:
            self.steps.run(job, setting, found.append)
        except EngineError as error:
            failed = error.message
        rows = [{**own, **row} for row in found if row["event"] == "depth"]
        yield from rows
        if failed and failed != OUT_OF_TIME:
            yield {**own, "failed": failed}
        elif len(rows) < len(contexts):
            self.left_out.append(f"{side.words}, contexts from {contexts[len(rows)]:,}")
        took = time.monotonic() - begun
        self._walls[setting.kind] = min(took, self._walls.get(setting.kind, took))


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
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--pin-bytes", type=int, default=0, help="to page-lock at most; else what the system can spare")
    parser.add_argument(
        "--whole-layers",
        type=int,
        default=0,
        metavar="N",
        help="of the model that this one stands for: its staging buffer is as large as that one's would be",
    )
    parser.add_argument("--seconds", type=float, help="for all of it")
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args(given)
    wanted = Wanted(
        trace=arguments.sessions,
        held_out=2,
        development=arguments.development,
        hot_share=arguments.share,
        options=Options(
            limits=Limits(arguments.turns, arguments.max_tokens_per_session),
            threads=arguments.base_threads,
            pin_bytes=arguments.pin_bytes,
            seconds=arguments.seconds,
        ),
    )
    rows = known_rows(arguments.out) if arguments.resume else []
    try:
        plan = planned(wanted, arguments.libraries, arguments.model, on_gpu=arguments.device == "gpu")
        count = 2 * sum(1 for _ in points(arguments))
        print(expected(1 + count, arguments.model, plan.options.seconds, "points"), file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as directory:
            sweeps = Sweeps(Steps(plan, Notes(), Path(directory)), arguments, rows)
            told = {
                "command": " ".join(sys.argv),
                "date": time.strftime("%Y-%m-%d"),
                "machine": machine(),
                "model": arguments.model[0].name,
                "base": {
                    "context": arguments.contexts[0],
                    "share": arguments.share,
                    "threads": arguments.base_threads,
                },
                "rows": rows,
            }
            for row in sweeps.measure():
                rows.append(row)
                print(line_of(row), flush=True)
                write_json(arguments.out, {**told, "left_out": sweeps.left_out})
        write_json(arguments.out, {**told, "left_out": sweeps.left_out})
    except OstinatoError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print("".join(f"left out for want of time: {words}\n" for words in sweeps.left_out), end="")
    return 1 if any("failed" in row for row in rows) else 0


def known_rows(file: Path) -> list[dict[str, Any]]:
    """Rows of an earlier run that did not fail."""
    if not file.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["rows"]
    return [row for row in rows if "failed" not in row]


if __name__ == "__main__":
    sys.exit(main())
