"""What `ostinato status` says to people: of all that the daemon tells, what one may want to act on. Pure functions.

What the daemon does not tell is left out; `--json` has it all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta

from ostinatod.cli.text import counted, human_bytes, human_duration, section, until
from ostinatod.client_dashboard_values import USES
from ostinatod.client_json import Json, json_object, json_objects
from ostinatod.config import Settings

Line = tuple[str, str]

_SHORT_DIGEST = 12


def status_text(told: Json, base_url: str, now: datetime) -> str:
    """The daemon at `base_url`, then each model in memory."""
    models = json_objects(told.get("models") or [])
    parts = [section("Daemon", _daemon(told, base_url))]
    parts += [section(str(model.get("name")), _model(model, now)) for model in models]
    if not models:
        parts.append("  No model is in memory.")
    return "\n\n".join(parts)


def _daemon(told: Json, base_url: str) -> Iterator[Line]:
    yield "address", base_url
    yield "version", str(told.get("version", "-"))
    if (pid := told.get("pid")) is not None:
        up = human_duration(timedelta(seconds=float(told.get("uptime_s") or 0.0)))
        yield "process", f"{pid}, up {up[0].lower()}{up[1:]}"
    if build := _object(told.get("build")):
        yield "engine", f"built for {build.get('backend')}, {str(build.get('digest'))[:_SHORT_DIGEST]}"
    if log := _object(told.get("routing_log")):
        yield "routing log", _routing_log(log)
        if hint := log.get("hint"):
            yield "", str(hint)
    if changed := list(_changed_settings(_object(told.get("settings")))):
        yield "settings", ", ".join(changed)


def _routing_log(log: Json) -> str:
    if log.get("state") != "on":
        reason = log.get("reason")
        return f"{log.get('state')}: {reason}" if reason else str(log.get("state"))
    dropped = log.get("dropped") or 0
    # It was off for a while, or had too many at once; the daemon's log says which.
    lost = f", {counted(dropped, 'request')} not logged: see ostinato logs" if dropped else ""
    return f"on, {log.get('written')} requests since the start, at most {human_bytes(log.get('cap_bytes') or 0)}{lost}"


def _changed_settings(told: Json) -> Iterator[str]:
    """Those that are not as they come; the address is told by itself."""
    usual = asdict(Settings())
    for name, value in told.items():
        plain = tuple(value) if isinstance(value, list) else value
        if name not in ("host", "port") and name in usual and plain != usual[name]:
            shown = " ".join(map(str, plain)) if isinstance(plain, tuple) else plain
            yield f"{name} = {shown}"


def _model(model: Json, now: datetime) -> Iterator[Line]:
    yield "state", _state(model)
    if context := model.get("context_tokens"):
        slots = model.get("slots")
        yield "context", f"{context} tokens" + (f", shared by {slots} conversations" if slots else "")
    engine = _object(model.get("engine"))
    yield "memory", ", ".join(_memory(model, engine))
    yield "experts", _experts(_object(model.get("gpu_experts")), _object(engine.get("residency")))
    if hint := _object(model.get("gpu_experts")).get("hint"):
        yield "", str(hint)
    counting = _object(engine.get("route_counting"))
    if counting and not counting.get("enabled"):
        yield "routes", f"not counted: {counting.get('reason') or 'the engine does not say why'}"
    timing = _object(model.get("timing"))
    if checked := timing.get("checked_requests"):
        yield "predictions", f"{timing.get('median_error', 0.0):.1%} off in the median of {checked} requests"
    if model.get("state") == "ready":
        expires = model.get("expires_at")
        yield "until", until(datetime.fromisoformat(str(expires)) if expires else None, now)


def _state(model: Json) -> str:
    state = str(model.get("state"))
    if state == "loading":
        return f"loading, {round(100 * (_object(model.get('load')).get('progress') or 0.0))} %"
    running, waiting = model.get("in_flight") or 0, model.get("queued") or 0
    busy = f"{running} running" if running else "idle"
    return f"{state}, {busy}" + (f", {waiting} waiting" if waiting else "")


def _memory(model: Json, engine: Json) -> Iterator[str]:
    yield f"{human_bytes(model['rss_bytes'])} resident" if model.get("rss_bytes") is not None else "not told"
    for device in json_objects(_object(engine.get("memory")).get("devices") or []):
        used = sum(device.get(f"{use}_bytes") or 0 for use in USES if use != "margin")
        yield f"{human_bytes(used)} on {device.get('name') or 'a GPU'}"


def _experts(choice: Json, residency: Json) -> str:
    if refused := choice.get("refused"):
        return f"no expert pool: {refused}"
    place = f"{choice.get('chosen')}, since {choice.get('reason')}" if choice else "not told"
    if hot := residency.get("hot_experts"):
        place += f"; {hot} hot in {human_bytes(residency.get('pool_bytes') or 0)}"
        place += f", generation {residency.get('generation')}"
    return place


def _object(value: object) -> Json:
    return json_object(value or {})
