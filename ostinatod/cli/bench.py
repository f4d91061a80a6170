"""`ostinato bench`: recorded agent sessions replayed on this machine, against llama.cpp's own settings."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ostinatod.cli.completion import complete_model
from ostinatod.cli.context import Cli, json_option, pass_cli
from ostinatod.cli.local_store import open_store
from ostinatod.cli.output import print_json, print_text, say
from ostinatod.cli.progress import share_display
from ostinatod.cli.text import human_bytes, table
from ostinatod.errors import OstinatoError, RequestError

if TYPE_CHECKING:
    from ostinatod.bench.comparison import Outcome
    from ostinatod.bench.http_sessions import HttpSession
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

SHORT_TRIAL_TURNS = 3
"""Of each development session, where there is a limit for all of it."""

ENGINE_OPTIONS = frozenset(
    {
        "development",
        "against",
        "settings",
        "all_settings",
        "gpu_memory",
        "hot_share",
        "uploads",
        "threads",
        "repeats",
        "trial_turns",
        "seconds",
    }
)
"""What servers decide for themselves, or what nobody has to learn or try before they are timed."""


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
@click.option("--all-settings", is_flag=True, help="Time every setting, in place of the best one of each kind.")
@click.option("--gpu-memory", type=click.FloatRange(min=0), metavar="GB", help="Memory of all GPUs that may be used.")
@click.option("--hot-share", type=click.FloatRange(0, 1), metavar="SHARE", help="Of all experts, in place of memory.")
@click.option("--uploads", metavar="LIST", default="auto", show_default=True, help="Thresholds: auto, never, tokens.")
@click.option("--threads", type=click.IntRange(min=0), default=0, metavar="N", help="CPU threads; all cores otherwise.")
@click.option("--repeats", type=click.IntRange(min=1), default=1, metavar="N", help="Replay each session so often.")
@click.option(
    "--trial-turns",
    type=click.IntRange(min=1),
    metavar="N",
    help="Turns of a session to try candidates with; 3 where --seconds is given, else all.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    metavar="S",
    help="Take no longer: leave out what does not fit, and say so.",
)
@click.option("--url", "urls", metavar="URL", multiple=True, help="Time a server over HTTP instead; may be repeated.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("ostinato-bench"),
    show_default=True,
    help="Folder of results.",
)
@click.option("--resume", is_flag=True, help="Continue the results in the folder.")
@json_option
@pass_cli
def bench(cli: Cli, /, model: str, as_json: bool, **options: Any) -> None:
    """Replay recorded agent sessions on MODEL and time every turn.

    Every setting of the engine reads the same tokens and is made to emit the recorded ones. Some sessions choose the
    hot experts and the best setting of llama.cpp within the same GPU memory; others are timed. Prints total request
    time, the wait after a tool's output by new tokens, and the time per output token, and leaves every turn, a report
    and a plot (SVG and PNG) in the folder. The model is loaded once for each setting; no daemon is needed, and one that
    has a model loaded takes memory and cores.
    """
    from ostinatod.bench.comparison import RESULTS_FILE
    from ostinatod.bench.conclusion import write_report

    _require_writable(options["out"])
    kept = options["out"] / RESULTS_FILE
    before = kept.stat().st_mtime_ns if kept.exists() else 0
    try:
        report = _over_http(model, options) if options["urls"] else _in_process(cli, model, options)
    except KeyboardInterrupt:
        # Results of an earlier run may be there, which this one has not come to replace.
        if kept.exists() and kept.stat().st_mtime_ns > before:
            say(f"what was timed so far is kept in {options['out']}: go on with the same command and --resume")
        raise
    files = write_report(report, options["out"])
    if as_json:
        print_json(report.as_json())
    else:
        print_text("\n\n".join(_paragraphs(report, files)))
    if report.facts["failures"]:
        sys.exit(FAILED)


def _require_writable(out: Path) -> None:
    """Raise RequestError where a folder cannot be written to or made, before anything is timed."""
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise RequestError(f"--out: expected a folder that can be written to, found {there}")


def _in_process(cli: Cli, model: str, options: dict[str, Any]) -> Report:
    """Settings of this machine's engine. Raises OstinatoError."""
    from ostinatod.bench.comparison import compare
    from ostinatod.bench.conclusion import concluded
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
    facts = {**_facts(gpu_names), "daemon_models": loaded_in_daemon(cli)}
    for name in facts["daemon_models"]:
        say(f"the daemon has {name} loaded, which takes memory and cores: ostinato stop {name}")
    with share_display() as display:
        outcome: Outcome = compare(plan, options["out"], display, resume=options["resume"])
    return concluded(plan, outcome, facts)


def loaded_in_daemon(cli: Cli) -> list[str]:
    """Names of the models that a daemon holds; none where no daemon answers."""
    with contextlib.suppress(OstinatoError), cli.client() as daemon:
        return [model["name"] for model in daemon.status()["models"]]
    return []


