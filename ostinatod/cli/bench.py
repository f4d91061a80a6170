"""`ostinato bench`: recorded agent sessions replayed on this machine, against llama.cpp's own settings."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ostinatod.cli.completion import complete_model
from ostinatod.cli.context import Cli, json_option, pass_cli
from ostinatod.cli.local_store import open_store
from ostinatod.cli.output import print_json, print_text
from ostinatod.cli.progress import share_display
from ostinatod.cli.text import human_bytes, table
from ostinatod.errors import RequestError

if TYPE_CHECKING:
    from ostinatod.bench.comparison import Outcome
    from ostinatod.bench.plan import Wanted
    from ostinatod.bench.report import Report
    from ostinatod.bench.sessions import Limits
    from ostinatod.store.records import ModelRecord

FAILED = 1
"""Exit code where a setting could not go to its end; the others are reported."""

OWN_LOG = "log"
"""What --sessions takes for the user's own sessions."""

MARGIN_BYTES = 1 << 30
"""Memory of each GPU that the engine leaves free."""


@click.command()
@click.argument("model", shell_complete=complete_model)
@click.option(
    "--sessions",
    metavar="N|FILE|log",
    help="Sessions to time: so many bundled ones, those of a trace file, or lengths from your own routing log.",
)
@click.option("--held-out", type=click.IntRange(min=1), metavar="N", help="Sessions of FILE or log that are timed.")
@click.option("--development", type=click.IntRange(min=1), metavar="N", help="Sessions to learn and choose from.")
@click.option("--turns", type=click.IntRange(min=1), metavar="N", help="Replay only the first turns of a session.")
@click.option(
    "--max-tokens-per-session", type=click.IntRange(min=2), metavar="N", help="End sessions at so many tokens."
)
@click.option("--max-output-tokens", type=click.IntRange(min=1), metavar="N", help="Emit at most so many per turn.")
@click.option(
    "--scale",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    metavar="SHARE",
    help="Shorten every turn to a share.",
)
@click.option(
    "--against", type=click.Choice(("stock", "none")), default="stock", show_default=True, help="Compare with."
)
@click.option(
    "--settings",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="JSON list of settings to choose from, in place of those that are searched.",
)
@click.option("--gpu-memory", type=click.FloatRange(min=0), metavar="GB", help="Memory of all GPUs that may be used.")
@click.option("--hot-share", type=click.FloatRange(0, 1), metavar="SHARE", help="Of all experts, in place of memory.")
@click.option("--uploads", metavar="LIST", default="auto", show_default=True, help="Thresholds: auto, never, tokens.")
@click.option("--threads", type=click.IntRange(min=0), default=0, metavar="N", help="CPU threads; all cores otherwise.")
@click.option("--repeats", type=click.IntRange(min=1), default=1, metavar="N", help="Replay each session so often.")
@click.option(
    "--trial-turns", type=click.IntRange(min=1), metavar="N", help="Turns of a session to try candidates with."
)
@click.option("--url", "urls", metavar="URL", multiple=True, help="Time a server over HTTP instead; may be repeated.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=Path("ostinato-bench"), help="Folder of results."
)
@click.option("--resume", is_flag=True, help="Continue the results in the folder.")
@json_option
@pass_cli
def bench(cli: Cli, /, model: str, as_json: bool, **options: Any) -> None:
    """Replay recorded agent sessions on MODEL and time every turn.

    Every setting of the engine reads the same tokens and is made to emit the recorded ones. Some sessions choose the
    hot experts and the best setting of llama.cpp within the same GPU memory; others are timed. Prints total request
    time, the wait after a tool's output by new tokens, and the time per output token, and leaves every turn, a report
    and a plot in the folder. The model is loaded once for each setting; no daemon is needed, and one that has a model
    loaded takes memory and cores.
    """
    report, failed = _over_http(model, options) if options["urls"] else _in_process(cli, model, options)
    if as_json:
        print_json(report.as_json())
    else:
        print_text("\n\n".join(_paragraphs(report, options["out"])))
    if failed:
        sys.exit(FAILED)


def _in_process(cli: Cli, model: str, options: dict[str, Any]) -> tuple[Report, bool]:
    """Settings of this machine's engine. Raises OstinatoError."""
    from ostinatod.bench.comparison import compare
    from ostinatod.bench.conclusion import concluded, write_report
    from ostinatod.bench.plan import planned
    from ostinatod.installer.engine_build import find_engine

    record = open_store(cli.settings()).resolve(model)
    if not record.shape.n_experts:
        raise RequestError(f"{record.name} has no experts to place", hint="Models with experts: ostinato list")
    gpu_names, gpu_bytes = _gpus()
    wanted = _wanted(record, options, gpu_bytes)
    build = find_engine()
    on_gpu = build.backend == "cuda" and bool(gpu_names)
    plan = planned(wanted, build.library_directory, record.parts, on_gpu=on_gpu)
    with share_display() as display:
        outcome: Outcome = compare(plan, options["out"], display, resume=options["resume"])
    report = concluded(plan, outcome, _facts(gpu_names))
    write_report(report, options["out"])
    return report, bool(outcome.failures)


