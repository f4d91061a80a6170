"""Why the last answer took as long as it did: where its time went, and the cause that can be named."""

from __future__ import annotations

from ostinatod.client_dashboard_values import Request
from ostinatod.tui.view.charts import stacked
from ostinatod.tui.view.figures import ago, count, counted, ms, share
from ostinatod.tui.view.lines import Line, Span, fit, mark, span, width_of
from ostinatod.tui.view.state import View
from ostinatod.tui.view.symbols import PARTS
from ostinatod.tui.view.traffic import break_reason

LABEL = 12
_FELT_MS = 50.0
_QUEUE_MATTERS = 0.25
"""Share of an answer's time from which waiting for others is its cause."""


def parts_of_answer(request: Request) -> tuple[tuple[str, float], ...] | None:
    """Milliseconds until the engine took it, to the first token, and to the last; None where they are not known."""
    total, first = request.total_ms, request.ttft_ms
    if total is None or first is None or total <= 0 or first > total:
        return None
    waited = min(request.queue_ms or 0.0, first)
    return tuple(zip(PARTS, (waited, first - waited, total - first), strict=True))


def answer_lines(view: View, width: int, height: int) -> list[Line]:
    """The newest answer that ended well, in at most `height` lines; nothing where there is none."""
    request = next(iter(view.finished), None)
    parts = parts_of_answer(request) if request is not None else None
    if request is None or parts is None or height < 2:
        return []
    symbols = view.symbols
    label = mark("last answer".ljust(LABEL), "strong")
    total = ms(request.total_ms, symbols)
    # Less than can be felt is not worth a cell, which would claim far more.
    parts = tuple((part, 0.0 if part == "waited" and took < _FELT_MS else took) for part, took in parts)
    bar_width = width - LABEL - len(total) - 1
    cells = stacked(parts, request.total_ms or 0.0, bar_width)
    bar = [Span(symbols.parts[part] * size, f"part_{part}") for part, size in cells]
    lines: list[Line] = [(label, *bar, Span(" "), mark(total, "strong"))]
    if height >= 3:
        when = f"{ago(request.started_at_s, view.now_s, symbols)} ago" if request.started_at_s is not None else ""
        lines.append(_legend(request, parts, when, view, width))
    why, role = _cause(request, dict(parts), view)
    text = next((text for text in why if len(text) + LABEL <= width), why[-1])
    # Where even the fewest words have no room beside the label, they take the whole line.
    indent = LABEL if len(text) + LABEL <= width else 0
    lines.append(fit((Span(" " * indent), span(text, role)), width, symbols.ellipsis))
    return lines


def _legend(request: Request, parts: tuple[tuple[str, float], ...], when: str, view: View, width: int) -> Line:
    symbols = view.symbols
    row: list[Span] = [mark(when.ljust(LABEL), "dim")]
    for part, took in parts:
        if not took:
            continue
        entry = [mark(symbols.parts[part], f"part_{part}"), mark(f" {part} ", "dim"), mark(ms(took, symbols))]
        entry.append(mark("  "))
        if width_of((*row, *entry)) > width + 2:
            break
        row += entry
    prompt = f"{count(request.new_tokens, symbols)} new, {count(request.reused_tokens, symbols)} reused tokens"
    if width_of(row) + len(prompt) <= width:
        row.append(mark(prompt, "dim"))
    return fit(tuple(row), width, symbols.ellipsis)


def _cause(request: Request, times: dict[str, float], view: View) -> tuple[tuple[str, ...], str]:
    """What took the most, in ever fewer words, and the colour of it."""
    symbols = view.symbols
    if times["waited"] > _QUEUE_MATTERS * sum(times.values()):
        return ("waited for the requests before it", "waited for others"), "warn"
    if times["read"] >= times["wrote"]:
        broke = request.prefix_break
        if broke is None:
            new, short = (counted(request.new_tokens, noun, symbols) for noun in ("new token", "token"))
            return (f"mostly reading {new}", f"reading {short}"), "text"
        reason, lost = break_reason(broke), counted(broke.lost_tokens, "token", symbols)
        return (f"{reason}: {lost} read again", f"{reason}, {count(broke.lost_tokens, symbols)} lost"), "warn"
    each = ms(request.tpot_ms, symbols)
    written = counted(request.output_tokens, "token", symbols)
    told = f"mostly writing {written}, {each} each", f"{written}, {each} each"
    if request.cold_routes is None or not request.routes:
        return told, "text"
    cold = f"{share(request.cold_routes / request.routes, symbols)} of routes cold"
    return (f"{told[0]}; {cold}", f"{told[1]}; {cold}", *told), "text"
