"""Hit rates: the share of routes that meet a hot expert, by phase, as planned, held out and measured."""

from __future__ import annotations

from ostinatod.client_dashboard_values import Plan, Unavailable
from ostinatod.tui.view.charts import meter, sparkline
from ostinatod.tui.view.empty import missing, not_ready, sentence, unreachable
from ostinatod.tui.view.figures import decimal, points, share
from ostinatod.tui.view.lines import EMPTY, Line, Span, fit, line, mark
from ostinatod.tui.view.state import View
from ostinatod.tui.view.symbols import Symbols

_LABEL = 9
_VALUE = 8
_FIGURE = 9


def hits_lines(view: View, width: int, height: int) -> list[Line]:
    """Measured coverage by phase with its course over requests; then what planning promised."""
    if (told := unreachable(view, width)) is not None:
        return told
    if (told := not_ready(view, width)) is not None:
        return told
    measured, more = _measured(view, width)
    plan = view.reading.plan if view.reading else None
    planned: list[Line] = []
    if isinstance(plan, Unavailable):
        known = isinstance(view.experts, Unavailable) and view.experts.reason == plan.reason
        planned = [] if known else missing(plan, view, width)
    elif plan is not None:
        planned = _planned(plan, view, width)
    lines = [*measured, *more] if len(measured) + len(more) + len(planned) <= height else measured
    if planned and len(lines) + len(planned) < height:
        lines.append(EMPTY)
    return lines + planned


def _measured(view: View, width: int) -> tuple[list[Line], list[Line]]:
    """What was measured, and what helps to judge it where there is room."""
    experts, symbols = view.experts, view.symbols
    if isinstance(experts, Unavailable):
        return missing(experts, view, width), []
    for lack in (experts.routes_missing, experts.residency_missing):
        if lack is not None:
            return missing(lack, view, width), []
    recent = view.finished[::-1]
    phases: tuple[tuple[str, float | None, list[float | None]], ...] = (
        ("prefill", experts.coverage("prefill"), [request.coverage_prefill for request in recent]),
        ("decode", experts.coverage("decode"), [request.coverage_decode for request in recent]),
    )
    course = max(0, min(24, width - _LABEL - _VALUE - 14))
    course = course if course >= 6 and any(value is not None for _, _, values in phases for value in values) else 0
    bar = width - _LABEL - _VALUE - (course + 2 if course else 0)
    lines = []
    for label, value, values in phases:
        row = [mark(label.ljust(_LABEL)), *meter(value, bar, symbols, "hot5")]
        row.append(mark(share(value, symbols).rjust(_VALUE), "strong"))
        if course:
            row += [Span("  "), *sparkline(values, course, symbols, from_zero=False)]
        lines.append(fit(tuple(row), width, symbols.ellipsis))
    even = experts.hot_share()
    more = [
        fit(
            (
                mark("even".ljust(_LABEL), "dim"),
                *meter(even, bar, symbols, "dim"),
                mark(share(even, symbols).rjust(_VALUE), "dim"),
            ),
            width,
            symbols.ellipsis,
        )
    ]
    counted = [request for request in recent if request.cold_routes is not None and request.routes]
    if counted:
        cold = sum(request.cold_routes or 0 for request in counted) / sum(request.routes or 0 for request in counted)
        told = f"{share(cold, symbols)} of the routes of {len(counted)} requests"
        more.append(fit(line(mark("cold".ljust(_LABEL), "dim"), mark(told, "dim")), width, symbols.ellipsis))
    return lines, more


def _planned(plan: Plan, view: View, width: int) -> list[Line]:
    """A row per set: what it covers of sessions that were held out, and what was measured of it."""
    symbols = view.symbols
    if plan.active is None and plan.proposal is None:
        return sentence(plan.sentence, width) if plan.sentence else []
    rows: list[Line] = [
        line(
            Span(" " * _LABEL),
            mark("held out".rjust(_FIGURE), "head"),
            mark("measured".rjust(_FIGURE), "head"),
        )
    ]
    active, proposal = plan.active, plan.proposal
    if active is not None:
        rows.append(_set(f"gen {active.generation}", active.coverage_held_out, active.coverage_measured, symbols))
    if proposal is not None:
        gain = None
        if proposal.coverage_held_out is not None and proposal.coverage_now is not None:
            gain = proposal.coverage_held_out - proposal.coverage_now
        rows.append(_set("proposed", proposal.coverage_held_out, None, symbols, gain=gain))
        rows.append(_set("as it is", proposal.coverage_now, None, symbols, role="dim"))
        rows.append(_set("hindsight", proposal.coverage_hindsight, None, symbols, role="dim"))
        rows.append(_set("even", proposal.coverage_uniform, None, symbols, role="dim"))
        cold = line(
            mark("cold".ljust(_LABEL), "dim"),
            mark(decimal(proposal.cold_routes_per_token_now, symbols).rjust(_FIGURE - 2)),
            mark(f" {symbols.arrow} "),
            mark(decimal(proposal.cold_routes_per_token, symbols), "strong"),
            mark(" per token", "dim"),
        )
        rows.append(cold)
    elif plan.sentence:
        rows += sentence(plan.sentence, width)
    return [fit(row, width, symbols.ellipsis) for row in rows]


def _set(
    label: str,
    held_out: float | None,
    measured: float | None,
    symbols: Symbols,
    *,
    gain: float | None = None,
    role: str = "strong",
) -> Line:
    """One set. Its effect is what was measured against what planning found, or `gain`."""
    effect = measured - held_out if measured is not None and held_out is not None else gain
    return line(
        mark(label.ljust(_LABEL), "dim" if role == "dim" else "text"),
        mark(share(held_out, symbols).rjust(_FIGURE), role),
        mark((share(measured, symbols) if role == "strong" else "").rjust(_FIGURE), role),
        mark((points(effect, symbols) if effect is not None else "").rjust(_FIGURE), _gain_role(effect)),
    )


def _gain_role(gain: float | None) -> str:
    if gain is None:
        return "faint"
    return "good" if gain >= 0 else "warn"


def hits_subtitle(view: View) -> str:
    """That a proposal waits that promises more, and the key that applies it."""
    plan = view.reading.plan if view.reading else None
    if view.model is None or plan is None or isinstance(plan, Unavailable) or plan.proposal is None:
        return ""
    proposal = plan.proposal
    if proposal.coverage_held_out is None or proposal.coverage_now is None:
        return "a applies the proposal"
    gain = proposal.coverage_held_out - proposal.coverage_now
    return f"a applies the proposal: {points(gain, view.symbols)}" if gain > 0 else ""