def _over_http(model: str, options: dict[str, Any]) -> tuple[Report, bool]:
    """Servers, one after the other. Raises OstinatoError where one refuses."""
    import httpx

    from ostinatod.bench.conclusion import write_report
    from ostinatod.bench.http_comparison import compare_over_http
    from ostinatod.bench.http_replay import CONNECT_S
    from ostinatod.bench.report import make_report
    from ostinatod.bench.traces import SAMPLE, choose, read_traces
    from ostinatod.keys import key_for

    trace, held_out = _source(options)
    if trace == OWN_LOG:
        raise RequestError(
            "lengths from the routing log have no text to send", hint="Name a trace file: --sessions FILE"
        )
    recorded = choose(read_traces(Path(trace) if trace else SAMPLE), options["development"] or 1, held_out or 3)
    sessions = [session for part, session in recorded if part == "held-out"]
    limits = _limits(options)

    def connect(url: str) -> httpx.Client:
        key = key_for(url)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(None, connect=CONNECT_S))

    servers = {url: functools.partial(connect, url) for url in options["urls"]}
    with share_display() as display:
        turns = compare_over_http(servers, model, sessions, limits, options["out"], display, resume=options["resume"])
    if not turns:
        raise RequestError("no turn fits into the limits", hint="Allow more with --max-tokens-per-session")
    notes = [
        "Lengths are fixed: servers say what they choose, as long as the recording. Conversations are plain ChatML.",
        *limits.described(),
    ]
    report = make_report(turns, None, notes, {**_facts(()), "model": model})
    write_report(report, options["out"])
    return report, False


def _wanted(record: ModelRecord, options: dict[str, Any], gpu_bytes: int) -> Wanted:
    from ostinatod.bench.log_shapes import logged_shapes
    from ostinatod.bench.options import Options
    from ostinatod.bench.plan import DEFAULT_DEVELOPMENT, DEFAULT_HELD_OUT, Wanted, divided, read_settings
    from ostinatod.bench.settings import upload_thresholds

    trace, held_out = _source(options)
    shapes: Sequence[Any] = ()
    if trace == OWN_LOG:
        own = logged_shapes(record.digest) or logged_shapes()
        shapes = divided(own, options["development"] or DEFAULT_DEVELOPMENT, held_out or DEFAULT_HELD_OUT)
    memory = options["gpu_memory"]
    return Wanted(
        trace=None if trace in (None, OWN_LOG) else Path(trace),
        held_out=held_out,
        development=options["development"],
        hot_share=options["hot_share"],
        options=Options(
            shapes=shapes,
            limits=_limits(options),
            gpu_bytes=round(memory * 1e9) if memory is not None else gpu_bytes or None,
            threads=options["threads"],
            uploads=upload_thresholds(options["uploads"]),
            candidates=read_settings(options["settings"]) if options["settings"] else None,
            kinds=("ostinato", "stock") if options["against"] == "stock" else ("ostinato",),
            repeats=options["repeats"],
            trial_turns=options["trial_turns"],
        ),
    )


def _source(options: dict[str, Any]) -> tuple[str | None, int | None]:
    """The trace file or "log", None for the bundled sessions; and how many are timed, None for the usual number."""
    named: str | None = options["sessions"]
    if named is not None and named.isdecimal():
        return None, int(named) or 1
    if named not in (None, OWN_LOG) and not Path(named).is_file():
        raise RequestError(f"--sessions: expected a number, a trace file or {OWN_LOG}, found {named!r}")
    return named, options["held_out"]


def _limits(options: dict[str, Any]) -> Limits:
    from ostinatod.bench.sessions import Limits

    names = ("turns", "max_tokens_per_session", "max_output_tokens", "scale")
    return Limits(*(options[name] for name in names))


def _gpus() -> tuple[tuple[str, ...], int]:
    """Names of the GPUs, and what their free memory leaves to use."""
    from ostinatod.machine.gpus import list_gpus

    gpus = list_gpus()
    return tuple(gpu.name for gpu in gpus), sum(max(0, gpu.free_bytes - MARGIN_BYTES) for gpu in gpus)


def _facts(gpu_names: Sequence[str]) -> dict[str, Any]:
    from ostinatod.machine.cpus import read_cpus

    cpus = read_cpus()
    machine = ", ".join([cpus.name, f"{cpus.usable_cores} cores", *gpu_names])
    return {"machine": machine, "command": shlex.join(["ostinato", *sys.argv[1:]])}


def _paragraphs(report: Report, out: Path) -> Iterator[str]:
    from ostinatod.bench.conclusion import PLOT_FILE, REPORT_FILE
    from ostinatod.bench.report import search_table, tables

    found = list(tables(report))
    if report.facts.get("search"):
        found.insert(0, search_table(report.facts["search"]))
    for item in found:
        yield f"{item.title}\n{table(item.header, item.rows)}"
    yield "\n".join(report.notes)
    pool = report.facts.get("pool_bytes")
    where = [report.facts["machine"], report.facts["model"], *([f"{human_bytes(pool)} for experts"] if pool else [])]
    yield f"{'; '.join(where)}. Files: {out / REPORT_FILE}, {out / PLOT_FILE}"
