"""The two lines at the top: the daemon, and the model in focus."""

from __future__ import annotations

from collections.abc import Sequence

from ostinatod.client_dashboard_values import ModelState, Unavailable
from ostinatod.tui.view.figures import exact, length, share
from ostinatod.tui.view.lines import Line, Span, ends, fit, line, mark, span, width_of
from ostinatod.tui.view.state import View, known

_DIVIDED = "  "


def header_lines(view: View, width: int) -> list[Line]:
    """Daemon, version, address, uptime and the dashboard's own cost; then model, state, generation and coverage."""
    return [_daemon(view, width), _model(view, width)]


def _fitted(lefts: Sequence[Line], rights: Sequence[Line], width: int, view: View) -> Line:
    """The longest of each that have room together, the left ones first."""
    for left in lefts:
        for right in rights:
            if width_of(left) + width_of(right) + 2 <= width:
                return ends(left, right, width, view.symbols.ellipsis)
    return fit(lefts[-1], width, view.symbols.ellipsis)


def _daemon(view: View, width: int) -> Line:
    symbols, reading = view.symbols, view.reading
    address = span(view.link.address.removeprefix("http://"), "dim")
    short = line(mark(" "), mark("ostinato", "brand"), mark(_DIVIDED), address)
    lefts = [short]
    if view.link.state == "up" and reading:
        daemon = reading.daemon
        named = line(mark(" "), mark("ostinato ", "brand"), span(daemon.version, "strong"), mark(_DIVIDED), address)
        aged = (*named, mark(f"{_DIVIDED}up {length(daemon.uptime_s, symbols)}", "dim"))
        lefts = [(*aged, mark(_DIVIDED), *_build(daemon.build_backend)), aged, named, short]
    pace = mark("paused", "warn") if view.is_paused else mark(f"every {view.interval_s:g} s", "dim")
    own = "" if view.host.own_cpu is None else f"{_DIVIDED}own cpu {100 * view.host.own_cpu:.1f} %"
    return _fitted(lefts, [line(pace, mark(f"{own} ", "dim")), line(pace, mark(" "))], width, view)


def _build(backend: str | None) -> tuple[Span, ...]:
    if backend is None:
        return (mark("no engine built: ostinato engine build", "warn"),)
    return (mark("engine ", "dim"), span(backend, "dim"))


def _model(view: View, width: int) -> Line:
    symbols, link = view.symbols, view.link
    if link.state == "connecting":
        return fit(line(mark(f" {symbols.ring} ", "warn"), mark("connecting", "dim")), width, symbols.ellipsis)
    if link.state == "lost":
        lost = line(mark(f" {symbols.ring} ", "bad"), mark("no daemon", "bad"))
        since = mark(f" for {length(view.now_s - link.since_s, symbols)}", "dim")
        hint = (mark(_DIVIDED), span(link.hint, "strong"))
        retry = line(mark(f"trying again every {link.retry_s:g} s ", "dim"))
        return _fitted([(*lost, since, *hint), (*lost, *hint)], [retry, ()], width, view)
    if view.model is None:
        idle = line(mark(f" {symbols.ring} ", "dim"), mark("idle", "strong"), mark("  no model is in memory", "dim"))
        return fit(idle, width, symbols.ellipsis)
    return _loaded(view, view.model, width)


def _loaded(view: View, model: ModelState, width: int) -> Line:
    role = state_role(model)
    head = line(mark(f" {state_symbol(model, view)} ", role), span(model.name, "strong"), mark(_DIVIDED))
    state = mark(state_word(model), role)
    lefts = [(*head, state)]
    if model.state == "ready":
        if not model.generation and model.residency_state != "refused":
            plain = mark(f"{_DIVIDED}no residency set", "dim")
            lefts = [(*head, state, plain), *lefts]
            return _fitted(lefts, _work(view, model), width, view)
        decode, prefill = _coverage(view)
        generation = _generation(view, model)
        brief = (*head, state, mark("  gen ", "dim"), generation, mark("  hits ", "dim"), decode)
        full = (*head, state, mark("  generation ", "dim"), generation, mark("  hits: decode ", "dim"), decode)
        lefts = [(*full, mark("  prefill ", "dim"), prefill), full, brief, *lefts]
    return _fitted(lefts, _work(view, model), width, view)


def _work(view: View, model: ModelState) -> list[Line]:
    symbols = view.symbols
    work = f"{exact(model.in_flight, symbols)} in flight, {exact(model.queued, symbols)} queued"
    context = f"context {exact(model.context_tokens, symbols)}{_DIVIDED}"
    return [line(mark(f"{context}{work} ", "dim")), line(mark(f"{work} ", "dim")), ()]


def _generation(view: View, model: ModelState) -> Span:
    if model.residency_state == "refused":
        return mark("refused", "bad")
    return mark(exact(model.generation, view.symbols), "strong")


def _coverage(view: View) -> tuple[Span, Span]:
    """Of decode and of prefill, as measured."""
    experts = view.experts
    if isinstance(experts, Unavailable):
        return (mark(view.symbols.missing, "faint"), mark(view.symbols.missing, "faint"))
    decode, prefill = experts.coverage("decode"), experts.coverage("prefill")
    return mark(share(decode, view.symbols), "hot6"), mark(share(prefill, view.symbols), "hot6")


def state_word(model: ModelState) -> str:
    """Ready, busy, loading with its progress, stopping, or crashed."""
    if model.state == "loading":
        return "loading" if model.progress is None else f"loading {100 * model.progress:.0f} %"
    if model.state == "ready" and model.in_flight:
        return "busy"
    return {"dead": "crashed"}.get(model.state, model.state if model.state in ("ready", "stopping") else "unknown")


def state_role(model: ModelState) -> str:
    """The colour of a model's state."""
    return {"ready": "good", "loading": "warn", "stopping": "warn", "dead": "bad"}.get(model.state, "dim")


def state_symbol(model: ModelState, view: View) -> str:
    """Filled for a model that answers."""
    return view.symbols.dot if model.state == "ready" else view.symbols.ring


def loaded_names(view: View) -> tuple[str, ...]:
    """Models in memory, in the daemon's order."""
    return tuple(model.name for model in view.reading.daemon.models) if view.reading else ()


def registered_names(view: View) -> tuple[str, ...]:
    """Every model on this machine."""
    listings = known(view.reading.listings if view.reading else None, ())
    return tuple(listing.name for listing in listings)
