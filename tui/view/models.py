"""Models on this machine and in memory, with the loads and downloads in progress."""

from __future__ import annotations

from ostinatod.client_dashboard_values import ModelState, Unavailable
from ostinatod.client_values import ModelListing
from ostinatod.tui.view.empty import key_hint, missing, sentence, unreachable
from ostinatod.tui.view.figures import count, file_size, gib
from ostinatod.tui.view.header import state_role, state_symbol, state_word
from ostinatod.tui.view.lines import EMPTY, Line, Span, mark, span
from ostinatod.tui.view.state import Job, View, known
from ostinatod.tui.view.table import Column, Row, Table

_COLUMNS = (
    Column("model", importance=9, least=12, most=48, grows=True, comfort=26),
    Column("state", importance=8, least=7, most=16),
    Column("disk", "right", importance=6, most=12),
    Column("quant", importance=3, most=9),
    Column("experts", importance=2, most=9),
    Column("context", "right", importance=1, most=8),
    Column("RAM", "right", importance=5, most=9),
)


def models_table(view: View) -> Table:
    """Downloads, then models in memory, then the others."""
    if (told := unreachable(view, 60)) is not None:
        return Table(_COLUMNS, (), tuple(told))
    listings = view.reading.listings if view.reading else ()
    loaded = view.reading.daemon.models if view.reading else ()
    by_name = {listing.name: listing for listing in known(listings, ())}
    rows = [_job_row(job, view) for job in view.jobs if job.kind == "pull"]
    rows += [_loaded_row(model, by_name.get(model.name), view) for model in loaded]
    names = {model.name for model in loaded}
    rows += [_listed_row(listing, view) for name, listing in by_name.items() if name not in names]
    if isinstance(listings, Unavailable) and not rows:
        return Table(_COLUMNS, (), tuple(missing(listings, view, 60)))
    empty = (*sentence("No model is on this machine.", 60), key_hint("p", "pull one: tiny, or hf.co/ORG/REPO:QUANT"))
    return Table(_COLUMNS, tuple(rows), empty)


def _loaded_row(model: ModelState, listing: ModelListing | None, view: View) -> Row:
    focused = model.name == view.focus
    state = Span(f"{state_symbol(model, view)} {state_word(model)}", state_role(model))
    rest = _listing_cells(listing, view)
    context = mark(count(model.context_tokens, view.symbols))
    cells = (
        span(model.name, "strong" if focused else "text"),
        state,
        *rest[:3],
        context,
        mark(gib(model.rss_bytes, view.symbols)),
    )
    return Row(model.name, cells)


def _listed_row(listing: ModelListing, view: View) -> Row:
    load = next((job for job in view.jobs if job.kind == "load" and job.model == listing.name), None)
    state = _load_state(load) if load else Span("on disk", "dim")
    return Row(listing.name, (span(listing.name), state, *_listing_cells(listing, view), Span("")))


def _load_state(load: Job) -> Span:
    if load.state == "failed":
        return Span("load failed", "bad")
    return Span("loading" if load.share is None else f"loading {100 * load.share:.0f} %", "warn")


def _listing_cells(listing: ModelListing | None, view: View) -> tuple[Span, ...]:
    if listing is None:
        return (Span(view.symbols.missing, "faint"), *(Span("") for _ in range(3)))
    symbols = view.symbols
    experts = f"{listing.n_experts}{symbols.times}{listing.k}" if listing.n_experts else "dense"
    return (
        mark(file_size(listing.size_bytes)),
        span(listing.quantization, "dim"),
        mark(experts, "dim"),
        mark(count(listing.context_tokens or None, symbols), "dim"),
    )


def _job_row(job: Job, view: View) -> Row:
    """A download: what it does, how far it is, and where it failed, the key that says why."""
    if job.state == "failed":
        state = Span("pull failed", "bad")
        note: Line = (mark("enter", "key"), mark(" why", "dim"))
    else:
        word = "verifying" if job.step == "verifying" else "pulling"
        done = "" if job.share is None else f" {100 * job.share:.0f} %"
        state, note = Span(f"{word}{done}", "warn"), EMPTY
    size = mark(file_size(job.total_bytes, job.done_bytes) if job.total_bytes else view.symbols.missing, "dim")
    return Row(f"pull {job.model}", (span(job.model), state, size, note, *(Span("") for _ in range(3))))
