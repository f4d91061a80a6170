"""Sessions and requests: what was read again, what was reused, and why a prefix broke."""

from __future__ import annotations

from ostinatod.client_dashboard_values import PrefixBreak, Request, Session, Unavailable
from ostinatod.tui.view.empty import missing, sentence, unreachable
from ostinatod.tui.view.figures import ago, count, exact, ms, share
from ostinatod.tui.view.lines import EMPTY, Line, Span, line, mark, span, wrap
from ostinatod.tui.view.state import View, known
from ostinatod.tui.view.table import Column, Row, Table

KINDS = {"first": "first", "after_tool": "tool", "after_user": "user", "side": "side", "other": "other"}

_BREAKS = {
    "template": "template changed",
    "system": "system changed",
    "tools": "tools changed",
    "message": "history changed",
    "rendering": "rendered differently",
    "reasoning": "reasoning dropped",
    "evicted": "evicted",
}

_SESSIONS = (
    Column("session", importance=9, least=8, most=26, grows=True),
    Column("last", "right", importance=7, least=4, most=6),
    Column("turns", "right", importance=6, least=5, most=6),
    Column("new", "right", importance=5, most=7),
    Column("reused", "right", importance=8, most=7),
    Column("out", "right", importance=3, most=7),
    Column("TTFT", "right", importance=4, least=7, most=9),
    Column("TPOT", "right", importance=4, least=7, most=9),
    Column("tool wait", "right", importance=5, least=7, most=9),
    Column("by", importance=1, most=7),
    Column("model", importance=2, most=20),
)

_REQUESTS = (
    Column("age", "right", importance=7, least=4, most=6),
    Column("status", importance=8, least=6, most=16),
    Column("kind", importance=3, least=4, most=6),
    Column("session", importance=3, least=6, most=18),
    Column("turn", "right", importance=2, most=5),
    Column("new", "right", importance=6, most=7),
    Column("reused", "right", importance=8, most=7),
    Column("out", "right", importance=3, most=7),
    Column("TTFT", "right", importance=7, least=7, most=9),
    Column("TPOT", "right", importance=5, least=7, most=9),
    Column("in all", "right", importance=3, least=7, most=9),
    Column("hits", "right", importance=2, least=6, most=7),
    Column("prefix broke", importance=5, least=12, most=40, grows=True, comfort=28),
)


def sessions_table(view: View) -> Table:
    """The newest session first."""
    if (told := unreachable(view, 60, in_full=True)) is not None:
        return Table(_SESSIONS, (), tuple(told))
    sessions = view.reading.sessions if view.reading else ()
    if isinstance(sessions, Unavailable):
        return Table(_SESSIONS, (), tuple(missing(sessions, view, 60)))
    empty = sentence("No session yet. A session begins with an agent's first request.", 60)
    return Table(_SESSIONS, tuple(_session_row(session, view) for session in sessions), tuple(empty))


def _session_row(session: Session, view: View) -> Row:
    symbols = view.symbols
    cells = (
        span(session.id),
        mark(ago(session.last_at_s, view.now_s, symbols), "dim"),
        mark(exact(session.turns, symbols)),
        mark(count(session.new_tokens, symbols)),
        mark(count(session.reused_tokens, symbols), "good"),
        mark(count(session.output_tokens, symbols), "dim"),
        mark(ms(session.ttft_ms_p50, symbols)),
        mark(ms(session.tpot_ms_p50, symbols)),
        mark(ms(session.wait_after_tool_ms_p50, symbols)),
        span(session.source, "dim"),
        span(session.model, "dim"),
    )
    return Row(session.id, cells)


def requests_table(view: View, session: str | None = None) -> Table:
    """Requests in flight, then the others newest first; only those of `session` if one is given."""
    if (told := unreachable(view, 60)) is not None:
        return Table(_REQUESTS, (), tuple(told))
    requests = view.reading.requests if view.reading else ()
    if isinstance(requests, Unavailable):
        return Table(_REQUESTS, (), tuple(missing(requests, view, 60)))
    empty = (
        *sentence("No request yet. Agents and editors connect to", 60),
        *sentence(f"{view.link.address}/v1", 60, "strong"),
    )
    shown = (request for request in requests if session is None or request.session == session)
    return Table(_REQUESTS, tuple(_request_row(request, view) for request in shown), empty)


