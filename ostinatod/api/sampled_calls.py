"""The exact text of the calls that models have made, so that a later turn's prompt repeats what was sampled.

Clients parse a call's arguments and serialise them anew in the next turn, and some leave out the reasoning before it. A
template that writes the arguments' text, or reasoning, then renders another prompt than the one whose state the engine
keeps, and the conversation is read again from there. The id of a call finds what was sampled. It is put back only where
the client's arguments mean the same: a history that was edited stays as it is.

Held in memory only, and bounded.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ostinatod.client_streams import DONE, SseParser

MAX_CALLS = 4096
MAX_CHARS = 16 * 1024**2

_MARKS = (b'"tool_calls"', b'"reasoning_content"')


@dataclass(frozen=True, slots=True)
class SampledCall:
    """A call as the model wrote it."""

    arguments: str
    reasoning: str
    """Before the call, in the same message; empty where there was none."""


class SampledCalls:
    """The calls of late, over all models."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, SampledCall] = OrderedDict()
        self._chars = 0

    def remember(self, call_id: str, call: SampledCall) -> None:
        """Keep a call; the oldest ones make room."""
        self._forget(call_id)
        self._calls[call_id] = call
        self._chars += _chars(call)
        while len(self._calls) > MAX_CALLS or self._chars > MAX_CHARS:
            self._forget(next(iter(self._calls)))

    def restored(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """A chat completion's request with its calls as they were sampled; `fields` itself where nothing changes."""
        messages = fields.get("messages")
        if not self._calls or not isinstance(messages, list):
            return fields
        restored = [self._message(message) for message in messages]
        return fields if restored == messages else {**fields, "messages": restored}

    def _message(self, message: Any) -> Any:
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        if not isinstance(calls, list) or not calls:
            return message
        reasoning = "".join(known.reasoning for known in map(self._known, calls[:1]) if known)
        has_own = any(message.get(name) for name in ("reasoning_content", "reasoning"))
        restored = {"reasoning_content": reasoning} if reasoning and not has_own else {}
        return {**message, **restored, "tool_calls": [self._call(call) for call in calls]}

    def _call(self, call: Any) -> Any:
        known = self._known(call)
        if known is None or not _means_the_same(call["function"].get("arguments"), known.arguments):
            return call
        return {**call, "function": {**call["function"], "arguments": known.arguments}}

    def _known(self, call: Any) -> SampledCall | None:
        if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
            return None
        call_id = call.get("id")
        if not isinstance(call_id, str) or call_id not in self._calls:
            return None
        self._calls.move_to_end(call_id)
        return self._calls[call_id]

    def _forget(self, call_id: str) -> None:
        if (call := self._calls.pop(call_id, None)) is not None:
            self._chars -= _chars(call)


class CallsReader:
    """Reads the calls of one answer from what passes by; `into` remembers them."""

    def __init__(self, into: SampledCalls) -> None:
        self._into = into
        self._reasoning = ""
        self._calls: dict[int, tuple[str, str]] = {}

    def events(self, events: bytes) -> None:
        """Whole server-sent events of a streamed answer."""
        if any(mark in events for mark in _MARKS):
            for data in SseParser().feed(events):
                if data != DONE:
                    self._read(json.loads(data), "delta")

    def whole(self, content: bytes) -> None:
        """An answer that is not streamed."""
        if any(mark in content for mark in _MARKS):
            self._read(json.loads(content), "message")

    def end(self) -> None:
        """The answer was complete."""
        for call_id, arguments in self._calls.values():
            if call_id:
                self._into.remember(call_id, SampledCall(arguments, self._reasoning))

    def _read(self, told: Mapping[str, Any], where: str) -> None:
        for said in _said(told, where):
            self._reasoning += said.get("reasoning_content") or ""
            for number, call in enumerate(said.get("tool_calls") or ()):
                index = call.get("index", number)
                call_id, arguments = self._calls.get(index, ("", ""))
                added = (call.get("function") or {}).get("arguments") or ""
                self._calls[index] = (call.get("id") or call_id, arguments + added)


def _said(told: Mapping[str, Any], where: str) -> Iterator[Mapping[str, Any]]:
    for choice in told.get("choices") or ():
        if isinstance(choice.get(where), dict):
            yield choice[where]


def _means_the_same(given: Any, sampled: str) -> bool:
    if given == sampled:
        return True
    try:
        read = json.loads(given) if isinstance(given, str) else given
        return bool(read == json.loads(sampled))
    except (ValueError, RecursionError):
        return False


def _chars(call: SampledCall) -> int:
    return len(call.arguments) + len(call.reasoning)
