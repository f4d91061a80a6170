"""What opening a row does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ostinatod.tui.screens.dialogs import Page
from ostinatod.tui.view.header import loaded_names
from ostinatod.tui.view.learning import plan_of_view
from ostinatod.tui.view.lines import Line, line, mark, wrap
from ostinatod.tui.view.traffic import find_request, request_detail
from ostinatod.tui.widgets.list_panel import ListPanel
from ostinatod.tui.widgets.lists import HistoryPanel, LogsPanel, ModelsPanel, RequestsPanel, SessionsPanel

if TYPE_CHECKING:
    from ostinatod.tui.app import DashboardApp

PAGE_WIDTH = 90


def open_row(app: DashboardApp, panel: ListPanel, key: str) -> None:
    """Open the row with that key."""
    if isinstance(panel, ModelsPanel):
        _focus_model(app, key)
    elif isinstance(panel, SessionsPanel):
        _filter_requests(app, key)
    elif isinstance(panel, RequestsPanel):
        _show_request(app, key)
    elif isinstance(panel, HistoryPanel):
        _show_generation(app, key)
    elif isinstance(panel, LogsPanel):
        show_page(app, "Log line", _wrapped(panel.text_at_cursor()))


def show_page(app: DashboardApp, title: str, lines: Sequence[Line]) -> None:
    """Open lines to read."""
    app.push_screen(Page(title, lines, app.palette))


def _focus_model(app: DashboardApp, name: str) -> None:
    job = next((job for job in app.jobs.snapshot() if name in (job.model, f"pull {job.model}")), None)
    if job is not None and job.state == "failed":
        show_page(app, f"{job.kind} {job.model}", [*_wrapped(job.error), *_wrapped(job.hint, "strong")])
        return
    if name in loaded_names(app.view):
        app.wanted_focus = name
        app.ask()
    else:
        app.say(f"{name} is not in memory." if job is None else f"{job.kind} {job.model}: {job.step}")


def _filter_requests(app: DashboardApp, session: str) -> None:
    requests = app.dashboard.panel(RequestsPanel)
    if requests is not None:
        requests.session = None if requests.session == session else session
        app.show()


def _show_request(app: DashboardApp, request_id: str) -> None:
    view = app.view
    request = find_request(view, request_id)
    if request is not None:
        show_page(app, f"Request {request.id}", request_detail(request, view, PAGE_WIDTH))


def _show_generation(app: DashboardApp, number: str) -> None:
    plan = plan_of_view(app.view)
    entry = next((entry for entry in plan.history if str(entry.generation) == number), None) if plan else None
    if entry is not None:
        show_page(app, f"Generation {number}", _wrapped(entry.note or "Nothing was noted about it."))


def _wrapped(text: str, role: str = "text") -> list[Line]:
    return [line(mark(row, role)) for row in wrap(text, PAGE_WIDTH)]
