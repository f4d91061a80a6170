"""From an outcome to a report that states its own conditions, and the files that are left of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ostinatod.bench.comparison import Comparison, Outcome
from ostinatod.bench.plot import plot_svg
from ostinatod.bench.report import Report, make_report
from ostinatod.bench.sessions import of_part
from ostinatod.bench.settings import as_json, stock_bytes

REPORT_FILE = "report.json"
PLOT_FILE = "plot.svg"
_ON_GPU = "on GPUs, for every setting; ostinato's staging buffer is within it, stock's upload buffers come on top"


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
    return make_report(outcome.turns, own, list(_notes(plan, outcome)), known)


def write_report(report: Report, out: Path) -> None:
    """Write report.json and plot.svg into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    (out / REPORT_FILE).write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    (out / PLOT_FILE).write_text(plot_svg(report), encoding="utf-8")


def _notes(plan: Comparison, outcome: Outcome) -> Iterator[str]:
    """What a reader must know to read the numbers."""
    held_out, development = (list(of_part(outcome.sessions, part)) for part in ("held-out", "development"))
    learned, total = outcome.chosen.learned, plan.experts.places().total_bytes
    turns = sum(len(session.turns) for session in held_out)
    yield (
        f"Timed: {_counted(len(held_out), 'held-out session')} with {_counted(turns, 'turn')}, one at a time; "
        "every engine is forced to emit the recorded tokens. "
        f"Hot experts and the best setting of each kind: chosen on {_counted(len(development), 'other session')}."
    )
    yield (
        f"Experts may take {learned.pool_bytes / 1e9:.2f} GB ({learned.pool_bytes / total:.0%} of them all) "
        f"{_ON_GPU if plan.on_gpu else 'as hot ones; without a GPU both branches run on the CPU'}."
    )
    for setting in outcome.chosen.settings if plan.on_gpu else ():
        if setting.kind == "stock" and (has := stock_bytes(plan.experts, setting)) > learned.pool_bytes:
            yield f"{setting.name}: {has / 1e9:.2f} GB of experts are on GPUs ({has / total:.1%}), more than that."
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
    yield from (f"{name} could not go to its end: {reason}" for name, reason in outcome.failures.items())
    if outcome.failures:
        yield "Times of a setting are those of the turns that it has; ratios and savings are of turns that both have."


def _counted(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"
