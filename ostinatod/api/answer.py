"""What the relay sends to a client, made from what the engine answers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Protocol

from ostinatod.api.errors import EngineRefused, from_engine, sse_error
from ostinatod.client_streams import DONE, SseParser
from ostinatod.engine.client import Sampling
from ostinatod.errors import OstinatoError

EVENT_STREAM = b"text/event-stream; charset=utf-8"
KEEPALIVE = b": keepalive\n\n"

_ERROR_EVENT = b'data: {"error":'


class Answer(Protocol):
    """One answer in a client's dialect; it may keep state.

    `events` is given whole server-sent events of the engine, none of them an error, `whole` an answer that is not
    streamed; `sampled_with` is told before both.
    """

    @property
    def content_type(self) -> bytes: ...
    def sampled_with(self, sampling: Sampling) -> None: ...
    def events(self, events: bytes) -> bytes: ...
    def keepalive(self) -> bytes: ...
    def error(self, error: OstinatoError) -> bytes: ...
    def end(self) -> bytes: ...
    def whole(self, content: bytes) -> bytes: ...


class PassedAnswer:
    """The engine's own words."""

    content_type = EVENT_STREAM

    def sampled_with(self, sampling: Sampling) -> None:
        """Told nowhere in these words."""

    def events(self, events: bytes) -> bytes:
        """Unchanged."""
        return events

    def keepalive(self) -> bytes:
        """A comment, which every client skips."""
        return KEEPALIVE

    def error(self, error: OstinatoError) -> bytes:
        """An event that OpenAI's clients raise."""
        return sse_error(error)

    def end(self) -> bytes:
        """The engine has said it."""
        return b""

    def whole(self, content: bytes) -> bytes:
        """Unchanged."""
        return content


class ChatAnswer(PassedAnswer):
    """The engine's own words, and what OpenAI's schema requires of a chat completion beside them."""

    def whole(self, content: bytes) -> bytes:
        """With `logprobs`, `refusal` and `annotations` in every choice, empty where the engine leaves them out."""
        answer = json.loads(content)
        for choice in answer.get("choices", []):
            choice.setdefault("logprobs", None)
            if isinstance(message := choice.get("message"), dict):
                message.setdefault("refusal", None)
                message.setdefault("annotations", [])
        return json.dumps(answer).encode()


def has_output(events: bytes) -> bool:
    """Whether one of these whole events is more than the engine's progress with the prompt."""
    return any(b'"prompt_progress"' not in event for event in events.split(b"\n\n") if event)


def split_error(events: bytes, *, param: str) -> tuple[bytes, EngineRefused | None]:
    """The events before the one in which the engine tells an error, and the error if there is one."""
    start = 0 if events.startswith(_ERROR_EVENT) else events.find(b"\n\n" + _ERROR_EVENT) + 2
    if start == 1:
        return events, None
    data = next(SseParser().feed(events[start:] + b"\n\n"))
    error = json.loads(data)["error"]
    code = error.get("code") if isinstance(error, dict) else None
    return events[:start], from_engine(code if isinstance(code, int) else 500, data.encode(), param=param)


def is_unreadable_output(error: EngineRefused) -> bool:
    """Whether the engine read what the model wrote otherwise than a moment before, which it cannot say in a stream."""
    return error.message.startswith("Invalid diff: ")


def ending_events(model: str) -> bytes:
    """The end of a chat completion, for one that the engine did not end."""
    choice = {"index": 0, "delta": {}, "finish_reason": "stop"}
    chunk = {"id": "chatcmpl-ended", "object": "chat.completion.chunk", "created": int(time.time()), "model": model}
    return f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\ndata: {DONE}\n\n".encode()


def sse_event(name: str, data: Mapping[str, Any]) -> bytes:
    """A named server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
