"""What has been learned about a model: the proposal with its promises, and every generation with its effect."""

from __future__ import annotations

from ostinatod.client_dashboard_values import Generation, Plan, Proposal, Unavailable
from ostinatod.tui.view.charts import meter
from ostinatod.tui.view.empty import key_hint, missing, not_ready, sentence, unreachable
from ostinatod.tui.view.figures import ago, decimal, exact, ms, points, share
from ostinatod.tui.view.lines import EMPTY, Line, Span, fit, line, mark, span, wrap
from ostinatod.tui.view.state import View
from ostinatod.tui.view.table import Column, Row, Table

_LABEL = 18
_VALUE = 8
_FELT_GAIN = 0.0005
"""Below it a gain reads as none."""

_HISTORY = (
    Column("gen", "right", importance=9, least=3, most=5),
    Column("age", "right", importance=6, least=4, most=6),
    Column("source", importance=5, most=8),
    Column("state", importance=8, least=6, most=11),
    Column("sessions", "right", importance=2, most=8),
    Column("hot", "right", importance=4, least=5, most=8),
    Column("moved", "right", importance=4, least=5, most=8),
    Column("held out", "right", importance=7, most=8),
    Column("measured", "right", importance=7, most=8),
    Column("effect", "right", importance=5, least=7, most=9),
    Column("TPOT", "right", importance=3, least=7, most=9),
    Column("note", importance=1, least=8, most=60, grows=True),
)


def plan_of_view(view: View) -> Plan | None:
    """The plan of the model in focus, if the daemon gave it."""
    plan = view.reading.plan if view.reading else None
    return None if plan is None or isinstance(plan, Unavailable) else plan


def proposal_lines(view: View, width: int, height: int) -> list[Line]:
    """Whether learning helps, what the next generation would change, and which key does it."""
    if (told := unreachable(view, width, in_full=True)) is not None:
        return told
    if (told := not_ready(view, width)) is not None:
        return told
    plan = view.reading.plan if view.reading else None
    if plan is None or isinstance(plan, Unavailable):
        return missing(plan, view, width) if plan else []
    symbols = view.symbols
    lines: list[Line] = []
    useful = {True: ("learning helps", "good"), False: ("no gain expected", "warn"), None: ("not judged yet", "dim")}[
        plan.useful
    ]
    head = [mark(f"{exact(plan.sessions, symbols)} sessions logged  ", "dim"), mark(*useful)]
    if plan.gain is not None and (plan.useful or plan.gain >= _FELT_GAIN):
        head.append(mark(f"  {points(plan.gain, symbols)} over an even set", "dim"))
    lines.append(fit(tuple(head), width, symbols.ellipsis))
    lines += [line(mark(row, "dim")) for row in wrap(plan.sentence, width)]
    if plan.proposal is None:
        lines.append(EMPTY)
        lines += [line(mark("Nothing is proposed: the set in use is the best known.", "dim"))] if plan.active else []
        return [*lines, *_keys(plan)]
    lines += [EMPTY, *_coverages(plan.proposal, view, width), EMPTY, *_changes(plan.proposal, view, width)]
    for reason in (reason for reason in plan.proposal.reasons if reason != plan.sentence):
        lines += [
            line(mark(f"{symbols.dot} " if at == 0 else "  ", "faint"), mark(row, "dim"))
            for at, row in enumerate(wrap(reason, width - 2))
        ]
    keys = _keys(plan)
    if len(lines) + 1 + len(keys) <= height:
        return [*lines, EMPTY, *keys]
    return [*[entry for entry in lines if entry][: height - len(keys)], *keys]


def _coverages(proposal: Proposal, view: View, width: int) -> list[Line]:
    """Coverage of the held-out sessions under every set that could be in use."""
    symbols, bar = view.symbols, max(4, min(60, width - _LABEL - _VALUE))
    rows = (
        ("even routing", proposal.coverage_uniform, "dim"),
        ("in use now", proposal.coverage_now, "cold5"),
        ("proposed, held out", proposal.coverage_held_out, "hot5"),
        ("best in hindsight", proposal.coverage_hindsight, "dim"),
    )
    return [
        fit(
            (
                mark(label.ljust(_LABEL + 1)),
                *meter(value, bar - 1, symbols, role),
                mark(share(value, symbols).rjust(_VALUE), "strong"),
            ),
            width,
            symbols.ellipsis,
        )
        for label, value, role in rows
    ]


