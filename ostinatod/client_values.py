"""What the daemon tells a client, as values: one frozen dataclass per kind of answer, read from its JSON.

Reading is lenient about what is missing (an older daemon) and strict about what has the wrong shape, which is an
OstinatoError that says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal

from ostinatod.client_json import Json, json_object, json_objects, text_of, unexpected
from ostinatod.store.records import PullProgress

RunState = Literal["loading", "ready", "stopping"]

_FRACTION = re.compile(r"\.(\d+)")


@dataclass(frozen=True, slots=True)
class ModelListing:
    """One registered model, as `ostinato list` shows it. Counts are 0 and texts empty where nothing is known."""

    name: str
    digest: str
    size_bytes: int
    modified_at: datetime | None
    source: str
    family: str
    parameter_size: str
    quantization: str
    n_experts: int
    k: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class GpuExperts:
    """Where an engine has its model's experts, and why."""

    chosen: str
    """"stock" for llama.cpp's own placement, "pool" for an expert pool."""
    reason: str
    refused: str | None
    """Why the engine runs on the stock nodes although a pool was chosen."""
    hint: str | None


@dataclass(frozen=True, slots=True)
class RunningModel:
    """One model with an engine, as `ostinato ps` shows it."""

    name: str
    digest: str
    size_bytes: int
    state: RunState
    progress: float
    """Of the load, 0 to 1."""
    context_tokens: int
    expires_at: datetime | None
    """None for a model that stays until it is stopped."""
    placement: str | None
    backend: str
    gpu_experts: GpuExperts | None = None
    """None where the daemon does not tell."""


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """Everything known about one model, as `ostinato show` shows it."""

    name: str
    source: str
    family: str
    parameter_size: str
    quantization: str
    format: str
    n_experts: int
    k: int
    context_tokens: int
    capabilities: tuple[str, ...]
    parameters: str
    template: str
    parts: tuple[str, ...]
    model_info: Json


@dataclass(frozen=True, slots=True)
class PrunedEntry:
    """A file or folder that no model needs."""

    kind: str
    model: str
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Pruned:
    """What no model needs, or what of it was deleted."""

    deleted: bool
    entries: tuple[PrunedEntry, ...]
    total_bytes: int
    in_progress: tuple[str, ...]
    """Models that were left alone because they are being pulled."""


@dataclass(frozen=True, slots=True)
class DaemonVersion:
    """The protocol version that other clients ask for, and the version of the daemon itself."""

    api: str
    ostinato: str


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """One step of a load; `progress` is 0 to 1."""

    status: str
    progress: float


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer; `cached_tokens` is the part of the prompt that was not read again."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EngineTimings:
    """What the engine measured for one answer."""

    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    cache_n: int


@dataclass(frozen=True, slots=True)
class ChatDelta:
    """The next piece of an answer."""

    text: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class ChatEnd:
    """The end of an answer."""

    finish_reason: str
    usage: Usage
    timings: EngineTimings | None


def model_listing(entry: Json) -> ModelListing:
    """From one entry of `/api/tags`, or the record that adding a local model answers with."""
    details = json_object(entry.get("details") or {})
    return ModelListing(
        name=text_of(entry, "name"),
        digest=text_of(entry, "digest"),
        size_bytes=_int(entry, "size"),
        modified_at=moment(entry.get("modified_at")),
        source=text_of(entry, "source"),
        family=text_of(details, "family"),
        parameter_size=text_of(details, "parameter_size"),
        quantization=text_of(details, "quantization_level"),
        n_experts=_int(entry, "n_experts"),
        k=_int(entry, "k"),
        context_tokens=_int(entry, "context_tokens"),
    )


def running_model(entry: Json) -> RunningModel:
    """From one entry of `/api/ps`."""
    state = entry.get("state", "ready")
    if state not in ("loading", "ready", "stopping"):
        raise unexpected("a state loading, ready or stopping", state)
    placement = entry.get("placement")
    return RunningModel(
        name=text_of(entry, "name"),
        digest=text_of(entry, "digest"),
        size_bytes=_int(entry, "size"),
        state=state,
        progress=_float(entry, "progress"),
        context_tokens=_int(entry, "context_length"),
        expires_at=moment(entry.get("expires_at")),
        placement=None if placement is None else str(placement),
        backend=text_of(entry, "backend"),
        gpu_experts=_gpu_experts(entry.get("gpu_experts")),
    )


