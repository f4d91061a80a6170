"""Recorded conversations, sent turn by turn through the daemon's OpenAI port as an agent sends them."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

import ostinatod.bench

TEXT_LETTERS = 600
"""Of each message; a recorded one may be longer than a small model's context."""
ANSWER_TOKENS = 16

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one streamed request."""

    status: int
    text: str
    error: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    ttft_ms: float | None
    total_ms: float

    def as_json(self) -> dict[str, Any]:
        """The fields, by name."""
        return asdict(self)


def recorded_conversations(count: int) -> list[tuple[Message, ...]]:
    """The messages of `count` bundled sessions of different domains, each a text of its own role, cut to a length.

    Each begins with words of its own: sessions with one beginning would go on from each other's prompts.
    """
    found: dict[str, list[tuple[Message, ...]]] = {}
    with gzip.open(Path(ostinatod.bench.__file__).with_name("sample.jsonl.gz"), "rt", encoding="utf-8") as lines:
        for line in lines:
            session = json.loads(line)
            found.setdefault(session["task_domain"], []).append(tuple(_plain(session["messages"])))
    interleaved = [kind[at] for at in range(count) for kind in found.values() if at < len(kind)]
    return [
        ({**first, "content": f"This is workspace {at}. {first['content']}"}, *rest)
        for at, (first, *rest) in enumerate(interleaved[:count])
    ]


def prompts(messages: tuple[Message, ...]) -> Iterator[list[Message]]:
    """What an agent sends at each turn: everything up to, and without, the next recorded answer."""
    for at, message in enumerate(messages):
        if message["role"] == "assistant" and any(item["role"] == "user" for item in messages[:at]):
            yield list(messages[:at])


def ask(
    http: httpx.Client,
    model: str,
    messages: list[Message],
    session: str,
    *,
    tokens: int = ANSWER_TOKENS,
    seen: Callable[[int], None] = lambda _: None,
) -> Answer:
    """One streamed chat request; `seen` is told how many events have come, after each."""
    body = {
        "model": model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    begun, first_at, text, error, events = time.perf_counter(), None, "", None, 0
    usage: Mapping[str, Any] = {}
    with http.stream("POST", "/v1/chat/completions", json=body, headers={"X-Session-Id": session}) as response:
        if response.status_code != httpx.codes.OK:
            error = response.read().decode(errors="replace")
        for line in response.iter_lines() if error is None else ():
            data = line.removeprefix("data: ")
            if not data.startswith("{"):
                continue
            event, events = json.loads(data), events + 1
            first_at = first_at or time.perf_counter()
            if "error" in event:
                error = str(event["error"]["message"])
            usage = event.get("usage") or usage
            text += "".join(choice["delta"].get("content") or "" for choice in event.get("choices") or ())
            seen(events)
    return Answer(
        status=response.status_code,
        text=text,
        error=error,
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        output_tokens=usage.get("completion_tokens"),
        ttft_ms=None if first_at is None else round((first_at - begun) * 1000, 2),
        total_ms=round((time.perf_counter() - begun) * 1000, 2),
    )


def _plain(messages: list[dict[str, Any]]) -> Iterator[Message]:
    """Tool outputs as the user's words: a template need not know tools."""
    for message in messages:
        content = message.get("content")
        text = content if isinstance(content, str) and content else json.dumps(message.get("tool_calls") or content)
        yield {"role": "user" if message["role"] == "tool" else message["role"], "content": text[:TEXT_LETTERS]}
