"""What keys do, and the command palette offers: one table. Where something is lost, a question comes first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ostinatod.client_dashboard_values import Request
from ostinatod.tui.choices import show_page
from ostinatod.tui.screens.dialogs import Ask
from ostinatod.tui.view.header import loaded_names, registered_names
from ostinatod.tui.view.help import help_lines
from ostinatod.tui.view.keys import PRESETS
from ostinatod.tui.view.learning import apply_question, plan_of_view, undo_question
from ostinatod.tui.view.state import known
from ostinatod.tui.view.traffic import find_request
from ostinatod.tui.widgets.lists import LogsPanel, ModelsPanel, RequestsPanel
from ostinatod.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from ostinatod.tui.app import DashboardApp


@dataclass(frozen=True, slots=True)
class Command:
    """One thing to do."""

    name: str
    keys: str
    """As Textual names them, with commas between."""
    shown_key: str
    title: str
    does: str
    run: Callable[[DashboardApp], object]


def named(name: str) -> Command:
    """The command of that name."""
    return next(command for command in COMMANDS if command.name == name)


def _preset(name: str) -> Callable[[DashboardApp], object]:
    return lambda app: app.choose_preset(name)


def _help(app: DashboardApp) -> None:
    panel = app.focused if isinstance(app.focused, Panel) else None
    title = panel.TITLE if panel else "Dashboard"
    show_page(app, f"Help: {title}", help_lines(panel.GUIDE if panel else None, keys_everywhere()))


def keys_everywhere() -> tuple[tuple[str, str], ...]:
    """Every key of `COMMANDS` with what it does; those of the presets on one line."""
    presets = (f"1-{len(PRESETS)}", f"Show a preset: {', '.join(PRESETS)}")
    others = (command for command in COMMANDS if not command.name.startswith("preset-"))
    return (presets, *((command.shown_key, command.does) for command in others))


def _pause(app: DashboardApp) -> None:
    app.feed.is_paused = not app.feed.is_paused
    if not app.feed.is_paused:
        app.feed.refresh()
    app.show()


def _pace(step: int) -> Callable[[DashboardApp], object]:
    def change(app: DashboardApp) -> None:
        from ostinatod.tui.app import INTERVALS_S

        nearest = min(range(len(INTERVALS_S)), key=lambda at: abs(INTERVALS_S[at] - app.feed.interval_s))
        app.feed.interval_s = INTERVALS_S[min(max(nearest + step, 0), len(INTERVALS_S) - 1)]
        app.feed.refresh()
        app.show()

    return change


def _refresh(app: DashboardApp) -> None:
    app.feed.refresh()


def _theme(app: DashboardApp) -> None:
    names = list(app.palettes)
    app.choose_theme(names[(names.index(app.palette.name) + 1) % len(names)])


def _model(app: DashboardApp) -> None:
    names = loaded_names(app.view)
    if len(names) < 2:
        app.say("Only one model is in memory." if names else "No model is in memory. Load one with l.")
        return
    focus = app.view.focus
    app.wanted_focus = names[(names.index(focus) + 1) % len(names)] if focus in names else names[0]
    app.ask()


def _load(app: DashboardApp) -> None:
    view, panel = app.view, app.dashboard.panel(ModelsPanel)
    under = panel.cursor_key if panel is not None and panel.has_focus else None
    if under in loaded_names(view):
        app.say(f"{under} is in memory already.")
    elif under in registered_names(view):
        _start_load(app, under)
    else:
        names = [name for name in registered_names(view) if name not in loaded_names(view)]
        note = f"On disk: {', '.join(names[:6])}" if names else "The name of a model on this machine."
        _ask(app, "Load a model", note, names[0] if len(names) == 1 else "", _start_load)


def _start_load(app: DashboardApp, model: str | None) -> None:
    if model:
        app.jobs.load(model)
        app.say(f"loading {model}")
        app.feed.refresh()


def _pull(app: DashboardApp) -> None:
    def start(app: DashboardApp, reference: str) -> None:
        app.jobs.pull(reference)
        app.show()

    _ask(
        app,
        "Pull a model",
        "tiny, hf.co/ORG/REPO, or hf.co/ORG/REPO:QUANT. Progress shows among the models.",
        "",
        start,
    )


def _unload(app: DashboardApp) -> None:
    view, panel = app.view, app.dashboard.panel(ModelsPanel)
    under = panel.cursor_key if panel is not None and panel.has_focus else None
    model = under if under in loaded_names(view) else (view.model.name if view.model and under is None else None)
    if model is None:
        app.say("Nothing to unload: no model in memory is chosen.")
        return
    lines = (
        "Its memory is freed once its answers in progress have ended.",
        "Prompts that it holds have to be read again after the next load.",
    )
    app.confirm(f"Unload {model}?", lines, "unload", lambda: app.jobs.unload(model))


def _cancel(app: DashboardApp) -> None:
    models = app.dashboard.panel(ModelsPanel)
    if models is not None and models.has_focus and (models.cursor_key or "").startswith("pull "):
        reference = (models.cursor_key or "").removeprefix("pull ")
        if reference not in [job.model for job in app.jobs.running_pulls()]:
            app.jobs.dismiss("pull", reference)
            app.show()
            return
        app.jobs.stop("pull", reference)
        app.say(f"stopping the pull of {reference}; what was fetched is kept")
        return
    request = _open_request(app)
    if request is None:
        app.say("No request in flight is chosen. Choose one with 3 and the arrows.")
        return
    lines = (
        f"Session {request.session}, turn {request.turn}, {request.status}.",
        "Its client gets an error; what was generated so far is lost.",
    )
    app.confirm("Cancel this request?", lines, "cancel it", lambda: app.jobs.cancel(request.id))


def _open_request(app: DashboardApp) -> Request | None:
    """The request under the cursor, or the only one in flight."""
    view, panel = app.view, app.dashboard.panel(RequestsPanel)
    if panel is not None and panel.has_focus:
        chosen = find_request(view, panel.cursor_key)
        return chosen if chosen is not None and chosen.is_open else None
    requests = known(view.reading.requests if view.reading else None, ())
    in_flight = [request for request in requests if request.is_open]
    return in_flight[0] if len(in_flight) == 1 else None


def _plan(app: DashboardApp) -> None:
    app.choose_preset("learning")
    app.feed.refresh()
    app.say("planning again from the logged sessions")


def _apply(app: DashboardApp) -> None:
    plan = plan_of_view(app.view)
    if plan is None or plan.proposal is None:
        app.choose_preset("learning")
        app.say("Nothing is proposed.")
        return
    model = app.view.focus or plan.model
    app.confirm("Apply the proposal?", apply_question(plan, app.view), "apply", lambda: app.jobs.apply_plan(model))


def _undo(app: DashboardApp) -> None:
    plan = plan_of_view(app.view)
    if plan is None or len(plan.history) < 2:
        app.choose_preset("learning")
        app.say("There is no generation to go back to.")
        return
    model = app.view.focus or plan.model
    app.confirm("Undo the last generation?", undo_question(plan), "undo", lambda: app.jobs.undo_plan(model))


def _filter(app: DashboardApp) -> None:
    logs = _logs(app)

    def apply(text: str | None) -> None:
        logs.filter_text = text or ""
        app.show()

    question = Ask(
        "Filter the log",
        "Show only lines that hold this text; empty shows all.",
        logs.filter_text,
        is_ascii=app.palette.symbols.is_ascii,
    )
    app.push_screen(question, apply)


def _log_source(app: DashboardApp) -> None:
    _logs(app)
    model = app.view.focus
    if app.log_source == "daemon" and model is None:
        app.say("No engine is running whose log could be shown.")
        return
    app.log_source = model if app.log_source == "daemon" and model else "daemon"
    app.ask()


def _logs(app: DashboardApp) -> LogsPanel:
    if app.dashboard.preset != "logs":
        app.choose_preset("logs")
    panel = app.dashboard.panel(LogsPanel)
    assert panel is not None
    return panel


def _quit(app: DashboardApp) -> None:
    pulls = app.jobs.running_pulls()
    if not pulls:
        app.exit()
        return
    lines = (
        f"Pulling {', '.join(job.model for job in pulls)} stops.",
        "What was fetched is kept, and another pull resumes it.",
    )
    app.confirm("Quit?", lines, "quit", app.exit)


def _ask(app: DashboardApp, title: str, note: str, value: str, then: Callable[[DashboardApp, str], object]) -> None:
    def answered(text: str | None) -> None:
        if text:
            then(app, text)

    app.push_screen(Ask(title, note, value, is_ascii=app.palette.symbols.is_ascii), answered)


COMMANDS: tuple[Command, ...] = (
    *(
        Command(f"preset-{name}", str(number), str(number), f"Show {name}", f"Show the {name} preset", _preset(name))
        for number, name in enumerate(PRESETS, start=1)
    ),
    Command("help", "question_mark", "?", "Help", "Help for the panel with the focus", _help),
    Command("pause", "space", "space", "Pause", "Pause, or go on", _pause),
    Command("faster", "plus,equals_sign", "+", "Faster", "Read more often", _pace(-1)),
    Command("slower", "minus", "-", "Slower", "Read less often", _pace(1)),
    Command("refresh", "ctrl+r", "^r", "Refresh", "Read everything on the screen now", _refresh),
    Command("theme", "t", "t", "Next theme", "Dark, light, monochrome, ASCII", _theme),
    Command("model", "m", "m", "Next model", "Show the next model that is in memory", _model),
    Command("load", "l", "l", "Load", "Load the model under the cursor, or one by name", _load),
    Command("unload", "u", "u", "Unload", "Take a model out of memory (asks first)", _unload),
    Command("pull", "p", "p", "Pull", "Download a model", _pull),
    Command(
        "cancel",
        "x",
        "x",
        "Cancel",
        "Cancel a request in flight (asks first); stop or dismiss a pull",
        _cancel,
    ),
    Command("plan", "r", "r", "Plan again", "Plan a residency set from the logged sessions", _plan),
    Command("apply", "a", "a", "Apply", "Put the proposed residency set into use (asks first)", _apply),
    Command("undo", "z", "z", "Undo", "Go back to the generation before (asks first)", _undo),
    Command("filter", "slash", "/", "Filter the log", "Show only log lines that hold a text", _filter),
    Command("source", "s", "s", "Log source", "The daemon's log, or the log of the engine in focus", _log_source),
    Command("quit", "q,ctrl+c", "q", "Quit", "Leave the dashboard; the daemon goes on", _quit),
)
