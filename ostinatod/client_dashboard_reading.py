"""Reads the daemon's JSON into the values of `ostinatod.client_dashboard_values`.

Lenient about what is missing (an older daemon) and strict about what has the wrong shape, which is an OstinatoError
that says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ostinatod.client_dashboard_values import (
    HOST_USES,
    USES,
    DaemonState,
    DeviceMemory,
    Generation,
    LayerResidency,
    ModelState,
    Plan,
    PrefixBreak,
    Proposal,
    Request,
    Residency,
    Routes,
    Session,
)
from ostinatod.client_json import Json, json_object, json_objects, text_of, unexpected
from ostinatod.errors import OstinatoError


def daemon_state(answer: Json) -> DaemonState:
    """From `/ostinato/status`."""
    build = _object(answer, "build")
    return DaemonState(
        pid=_int(answer, "pid"),
        version=text_of(answer, "version"),
        uptime_s=_float(answer, "uptime_s"),
        build_backend=text_of(build, "backend") or None,
        models=tuple(_model_state(entry) for entry in json_objects(answer.get("models") or [])),
    )


def requests_of(answer: Json) -> tuple[Request, ...]:
    """From `/ostinato/requests`; a request that is in both lists is taken once, as the one in flight.

    Raises OstinatoError with the daemon's reason where it has none to tell of because its log cannot be read.
    """
    entries = [*json_objects(answer.get("in_flight") or []), *json_objects(answer.get("requests") or [])]
    found: dict[str, Request] = {}
    for entry in entries:
        request = _request(entry)
        found.setdefault(request.id, request)
    _require_log(answer, list(found))
    return tuple(found.values())


def sessions_of(answer: Json) -> tuple[Session, ...]:
    """From `/ostinato/sessions`. Raises OstinatoError as `requests_of`."""
    entries = json_objects(answer.get("sessions") or [])
    _require_log(answer, entries)
    return tuple(
        Session(
            id=text_of(entry, "id"),
            model=text_of(entry, "model"),
            source=text_of(entry, "source"),
            started_at_s=_float(entry, "started_at"),
            last_at_s=_float(entry, "last_at"),
            turns=_int(entry, "turns"),
            new_tokens=_int(entry, "new_tokens"),
            reused_tokens=_int(entry, "reused_tokens"),
            output_tokens=_int(entry, "output_tokens"),
            ttft_ms_p50=_float(entry, "ttft_ms_p50"),
            tpot_ms_p50=_float(entry, "tpot_ms_p50"),
            wait_after_tool_ms_p50=_float(entry, "wait_after_tool_ms_p50"),
        )
        for entry in entries
    )


def routes_of(answer: Json) -> Routes:
    """From `/ostinato/routes`."""
    layers = tuple(_ids(answer, "layers"))
    prefill, decode = _counts(answer, "prefill", len(layers)), _counts(answer, "decode", len(layers))
    if prefill.shape != decode.shape:
        raise unexpected("as many prefill counts as decode counts", f"{prefill.shape} and {decode.shape}")
    return Routes(layers, prefill, decode)


def residency_of(answer: Json) -> Residency:
    """From `/ostinato/residency`."""
    layers = tuple(
        LayerResidency(
            layer=_int(entry, "layer") or 0,
            n_experts=_int(entry, "experts") or 0,
            k=_int(entry, "k"),
            hot=tuple(_ids(entry, "hot")),
        )
        for entry in json_objects(answer.get("layers") or [])
    )
    return Residency(_int(answer, "generation"), layers, _int(answer, "pool_bytes"), text_of(answer, "reason") or None)


def plan_of(answer: Json) -> Plan:
    """From `/ostinato/plan`."""
    skew, proposed = _object(answer, "skew"), answer.get("proposal")
    return Plan(
        model=text_of(answer, "model"),
        sessions=_int(answer, "sessions"),
        gain=_float(skew, "gain"),
        useful=_bool(skew, "useful"),
        sentence=text_of(skew, "sentence"),
        proposal=None if proposed is None else _proposal(json_object(proposed)),
        history=tuple(_generation(entry) for entry in json_objects(answer.get("history") or [])),
    )


def log_lines(answer: Json) -> tuple[str, ...]:
    """From `/ostinato/logs`."""
    lines = answer.get("lines") or []
    if not isinstance(lines, list):
        raise unexpected("a list of lines", lines)
    return tuple(str(line) for line in lines)


def _require_log(answer: Json, entries: Sequence[object]) -> None:
    if answer.get("reason") and not entries:
        raise OstinatoError(f"the routing log cannot be read: {answer['reason']}", hint="Find out why: ostinato doctor")


def _model_state(entry: Json) -> ModelState:
    engine = _object(entry, "engine")
    residency = _object(engine, "residency")
    memory = _object(engine, "memory")
    load = _object(entry, "load")
    pools = {text_of(device, "name"): device for device in json_objects(engine.get("devices") or [])}
    return ModelState(
        name=text_of(entry, "name"),
        state=text_of(entry, "state") or "ready",
        progress=_float(load, "progress"),
        pid=_int(entry, "pid"),
        rss_bytes=_int(entry, "rss_bytes"),
        context_tokens=_int(entry, "context_tokens"),
        slots=_int(entry, "slots"),
        in_flight=_int(entry, "in_flight"),
        queued=_int(entry, "queued"),
        backend=text_of(entry, "backend"),
        # An engine without a set tells generation 0, which is none.
        generation=_int(residency, "generation") or None,
        hot_experts=_int(residency, "hot_experts"),
        pool_bytes=_int(residency, "pool_bytes"),
        residency_state=text_of(residency, "state") or None,
        residency_reason=text_of(residency, "reason") or None,
        devices=tuple(_device(device, pools) for device in json_objects(memory.get("devices") or [])),
        host_bytes=_by_use(_object(memory, "host"), HOST_USES),
    )


def _device(entry: Json, pools: Mapping[str, Json]) -> DeviceMemory:
    name = text_of(entry, "name")
    return DeviceMemory(
        name=name,
        total_bytes=_int(entry, "total_bytes"),
        free_bytes=_int(entry, "free_bytes"),
        used_bytes=_by_use(entry, USES),
        pool_used_bytes=_int(pools.get(name, {}), "pool_used"),
    )


def _by_use(entry: Json, uses: Sequence[str]) -> tuple[tuple[str, int], ...]:
    told = ((use, _int(entry, f"{use}_bytes")) for use in uses)
    return tuple((use, size) for use, size in told if size is not None)


def _request(entry: Json) -> Request:
    broke = entry.get("prefix_break")
    return Request(
        id=text_of(entry, "id"),
        session=text_of(entry, "session"),
        turn=_int(entry, "turn"),
        model=text_of(entry, "model"),
        dialect=text_of(entry, "dialect"),
        kind=text_of(entry, "kind"),
        status=text_of(entry, "status"),
        started_at_s=_float(entry, "started_at"),
        queue_ms=_float(entry, "queue_ms"),
        ttft_ms=_float(entry, "ttft_ms"),
        tpot_ms=_float(entry, "tpot_ms"),
        total_ms=_float(entry, "total_ms"),
        new_tokens=_int(entry, "new_tokens"),
        reused_tokens=_int(entry, "reused_tokens"),
        output_tokens=_int(entry, "output_tokens"),
        prefix_break=None if broke is None else _prefix_break(json_object(broke)),
        generation=_int(entry, "generation"),
        path=text_of(entry, "path") or None,
        cold_routes=_int(entry, "cold_routes"),
        routes=_int(entry, "routes"),
        coverage_prefill=_float(entry, "coverage_prefill"),
        coverage_decode=_float(entry, "coverage_decode"),
    )


def _prefix_break(entry: Json) -> PrefixBreak:
    return PrefixBreak(text_of(entry, "reason"), text_of(entry, "detail"), _int(entry, "lost_tokens"))


def _proposal(entry: Json) -> Proposal:
    return Proposal(
        generation=_int(entry, "generation"),
        hot_experts=_int(entry, "hot_experts"),
        moved=_int(entry, "moved"),
        coverage_now=_float(entry, "coverage_now"),
        coverage_held_out=_float(entry, "coverage_held_out"),
        coverage_uniform=_float(entry, "coverage_uniform"),
        coverage_hindsight=_float(entry, "coverage_hindsight"),
        cold_routes_per_token_now=_float(entry, "cold_routes_per_token_now"),
        cold_routes_per_token=_float(entry, "cold_routes_per_token"),
        tpot_ms_predicted=_float(entry, "tpot_ms_predicted"),
        reasons=tuple(str(reason) for reason in entry.get("reasons") or ()),
        tpot_error=_float(entry, "tpot_error"),
    )


def _generation(entry: Json) -> Generation:
    return Generation(
        generation=_int(entry, "generation"),
        created_at_s=_float(entry, "created_at"),
        source=text_of(entry, "source"),
        state=text_of(entry, "state"),
        sessions=_int(entry, "sessions"),
        hot_experts=_int(entry, "hot_experts"),
        moved=_int(entry, "moved"),
        coverage_held_out=_float(entry, "coverage_held_out"),
        coverage_measured=_float(entry, "coverage_measured"),
        tpot_ms_measured=_float(entry, "tpot_ms_measured"),
        note=text_of(entry, "note"),
    )


def _counts(answer: Json, key: str, n_layers: int) -> NDArray[np.int64]:
    rows = answer.get(key)
    try:
        counts = np.array(rows, dtype=np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise unexpected(f"rows of {key} counts of equal length", rows) from error
    if n_layers == 0 and counts.size == 0:
        return counts.reshape(0, 0)
    if counts.ndim != 2 or counts.shape[0] != n_layers:
        raise unexpected(f"{n_layers} rows of {key} counts", f"an array of shape {counts.shape}")
    return counts


def _ids(values: Json, key: str) -> list[int]:
    ids = values.get(key) or []
    if not isinstance(ids, list) or not all(isinstance(item, int) for item in ids):
        raise unexpected(f"a list of numbers as {key}", ids)
    return ids


def _object(values: Json, key: str) -> Json:
    return json_object(values.get(key) or {})


def _bool(values: Json, key: str) -> bool | None:
    value = values.get(key)
    if value is not None and not isinstance(value, bool):
        raise unexpected(f"true or false as {key}", value)
    return value


def _int(values: Json, key: str) -> int | None:
    value = _float(values, key)
    return None if value is None else int(value)


def _float(values: Json, key: str) -> float | None:
    value = values.get(key)
    if value is None:
        return None
    # JSON as Python reads it may carry NaN and infinities, which are no figures.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < float("inf"):
        raise unexpected(f"a number as {key}", value)
    return value
