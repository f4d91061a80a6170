"""From an outcome to a report that states its own conditions, and the files that are left of it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ostinatod.bench.comparison import Comparison, Outcome
from ostinatod.bench.drawing import as_png, as_svg
from ostinatod.bench.plot import plot
from ostinatod.bench.report import Report, make_report
from ostinatod.bench.sessions import of_part
from ostinatod.bench.settings import as_json, stock_bytes

REPORT_FILE = "report.json"
PLOT_FILE = "plot.svg"
IMAGE_FILE = "plot.png"

BUSY_SHARE = 0.25
"""Of the cores at work for others: the machine is busy."""


def concluded(plan: Comparison, outcome: Outcome, facts: Mapping[str, Any]) -> Report:
    """The report; `facts` say on which machine, by which command."""
    learned = outcome.chosen.learned
    known = {
        **facts,
        "date": time.strftime("%Y-%m-%d"),
        "model": plan.model.name,
        "backend": "cuda" if plan.on_gpu else "cpu",
        "sessions": {
            part: [
                {"id": item.id, "domain": item.domain, "turns": len(item.turns), "tokens": item.tokens}
                for item in of_part(outcome.sessions, part)
            ]
            for part in ("development", "held-out")
        },
        "skipped": list(outcome.skipped),
        "gpu_bytes": plan.options.gpu_bytes,
        "pool_bytes": learned.pool_bytes,
        "staging_experts": plan.options.staging_experts,
        "staging_bytes": {
            name: told["staging_bytes"] for name, told in outcome.loaded.items() if "staging_bytes" in told
        },
        "hot_experts": int(learned.hot.sum()),
        "experts": sum(plan.experts.n_experts),
        "coverage_development": round(learned.coverage, 4),
        "settings": [as_json(setting) for setting in outcome.chosen.settings],
        "search": list(outcome.chosen.search),
        "seconds": plan.options.seconds,
        "timed": outcome.chosen.timed,
        "loaded": dict(outcome.loaded),
        "failures": dict(outcome.failures),
    }
    own = next((item.name for item in outcome.chosen.settings if item.kind == "ostinato"), None)
    return make_report(outcome.turns, own, [*_notes(plan, outcome), *busy_notes(facts)], known)


def write_report(report: Report, out: Path) -> list[Path]:
    """Write report.json, plot.svg and, where Pillow is there, plot.png into a folder; the files."""
    out.mkdir(parents=True, exist_ok=True)
    drawing = plot(report)
    (out / REPORT_FILE).write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    (out / PLOT_FILE).write_text(as_svg(drawing), encoding="utf-8")
    written = [out / REPORT_FILE, out / PLOT_FILE]
    # A machine that has only what an engine needs has no Pillow.
    with contextlib.suppress(ImportError):
        (out / IMAGE_FILE).write_bytes(as_png(drawing))
        written.append(out / IMAGE_FILE)
    return written


def _notes(plan: Comparison, outcome: Outcome) -> Iterator[str]:
    """What a reader must know to read the numbers."""
    held_out, development = (list(of_part(outcome.sessions, part)) for part in ("held-out", "development"))
    learned, total = outcome.chosen.learned, plan.experts.places().total_bytes
    turns = sum(len(session.turns) for session in held_out)
    chosen = "Hot experts and the best setting of each kind" if outcome.chosen.search else "Hot experts"
    yield (
        f"Timed: {_counted(len(held_out), 'held-out session')} with {_counted(turns, 'turn')}, one at a time; "
        "every engine is forced to emit the recorded tokens. "
        f"{chosen}: chosen on {_counted(len(development), 'other session')}."
    )
    yield (
        f"Experts may take {_size(learned.pool_bytes)} ({learned.pool_bytes / total:.0%} of them all) {_where(plan)}."
    )
    for setting in outcome.chosen.settings if plan.on_gpu else ():
        if setting.kind == "stock" and (has := stock_bytes(plan.experts, setting)) > learned.pool_bytes:
            yield f"{setting.name}: {_size(has)} of experts are on GPUs ({has / total:.1%}), more than that."
    if plan.options.shapes:
        yield "The sessions are lengths from the routing log, filled with the text of recorded ones: routing is theirs."
    yield from plan.options.limits.described()
    if plan.options.seconds is not None:
        yield f"Planned for {plan.options.seconds:.0f} s: sessions are shortened, or left out, to what fits."
    if outcome.skipped:
        yield f"Left out, since their first turn does not fit: {', '.join(outcome.skipped)}."
    if len(held_out) < 2:
        yield "One session gives no interval."
    n_hot = int(learned.hot.sum())
    for name, told in outcome.loaded.items():
        if told.get("hot_experts", n_hot) < n_hot:
            yield f"{name}: the engine kept {told['hot_experts']} of {n_hot} hot experts, more did not fit."
    yield from failure_notes(outcome.failures)


def failure_notes(failures: Mapping[str, str]) -> Iterator[str]:
    """Why settings or servers could not go to their end, and what that means for the numbers."""
    yield from (f"{name} could not go to its end: {reason}" for name, reason in failures.items())
    if failures:
        yield "Times of a setting are those of the turns that it has; ratios and savings are of turns that both have."


def busy_notes(facts: Mapping[str, Any]) -> Iterator[str]:
    """That other programs, or models in a daemon, were there when the comparison began."""
    if models := facts.get("daemon_models"):
        yield f"The daemon had {', '.join(models)} loaded when this began, which takes memory and cores."
    load, cores = facts.get("load_before"), facts.get("cores")
    if load and cores and load > BUSY_SHARE * cores:
        yield (
            f"Other programs were at work when this began (a load of {load:.1f} on {cores} cores): "
            "times are longer and less even than on an idle machine."
        )


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.0f} MB"


def _where(plan: Comparison) -> str:
    """Where the memory for experts is, and what is on top of it."""
    if not plan.on_gpu:
        return "as hot ones. Without a GPU both branches are on the CPU and save nothing: the daemon runs stock there"
    asked = plan.options.staging_experts
    staging = f"staging buffer, for {asked} experts as asked, comes on top" if asked else "staging buffer is within it"
    return f"on GPUs, for every setting; ostinato's {staging}, stock's upload buffers come on top"


def _counted(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"