def model_details(name: str, answer: Json) -> ModelDetails:
    """From the answer of `/api/show` for `name`."""
    details = json_object(answer.get("details") or {})
    info = json_object(answer.get("model_info") or {})
    architecture = text_of(info, "general.architecture")
    return ModelDetails(
        name=name,
        source=text_of(answer, "source"),
        family=text_of(details, "family") or architecture,
        parameter_size=text_of(details, "parameter_size"),
        quantization=text_of(details, "quantization_level"),
        format=text_of(details, "format"),
        n_experts=_int(info, f"{architecture}.expert_count"),
        k=_int(info, f"{architecture}.expert_used_count"),
        context_tokens=_int(info, f"{architecture}.context_length"),
        capabilities=tuple(str(item) for item in answer.get("capabilities") or ()),
        parameters=text_of(answer, "parameters"),
        template=text_of(answer, "template"),
        parts=tuple(str(item) for item in answer.get("parts") or ()),
        model_info=info,
    )


def pruned(answer: Json) -> Pruned:
    """An answer of `/ostinato/prune`."""
    entries = tuple(
        PrunedEntry(text_of(entry, "kind"), text_of(entry, "model"), text_of(entry, "path"), _int(entry, "size_bytes"))
        for entry in json_objects(answer.get("entries"))
    )
    in_progress = tuple(str(name) for name in answer.get("in_progress") or ())
    return Pruned(bool(answer.get("deleted")), entries, _int(answer, "total_bytes"), in_progress)


def pull_progress(step: Json) -> PullProgress:
    """From one line of `/api/pull`."""
    return PullProgress(
        status=text_of(step, "status"),
        file=text_of(step, "file") or None,
        completed_bytes=_int(step, "completed"),
        total_bytes=_int(step, "total"),
        all_completed_bytes=_int(step, "all_completed"),
        all_total_bytes=_int(step, "all_total"),
        detail=dict(json_object(step.get("detail") or {})),
    )


def load_progress(step: Json) -> LoadProgress:
    """From one line of `/ostinato/load`."""
    return LoadProgress(status=text_of(step, "status"), progress=_float(step, "progress"))


def usage(chunk: Json) -> Usage:
    """From the `usage` object of a chat chunk."""
    cached = json_object(chunk.get("prompt_tokens_details") or {})
    return Usage(_int(chunk, "prompt_tokens"), _int(chunk, "completion_tokens"), _int(cached, "cached_tokens"))


def engine_timings(timings: Json) -> EngineTimings:
    """From the `timings` object that the engine's server adds to a chat chunk."""
    return EngineTimings(
        prompt_n=_int(timings, "prompt_n"),
        prompt_ms=_float(timings, "prompt_ms"),
        predicted_n=_int(timings, "predicted_n"),
        predicted_ms=_float(timings, "predicted_ms"),
        cache_n=_int(timings, "cache_n"),
    )


def moment(value: object) -> datetime | None:
    """The time that an ISO 8601 text names, also one ending in Z or with nanoseconds; None for nothing.

    A text without a zone is taken as UTC.
    """
    if not value:
        return None
    text = re.sub("[Zz]$", "+00:00", str(value))
    text = _FRACTION.sub(lambda match: "." + match[1][:6].ljust(6, "0"), text, count=1)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise unexpected("a time such as 2026-01-31T12:00:00Z", value) from error
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc)


def _gpu_experts(value: object) -> GpuExperts | None:
    if value is None:
        return None
    told = json_object(value)
    refused, hint = (text_of(told, key) or None for key in ("refused", "hint"))
    return GpuExperts(text_of(told, "chosen"), text_of(told, "reason"), refused, hint)


def _int(values: Json, key: str) -> int:
    return int(_float(values, key))


def _float(values: Json, key: str) -> float:
    value = values.get(key) or 0
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise unexpected(f"a number as {key}", value)
    return value
