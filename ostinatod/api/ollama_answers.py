"""The engine's answers in Ollama's words. Pure: what arrives goes in, what the client is sent comes out.

Every duration is in nanoseconds. `load_duration` is all the time before the engine began to read the prompt: the wait
for the model and for a turn.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal

from ostinatod.api.answer import PassedAnswer
from ostinatod.client_streams import DONE, SseParser
from ostinatod.engine.client import Sampling
from ostinatod.errors import OstinatoError

Shape = Literal["chat", "generate"]

_NS_PER_MS = 1e6


def now() -> str:
    """The present as Ollama writes times."""
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")


def model_line(model: str, shape: Shape, done_reason: str) -> dict[str, Any]:
    """The whole answer of a request that only loads or unloads the model."""
    return {**_base(model), **_said(shape, {}), "done": True, "done_reason": done_reason}


@dataclass
class _Call:
    call_id: str | None = None
    name: str = ""
    arguments: str = ""


class OllamaAnswer:
    """One answer, a line per chunk or whole."""

    content_type = b"application/x-ndjson"

    def __init__(self, model: str, shape: Shape) -> None:
        self._parser = SseParser()
        self._model = model
        self._shape: Shape = shape
        self._started_s = time.monotonic()
        self._calls: dict[int, _Call] = {}
        self._finish_reason: str | None = None
        self._usage: Mapping[str, Any] = {}
        self._timings: Mapping[str, Any] = {}

    def sampled_with(self, sampling: Sampling) -> None:
        """Told nowhere in these words."""

    def keepalive(self) -> bytes:
        """A line that adds nothing to the answer: there are no comments between lines of JSON."""
        return _line(self._said({}, done=False))

    def events(self, events: bytes) -> bytes:
        """The lines for some of the engine's events."""
        return b"".join(self._chunk(json.loads(data)) for data in self._parser.feed(events) if data != DONE)

    def _chunk(self, chunk: Mapping[str, Any]) -> bytes:
        """A line for what a chunk says; nothing for pieces of tool calls, which are told at the end."""
        self._usage = chunk.get("usage") or self._usage
        self._timings = chunk.get("timings") or self._timings
        lines = b""
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {"content": choice.get("text")}
            self._collect(delta.get("tool_calls") or ())
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            said = {"content": delta.get("content"), "thinking": delta.get("reasoning_content")}
            logprobs = _logprobs(choice)
            if any(said.values()) or logprobs:
                lines += _line({**self._said(said, done=False), **logprobs})
        return lines

    def error(self, error: OstinatoError) -> bytes:
        """The line that Ollama's clients raise."""
        return _line({"error": error.message})

    def end(self) -> bytes:
        """The tool calls, whole, and the line with the figures."""
        calls = self._said({"tool_calls": self._ollama_calls()}, done=False) if self._calls else None
        return (_line(calls) if calls else b"") + _line({**self._said({}, done=True), **self._final()})

    def whole(self, content: bytes) -> bytes:
        """The one object for an answer that was not streamed."""
        answer = json.loads(content)
        choice = (answer.get("choices") or [{}])[0]
        message = choice.get("message") or {"content": choice.get("text")}
        self._usage, self._timings = answer.get("usage") or {}, answer.get("timings") or {}
        self._finish_reason = choice.get("finish_reason")
        self._collect(message.get("tool_calls") or ())
        said = {
            "content": message.get("content"),
            "thinking": message.get("reasoning_content"),
            "tool_calls": self._ollama_calls(),
        }
        return _line({**self._said(said, done=True), **self._final(), **_logprobs(choice)})

    def _said(self, said: Mapping[str, Any], *, done: bool) -> dict[str, Any]:
        return {**_base(self._model), **_said(self._shape, said), "done": done}

    def _ollama_calls(self) -> list[dict[str, Any]]:
        return [_ollama_call(index, call) for index, call in sorted(self._calls.items())]

    def _collect(self, deltas: Any) -> None:
        for number, delta in enumerate(deltas):
            call = self._calls.setdefault(delta.get("index", number), _Call())
            function = delta.get("function") or {}
            call.call_id = delta.get("id") or call.call_id
            call.name += function.get("name") or ""
            call.arguments += function.get("arguments") or ""

    def _final(self) -> dict[str, Any]:
        total_ns = int((time.monotonic() - self._started_s) * 1e9)
        prompt_ns = int(float(self._timings.get("prompt_ms") or 0) * _NS_PER_MS)
        eval_ns = int(float(self._timings.get("predicted_ms") or 0) * _NS_PER_MS)
        details = self._usage.get("prompt_tokens_details") or {}
        return {
            "done_reason": "length" if self._finish_reason == "length" else "stop",
            "total_duration": total_ns,
            "load_duration": max(0, total_ns - prompt_ns - eval_ns),
            "prompt_eval_count": self._usage.get("prompt_tokens", 0),
            "prompt_eval_duration": prompt_ns,
            "eval_count": self._usage.get("completion_tokens", 0),
            "eval_duration": eval_ns,
            "reused_tokens": details.get("cached_tokens", 0),
        }


class VectorsAnswer(PassedAnswer):
    """Embeddings as `/api/embed` tells them, or the only one of them as `/api/embeddings` does."""

    def __init__(self, model: str, *, dimensions: int | None = None, single: bool = False) -> None:
        self._model = model
        self._dimensions = dimensions
        self._single = single
        self._started_s = time.monotonic()

    def whole(self, content: bytes) -> bytes:
        """The vectors, in the order of their inputs."""
        answer = json.loads(content)
        vectors = embeddings_of(answer, self._dimensions)
        if self._single:
            return _line({"embedding": vectors[0]})
        return _line(
            {
                "model": self._model,
                "embeddings": vectors,
                "total_duration": int((time.monotonic() - self._started_s) * 1e9),
                "load_duration": 0,
                "prompt_eval_count": (answer.get("usage") or {}).get("prompt_tokens", 0),
            }
        )


def embeddings_of(answer: Mapping[str, Any], dimensions: int | None) -> list[list[float]]:
    """The vectors in the order of their inputs; cut to `dimensions` and normalised again where that is asked for."""
    vectors = [item["embedding"] for item in sorted(answer.get("data") or (), key=lambda item: item["index"])]
    return [_shortened(vector, dimensions) for vector in vectors] if dimensions else vectors


def _shortened(vector: list[float], dimensions: int) -> list[float]:
    kept = vector[:dimensions]
    length = sum(value * value for value in kept) ** 0.5
    return [value / length for value in kept] if length else kept


def _base(model: str) -> dict[str, Any]:
    return {"model": model, "created_at": now()}


def _said(shape: Shape, said: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a line that carries the answer; thinking and calls only where there are any."""
    thinking = {"thinking": said["thinking"]} if said.get("thinking") else {}
    if shape == "generate":
        return {"response": said.get("content") or "", **thinking}
    calls = {"tool_calls": said["tool_calls"]} if said.get("tool_calls") else {}
    return {"message": {"role": "assistant", "content": said.get("content") or "", **thinking, **calls}}


def _ollama_call(index: int, call: _Call) -> dict[str, Any]:
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        # Ollama's clients take only an object; what the model wrote is not lost.
        arguments = {"arguments": call.arguments}
    named = {"id": call.call_id} if call.call_id else {}
    return {**named, "function": {"index": index, "name": call.name, "arguments": arguments}}


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def _logprobs(choice: Mapping[str, Any]) -> dict[str, Any]:
    content = (choice.get("logprobs") or {}).get("content")
    return {"logprobs": content} if content else {}
