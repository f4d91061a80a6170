"""The requests of the load test, in every dialect, and what each dialect's answers say. Pure functions.

Every constrained request demands, by JSON schema, an answer that carries a nonce of its own. Whatever the model is, the
right answer is then known to the letter, so that an answer that went to the wrong client is recognised for certain. The
free requests have temperature 0 and a seed; they are compared with the same request made alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

Dialect = Literal["chat", "completions", "responses", "messages", "ollama-chat", "ollama-generate"]
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)

CONSTRAINED_TOKENS = 40
FREE_TOKENS = 8
_NONCE = re.compile(r"\b[0-9a-f]{6}\b")
TOPICS = ("parcels", "lamps", "chairs", "bills", "trains", "shoes", "gardens")


@dataclass(frozen=True, slots=True)
class Case:
    """One request. Cases with the same dialect and prompt have the same answer."""

    dialect: Dialect
    prompt: str
    nonce: str | None
    """None for a free request."""
    stream: bool


def path_of(case: Case) -> str:
    """Where the request goes."""
    return {
        "chat": "/v1/chat/completions",
        "completions": "/v1/completions",
        "responses": "/v1/responses",
        "messages": "/v1/messages",
        "ollama-chat": "/api/chat",
        "ollama-generate": "/api/generate",
    }[case.dialect]


def body_of(case: Case, model: str) -> dict[str, Any]:
    """The request's body."""
    tokens = CONSTRAINED_TOKENS if case.nonce else FREE_TOKENS
    schema = schema_of(case.nonce) if case.nonce else None
    turn = [{"role": "user", "content": case.prompt}]
    common: dict[str, Any] = {"model": model, "stream": case.stream}
    named = {"type": "json_schema", "name": "answer", "schema": schema}
    sampling = {"temperature": 0, "seed": 7}
    if case.dialect == "chat":
        formatted = {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}
        return common | sampling | {"messages": turn, "max_tokens": tokens} | (formatted if schema else {})
    if case.dialect == "completions":
        return (
            common
            | sampling
            | {"prompt": case.prompt, "max_tokens": tokens}
            | ({"json_schema": schema} if schema else {})
        )
    if case.dialect == "responses":
        formatted = {"text": {"format": named}}
        return common | sampling | {"input": case.prompt, "max_output_tokens": tokens} | (formatted if schema else {})
    if case.dialect == "messages":
        formatted = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
        return common | sampling | {"messages": turn, "max_tokens": tokens} | (formatted if schema else {})
    options = {"options": {**sampling, "num_predict": tokens}} | ({"format": schema} if schema else {})
    asked = {"messages": turn} if case.dialect == "ollama-chat" else {"prompt": case.prompt}
    return common | options | asked


def schema_of(nonce: str) -> dict[str, Any]:
    """A JSON schema that admits one answer."""
    return {
        "type": "object",
        "properties": {"nonce": {"const": nonce}},
        "required": ["nonce"],
        "additionalProperties": False,
    }


def nonces_in(text: str) -> set[str]:
    """What looks like a nonce in an answer, complete or cut off by the limit of tokens."""
    return set(_NONCE.findall(text))


def text_of(case: Case, chunks: Sequence[bytes]) -> str:
    """The text of a complete answer. Raises ValueError for one that is not complete, or tells an error."""
    content = b"".join(chunks)
    if not case.stream:
        return _WHOLE[case.dialect](json.loads(content))
    if case.dialect in ("ollama-chat", "ollama-generate"):
        lines = [json.loads(line) for line in content.splitlines()]
        if not lines or not lines[-1].get("done"):
            raise ValueError(f"expected a last line that is done, found {lines[-1:]}")
        return "".join(_WHOLE[case.dialect](line) for line in lines)
    events = list(_events(content))
    complete, piece = _STREAMED[case.dialect]
    if not events or not complete(events[-1]):
        raise ValueError(f"expected a complete stream, found the end {events[-1:]}")
    return "".join(piece(json.loads(data)) for data in events if data != "[DONE]")


def _events(content: bytes) -> Iterator[str]:
    for event in content.split(b"\n\n"):
        for line in event.split(b"\n"):
            if line.startswith(b"data: "):
                yield line.removeprefix(b"data: ").decode()


def _type_of(data: str) -> str:
    return str(json.loads(data).get("type"))


def _delta(chunk: Mapping[str, Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


_Whole = Callable[[Mapping[str, Any]], str]
_WHOLE: Mapping[str, _Whole] = {
    "chat": lambda answer: answer["choices"][0]["message"]["content"] or "",
    "completions": lambda answer: answer["choices"][0]["text"],
    "responses": lambda answer: "".join(
        part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"]
    ),
    "messages": lambda answer: "".join(part["text"] for part in answer["content"] if part["type"] == "text"),
    "ollama-chat": lambda answer: answer["message"]["content"],
    "ollama-generate": lambda answer: answer["response"],
}
_STREAMED: Mapping[str, tuple[Callable[[str], bool], _Whole]] = {
    "chat": (lambda data: data == "[DONE]", _delta),
    "completions": (lambda data: data == "[DONE]", lambda chunk: "".join(c["text"] for c in chunk["choices"])),
    "responses": (
        lambda data: _type_of(data) in ("response.completed", "response.incomplete"),
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
    ),
    "messages": (
        lambda data: _type_of(data) == "message_stop",
        lambda event: event["delta"].get("text", "") if event["type"] == "content_block_delta" else "",
    ),
}
