"""A whole chat completion, put together from the chunks of a streamed one."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from ostinatod.client_streams import DONE, SseParser


class AssembledChat:
    """What has been read so far is a whole answer at any time."""

    def __init__(self, model: str) -> None:
        self._parser = SseParser()
        self._told: dict[str, Any] = {"id": "chatcmpl-assembled", "created": int(time.time()), "model": model}
        self._message: dict[str, Any] = {"role": "assistant", "content": ""}
        self._calls: dict[int, dict[str, Any]] = {}
        self._logprobs: list[Any] = []
        self._finish_reason = "stop"

    def events(self, events: bytes) -> None:
        """Whole server-sent events of the engine, none of them an error."""
        for data in self._parser.feed(events):
            if data != DONE:
                self._chunk(json.loads(data))

    def content(self) -> bytes:
        """The body of the answer."""
        message = dict(self._message)
        if self._calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        logprobs = {"content": self._logprobs} if self._logprobs else None
        choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": self._finish_reason}
        return json.dumps({**self._told, "object": "chat.completion", "choices": [choice]}).encode()

    def _chunk(self, chunk: Mapping[str, Any]) -> None:
        self._told |= {name: value for name, value in chunk.items() if name not in ("choices", "object")}
        for choice in chunk.get("choices") or ():
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            self._logprobs += (choice.get("logprobs") or {}).get("content") or []
            delta = choice.get("delta") or {}
            for name in ("content", "reasoning_content"):
                if text := delta.get(name):
                    self._message[name] = self._message.get(name, "") + text
            for piece in delta.get("tool_calls") or ():
                self._add_call(piece)

    def _add_call(self, piece: Mapping[str, Any]) -> None:
        empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = self._calls.setdefault(piece.get("index", 0), empty)
        call["id"] = piece.get("id") or call["id"]
        for name, text in (piece.get("function") or {}).items():
            call["function"][name] = call["function"].get(name, "") + (text or "")