def _over_http(model: str, options: dict[str, Any]) -> Report:
    """Servers, one after the other. Raises OstinatoError where all refuse."""
    import httpx

    from ostinatod.bench.conclusion import busy_notes, failure_notes
    from ostinatod.bench.http_comparison import compare_over_http, reading_notes
    from ostinatod.bench.http_replay import CONNECT_S
    from ostinatod.bench.report import make_report
    from ostinatod.keys import key_for

    _refuse_engine_options()
    for url in options["urls"]:
        if not url.startswith(("http://", "https://")):
            raise RequestError(
                f"--url: expected the address of a server, found {url!r}", hint="Such as --url http://127.0.0.1:8080"
            )
    limits, facts = _limits(options), {**_facts(()), "model": model}
    sessions, source = _http_sessions(options, limits)

    def connect(url: str) -> httpx.Client:
        key = key_for(url)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(None, connect=CONNECT_S))

    servers = {url: functools.partial(connect, url) for url in options["urls"]}
    with share_display() as display:
        turns, failures = compare_over_http(
            servers, model, sessions, limits, options["out"], display, resume=options["resume"]
        )
    if not turns:
        raise RequestError("no turn fits into the limits", hint="Allow more with --max-tokens-per-session")
    notes = [source, *reading_notes(turns), *limits.described(), *failure_notes(failures), *busy_notes(facts)]
    # As they were named, whichever was timed first where a run goes on.
    turns = sorted(turns, key=lambda turn: options["urls"].index(turn.setting))
    return make_report(turns, options["urls"][0], notes, {**facts, "failures": dict(failures)})


def _http_sessions(options: dict[str, Any], limits: Limits) -> tuple[list[HttpSession], str]:
    """The sessions that are sent, and what they are."""
    from ostinatod.bench.http_sessions import recorded_over_http, shaped_over_http
    from ostinatod.bench.log_shapes import logged_shapes
    from ostinatod.bench.plan import DEFAULT_HELD_OUT
    from ostinatod.bench.traces import SAMPLE, choose_timed, read_traces

    trace, held_out = _source(options)
    held_out = held_out or DEFAULT_HELD_OUT
    if trace == OWN_LOG:
        if not (shapes := logged_shapes()[:held_out]):
            raise RequestError("the routing log holds no session yet", hint="Name a trace file: --sessions FILE")
        filling = read_traces(SAMPLE)
        return [shaped_over_http(shape, limits, filling) for shape in shapes], (
            "Lengths are those of the routing log, filled with text of recorded sessions: servers say what they choose."
        )
    recorded = choose_timed(read_traces(Path(trace) if trace else SAMPLE), held_out)
    return [recorded_over_http(session, limits) for session in recorded], (
        "Lengths are fixed: servers say what they choose, as long as the recording. Conversations are plain ChatML."
    )


def _refuse_engine_options() -> None:
    """What a server has decided for itself is not ignored without a word."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in ENGINE_OPTIONS and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise RequestError(
                f"{parameter.opts[0]} is for this machine's engine, not for servers",
                hint="Leave it out, or leave out --url",
            )


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
            times_all=options["all_settings"],
            repeats=options["repeats"],
            trial_turns=options["trial_turns"] or (None if options["seconds"] is None else SHORT_TRIAL_TURNS),
            seconds=options["seconds"],
        ),
    )


def _source(options: dict[str, Any]) -> tuple[str | None, int | None]:
    """The trace file or "log", None for the bundled sessions; and how many are timed, None for the usual number."""
    named: str | None = options["sessions"]
    if named is not None and named.isdecimal() and int(named):
        return None, int(named)
    if named not in (None, OWN_LOG) and not Path(named).is_file():
        raise RequestError(f"--sessions: expected a number of at least 1, a trace file or {OWN_LOG}, found {named!r}")
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
    return {
        "machine": machine,
        "cores": cpus.usable_cores,
        "load_before": round(os.getloadavg()[0], 2),
        "command": shlex.join(["ostinato", *sys.argv[1:]]),
    }


def _paragraphs(report: Report, files: Sequence[Path]) -> Iterator[str]:
    from ostinatod.bench.report import search_table, tables

    found = list(tables(report))
    if report.facts.get("search"):
        timed = [setting["name"] for setting in report.facts["settings"]]
        found.insert(0, search_table(report.facts["search"], timed))
    for item in found:
        yield f"{item.title}\n{table(item.header, item.rows)}"
    yield "\n".join(report.notes)
    pool = report.facts.get("pool_bytes")
    where = [report.facts["machine"], report.facts["model"], *([f"{human_bytes(pool)} for experts"] if pool else [])]
    yield f"{'; '.join(where)}. Files: {', '.join(map(str, files))}"
