"""What may and what must change in an OpenAI request before the engine sees it. Pure functions.

A body that needs no change is forwarded byte for byte; unknown fields pass. What agents send and the engine would
refuse is made good in `dialects.chat`. Refused: several answers per request, and images by URL, which the engine would
fetch from wherever the URL points.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ostinatod.api.dialects.chat import normal_chat
from ostinatod.api.limits import check_limits
from ostinatod.api.sampled_calls import SampledCalls
from ostinatod.config import parse_duration_s
from ostinatod.errors import RequestError

_INT_LIMITS: Mapping[str, tuple[int, int]] = {
    "n_keep": (-1, 2**31 - 1),
    "n_discard": (0, 2**31 - 1),
    "n_indent": (0, 1024),
    "n_probs": (0, 100),
    "top_logprobs": (0, 20),
    "min_keep": (0, 1000),
    "top_k": (0, 2**31 - 1),
    "repeat_last_n": (0, 2**20),
    "dry_allowed_length": (0, 2**20),
    "dry_penalty_last_n": (0, 2**20),
    "mirostat": (0, 2),
    "n_cache_reuse": (0, 2**20),
    "sse_ping_interval": (-1, 3600),
    "reasoning_budget_tokens": (-1, 2**31 - 1),
    "t_max_predict_ms": (-1, 2**53),
}
"""The engine's own integers are 32 bits wide, and an out-of-range value has been a memory error there before."""

_OUTPUT_LIMITS = ("max_tokens", "max_completion_tokens", "n_predict")

_INTERNAL = frozenset(
    {
        *("id_slot", "lora", "chat_format", "chat_parser", "parse_tool_calls", "grammar_triggers", "grammar_lazy"),
        *("grammar_type", "preserved_tokens", "message_delimiters", "generation_prompt", "verbose", "response_fields"),
    }
)
"""What the engine's server passes to itself after it has rendered the template; from a client it is dropped."""

_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

_URL_PARTS = ("image_url", "video_url", "audio_url", "input_image")


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A checked request. `fields` is never changed."""

    model: str
    stream: bool
    keep_alive_s: float | None
    fields: Mapping[str, Any]
    raw: bytes | None
    """What the client sent, where `fields` say the same."""


def parse_request(raw: bytes, *, sees_images: bool = False, sampled_calls: SampledCalls | None = None) -> EngineRequest:
    """Read and check a body. Raises RequestError, or ConfigError for a malformed `keep_alive`."""
    raw = whole_text(raw)
    fields = parse_object(raw)
    restored = sampled_calls.restored(fields) if sampled_calls else fields
    return checked_request(restored, raw if restored is fields else None, sees_images=sees_images)


def checked_request(fields: Mapping[str, Any], raw: bytes | None, *, sees_images: bool = False) -> EngineRequest:
    """Check `fields`, which `raw` was read into if it is given. Raises as `parse_request`."""
    check_limits(fields)
    model = model_name(fields)
    for name in ("n", "n_cmpl", "best_of"):
        if fields.get(name) not in (None, 1):
            raise RequestError(f"{name}: only one answer per request is supported, found {fields[name]!r}")
    for url in _urls(fields.get("messages")):
        if not url.startswith("data:"):
            raise RequestError(
                f"images must be sent inline as data: URLs, found {url[:40]!r}",
                hint="The daemon fetches nothing on a client's behalf",
            )
    keep_alive = fields.get("keep_alive")
    normal = normal_chat(fields, sees_images=sees_images) if "messages" in fields else fields
    return EngineRequest(
        model=model,
        stream=fields.get("stream") is True,
        keep_alive_s=None if keep_alive is None else parse_duration_s(keep_alive),
        fields=normal,
        raw=raw if normal is fields else None,
    )


def model_name(fields: Mapping[str, Any]) -> str:
    """The model that is asked for. Raises RequestError."""
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise RequestError("expected the name of a model in 'model'", hint="List them: ostinato list")
    return model


def engine_body(request: EngineRequest, context_tokens: int) -> bytes:
    """The body for an engine with that context; the original bytes where nothing has to change."""
    changes = {
        name: changed
        for name, value in request.fields.items()
        if (changed := _clamped(name, value, context_tokens)) is not value
    }
    if request.raw is not None and not changes and _INTERNAL.isdisjoint(request.fields):
        return request.raw
    kept = {name: value for name, value in {**request.fields, **changes}.items() if name not in _INTERNAL}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()


def _clamped(name: str, value: Any, context_tokens: int) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if name in _OUTPUT_LIMITS:
        # Agents ask for more than any context holds; what is left after the prompt is the engine's to find.
        return value if -1 <= value <= context_tokens else (context_tokens if value > 0 else -1)
    if name in _INT_LIMITS:
        low, high = _INT_LIMITS[name]
        return value if low <= value <= high else (low if value < low else high)
    if name == "seed":
        return value if -1 <= value < 2**32 else int(value) % 2**32
    if name == "logprobs":
        return value if 0 <= value <= 100 else (0 if value < 0 else 100)
    return value


def whole_text(raw: bytes) -> bytes:
    """`raw` with halves of surrogate pairs replaced: agents cut texts anywhere, and the engine refuses what is left."""
    if not _ESCAPED_SURROGATE.search(raw):
        return raw
    try:
        text = json.dumps(json.loads(raw), ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return raw
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace")
    return raw


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`, as `whole_text`. Raises RequestError."""
    try:
        fields = json.loads(whole_text(raw), parse_constant=_refuse_constant)
    except RecursionError as error:
        raise RequestError("the body is nested too deeply") from error
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RequestError(f"expected a JSON object, found {type(fields).__name__}")
    return fields


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _urls(messages: Any) -> Iterator[str]:
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            for name in _URL_PARTS:
                value = part.get(name) if isinstance(part, dict) else None
                url = value.get("url") if isinstance(value, dict) else value
                if isinstance(url, str):
                    yield url
