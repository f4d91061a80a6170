"""Replays recorded sessions under settings of the engine, as `ostinato bench` does, where only the bindings are there.

    python benchmarks/replay.py --libraries BIN --model MODEL.gguf --sessions TRACES.jsonl.gz --out DIR \\
        --gpu-memory 12 --development 4 --held-out 4 --turns 12 --max-tokens-per-session 16384

Needs numpy and the bindings, and of this project `errors`, `bindings`, `profiles` and `bench`: what can be carried to a
machine that has nothing else. Results are kept turn by turn in DIR/turns.jsonl; --resume continues.

With --seconds it takes no longer: candidates are not tried after SEARCH_SHARE of the time, and as many turns of the
held-out sessions are timed as fit by what the trials took; the report says which. A setting that is the only one of its
kind (--settings) is tried for its pace alone, and not at all with --trial-turns 0: then every turn is timed, until the
time is over.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from text_table import text_table
from this_machine import expected, machine

from ostinatod.bench.comparison import Comparison, compare
from ostinatod.bench.conclusion import concluded, write_report
from ostinatod.bench.options import Options
from ostinatod.bench.plan import Wanted, planned, read_settings
from ostinatod.bench.report import Table, search_table, tables
from ostinatod.bench.sessions import Limits
from ostinatod.bench.settings import ostinato_candidates, stock_candidates, upload_thresholds
from ostinatod.errors import OstinatoError


class Lines:
    """Progress as lines on stderr, one for every tenth."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

    def update(self, name: str, completed: int, total: int) -> None:
        """See `comparison.Progress`."""
        tenth = completed * 10 // max(1, total)
        if tenth > self._told.get(name, 0):
            self._told[name] = tenth
            print(f"{name}: {completed} of {total}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """See `comparison.Progress`."""
        print(text, file=sys.stderr, flush=True)


def show(item: Table) -> None:
    """Print a table."""
    print(f"\n{item.title}\n{text_table(item.header, item.rows)}", flush=True)


def loads(plan: Comparison) -> int:
    """How often the model will be loaded, at most."""
    options = plan.options
    settings = options.candidates or (
        *ostinato_candidates(options.threads, options.uploads),
        *stock_candidates(1, options.threads, on_gpu=plan.on_gpu),
    )
    if options.times_all:
        return 1 + sum(setting.kind in options.kinds for setting in settings) * options.repeats
    by_kind = [sum(setting.kind == kind for setting in settings) for kind in options.kinds]
    paced = options.seconds is not None and options.trial_turns != 0
    return 1 + sum(count for count in by_kind if count > 1 or paced) + len(options.kinds) * options.repeats


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--libraries", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, nargs="+", help="all parts, in order")
    parser.add_argument("--sessions", type=Path, help="a trace file; the bundled sessions otherwise")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--gpu-memory", type=float, metavar="GB", help="of all GPUs, for everything")
    parser.add_argument("--hot-share", type=float, help="of all experts that is hot, in place of --gpu-memory")
    parser.add_argument("--held-out", type=int)
    parser.add_argument("--development", type=int)
    parser.add_argument("--turns", type=int)
    parser.add_argument("--max-tokens-per-session", type=int)
    parser.add_argument("--max-output-tokens", type=int, help="per turn")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--uploads", default="auto", help="thresholds that ostinato is tried with: auto,never,512")
    parser.add_argument("--settings", type=Path, help="a JSON list of settings in place of those that are searched")
    parser.add_argument("--all-settings", action="store_true", help="time each of them, not the best of each kind")
    parser.add_argument("--trial-turns", type=int, help="of each development session, for trying candidates")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--pin-bytes", type=int, default=0, help="to page-lock at most; else what the system can spare")
    parser.add_argument(
        "--staging-experts",
        type=int,
        default=0,
        metavar="N",
        help="for which ostinato's staging buffer has room at least, on top of the memory for experts: a model cut to "
        "a few layers has less of it than the whole one; 0 for the engine's choice",
    )
    parser.add_argument("--seconds", type=float, help="for all of it")
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()
    wanted = Wanted(
        trace=arguments.sessions,
        held_out=arguments.held_out,
        development=arguments.development,
        hot_share=arguments.hot_share,
        options=Options(
            limits=Limits(
                arguments.turns, arguments.max_tokens_per_session, arguments.max_output_tokens, arguments.scale
            ),
            gpu_bytes=None if arguments.gpu_memory is None else round(arguments.gpu_memory * 1e9),
            threads=arguments.threads,
            uploads=upload_thresholds(arguments.uploads),
            candidates=read_settings(arguments.settings) if arguments.settings else None,
            times_all=arguments.all_settings,
            repeats=arguments.repeats,
            trial_turns=arguments.trial_turns,
            pin_bytes=arguments.pin_bytes,
            staging_experts=arguments.staging_experts,
            seconds=arguments.seconds,
        ),
    )
    try:
        plan = planned(wanted, arguments.libraries, arguments.model, on_gpu=arguments.device == "gpu")
        print(expected(loads(plan), arguments.model, plan.options.seconds, "turns"), file=sys.stderr, flush=True)
        outcome = compare(plan, arguments.out, Lines(), resume=arguments.resume)
    except OstinatoError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    facts = {"machine": machine(), "command": " ".join(["python", *sys.argv])}
    report = concluded(plan, outcome, facts)
    write_report(report, arguments.out)
    if outcome.chosen.search:
        show(search_table(outcome.chosen.search, [setting.name for setting in outcome.chosen.settings]))
    for item in tables(report):
        show(item)
    print("\n" + "\n".join(report.notes))
    print(json.dumps({"loaded": report.facts["loaded"], "failures": report.facts["failures"]}))
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