def _changes(proposal: Proposal, view: View, width: int) -> list[Line]:
    symbols = view.symbols
    now, then = proposal.coverage_now, proposal.coverage_held_out
    is_worse = now is not None and then is not None and then < now
    moved = line(
        mark(f"generation {exact(proposal.generation, symbols)}: ", "strong"),
        mark(f"{exact(proposal.hot_experts, symbols)} hot experts, {exact(proposal.moved, symbols)} moved"),
        *((mark(", expected to cover less than now", "warn"),) if is_worse else ()),
    )
    error = proposal.tpot_error
    expected = line(
        mark("cold routes per token ", "dim"),
        mark(decimal(proposal.cold_routes_per_token_now, symbols)),
        mark(f" {symbols.arrow} ", "dim"),
        mark(decimal(proposal.cold_routes_per_token, symbols), "strong"),
        mark("   TPOT predicted ", "dim"),
        mark(ms(proposal.tpot_ms_predicted, symbols), "strong"),
        *(() if error is None else (mark(f" lately off by {share(error, symbols)}", "dim"),)),
    )
    return [fit(moved, width, symbols.ellipsis), fit(expected, width, symbols.ellipsis)]


def _keys(plan: Plan) -> list[Line]:
    keys = [key_hint("r", "plan again")]
    if plan.proposal is not None:
        keys.append(key_hint("a", "apply the proposal"))
    if plan.active is not None and len(plan.history) > 1:
        keys.append(key_hint("z", "undo the last"))
    joined: list[Span] = []
    for key in keys:
        joined += [mark("   ")] if joined else []
        joined += key[1:]
    return [tuple(joined)]


def history_table(view: View) -> Table:
    """Every generation, newest first."""
    if (told := unreachable(view, 60)) is not None:
        return Table(_HISTORY, (), tuple(told))
    if view.model is None:
        return Table(_HISTORY, (), tuple(not_ready(view, 60) or ()))
    plan = view.reading.plan if view.reading else None
    if plan is None or isinstance(plan, Unavailable):
        return Table(_HISTORY, (), tuple(missing(plan, view, 60)) if plan else ())
    empty = (
        *sentence("No residency set has been in use for this model yet.", 76),
        *sentence("The first is proposed when enough sessions are logged; every one is kept here with its effect.", 76),
    )
    return Table(_HISTORY, tuple(_row(entry, view) for entry in plan.history), empty)


def _row(entry: Generation, view: View) -> Row:
    symbols = view.symbols
    effect = None
    if entry.coverage_measured is not None and entry.coverage_held_out is not None:
        effect = entry.coverage_measured - entry.coverage_held_out
    state = {"active": ("active", "good"), "superseded": ("superseded", "dim"), "rolled_back": ("rolled back", "warn")}
    cells = (
        mark(exact(entry.generation, symbols), "strong"),
        mark(ago(entry.created_at_s, view.now_s, symbols), "dim"),
        span(entry.source, "dim"),
        mark(*state[entry.state]) if entry.state in state else span(entry.state, "dim"),
        mark(exact(entry.sessions, symbols), "dim"),
        mark(exact(entry.hot_experts, symbols)),
        mark(exact(entry.moved, symbols)),
        mark(share(entry.coverage_held_out, symbols)),
        mark(share(entry.coverage_measured, symbols), "hot6"),
        mark(points(effect, symbols), "dim" if effect is None else "good" if effect >= 0 else "warn"),
        mark(ms(entry.tpot_ms_measured, symbols)),
        span(entry.note, "dim"),
    )
    return Row(str(entry.generation), cells)


def apply_question(plan: Plan, view: View) -> tuple[str, ...]:
    """What applying the proposal does, to be confirmed."""
    proposal, symbols = plan.proposal, view.symbols
    if proposal is None:
        return ()
    now, then = share(proposal.coverage_now, symbols), share(proposal.coverage_held_out, symbols)
    return (
        f"{exact(proposal.moved, symbols)} experts move. Generation {exact(proposal.generation, symbols)} is next.",
        f"Coverage of held-out sessions: {now} now, {then} then.",
        "Answers stay the same. Undo with z.",
    )


def undo_question(plan: Plan) -> tuple[str, ...]:
    """What undoing does, to be confirmed."""
    active = plan.active
    number = active.generation if active else "in use"
    return (
        f"Generation {number} is rolled back; the one before comes into use again.",
        "Its record is kept in the history.",
    )