def _request_row(request: Request, view: View) -> Row:
    symbols = view.symbols
    hits = request.coverage_decode if request.coverage_decode is not None else request.coverage_prefill
    cells = (
        mark(ago(request.started_at_s, view.now_s, symbols), "dim"),
        span(request.status, status_role(request.status)),
        span(KINDS.get(request.kind, request.kind), "dim"),
        span(request.session),
        mark(exact(request.turn, symbols), "dim"),
        mark(count(request.new_tokens, symbols)),
        mark(count(request.reused_tokens, symbols), "good"),
        mark(count(request.output_tokens, symbols), "dim"),
        mark(ms(request.ttft_ms, symbols)),
        mark(ms(request.tpot_ms, symbols)),
        mark(ms(request.total_ms, symbols), "dim"),
        mark(share(hits, symbols), "dim"),
        _break_cell(request.prefix_break, view),
    )
    return Row(request.id, cells)


def _break_cell(broke: PrefixBreak | None, view: View) -> Span:
    if broke is None:
        return Span("")
    lost = f", {count(broke.lost_tokens, view.symbols)} lost" if broke.lost_tokens is not None else ""
    return span(f"{break_reason(broke)}{lost}", "warn")


def break_reason(broke: PrefixBreak) -> str:
    """Why, in a few words."""
    return _BREAKS.get(broke.reason, broke.reason.replace("_", " "))


def status_role(status: str) -> str:
    """The colour of a request's status."""
    return {"ok": "good", "running": "accent", "queued": "warn", "cancelled": "dim"}.get(status, "bad")


def find_request(view: View, request_id: str | None) -> Request | None:
    """The request of that id, if it is among those that were read."""
    requests = known(view.reading.requests if view.reading else None, ())
    return next((request for request in requests if request.id == request_id), None)


def request_detail(request: Request, view: View, width: int) -> list[Line]:
    """Everything known about one request."""
    symbols = view.symbols
    started = f"{ago(request.started_at_s, view.now_s, symbols)} ago" if request.started_at_s else symbols.missing
    pairs: list[tuple[str, Span]] = [
        ("status", span(request.status, status_role(request.status))),
        ("model", span(request.model)),
        ("session", span(f"{request.session}  turn {exact(request.turn, symbols)}")),
        ("kind", span(f"{KINDS.get(request.kind, request.kind)}  over {request.dialect or symbols.missing}")),
        ("started", mark(started)),
        ("queued for", mark(ms(request.queue_ms, symbols))),
        ("first token", mark(ms(request.ttft_ms, symbols))),
        ("per token", mark(ms(request.tpot_ms, symbols))),
        ("in all", mark(ms(request.total_ms, symbols))),
        ("prompt", mark(f"{exact(request.new_tokens, symbols)} new, {exact(request.reused_tokens, symbols)} reused")),
        ("answer", mark(f"{exact(request.output_tokens, symbols)} tokens")),
        ("prefill path", span(request.path or symbols.missing)),
        ("generation", mark(exact(request.generation, symbols))),
        ("cold routes", mark(f"{exact(request.cold_routes, symbols)} of {exact(request.routes, symbols)}")),
        (
            "coverage",
            mark(
                f"prefill {share(request.coverage_prefill, symbols)}, decode {share(request.coverage_decode, symbols)}"
            ),
        ),
    ]
    lines = [line(mark(label.rjust(13), "dim"), mark("  "), value) for label, value in pairs]
    return [*lines, EMPTY, *_prefix_detail(request, view, width)]


def _prefix_detail(request: Request, view: View, width: int) -> list[Line]:
    """What became of the prefix that it shares with the turn before."""
    broke = request.prefix_break
    if broke is None:
        if request.is_open:
            told = "Not answered yet: its tokens and routes are known at its end."
        elif request.turn == 1:
            told = "The first turn of its session: there is no turn before whose prompt it could go on from."
        else:
            told = "The prefix held: only new tokens were read."
        return [line(mark(row, "dim")) for row in wrap(told, width)]
    lost = exact(broke.lost_tokens, view.symbols)
    lines = [
        line(
            mark("The prefix broke: ", "warn"), span(break_reason(broke), "strong"), mark(f", {lost} tokens read again")
        )
    ]
    return lines + [line(mark(row, "dim")) for row in wrap(broke.detail, width)]
