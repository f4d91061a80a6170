"""What dialects share that are not chat completions: the reading of its chunks, and the order in which parts begin.

Subclasses say each part in their own words. At most one part is open at a time: a dialect's grammar allows no other
order, and clients lose parts that begin before the last one has ended.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ostinatod.api.answer import EVENT_STREAM
from ostinatod.client_streams import DONE, SseParser
from ostinatod.engine.client import Sampling
from ostinatod.errors import OstinatoError

PartKind = Literal["reasoning", "text", "call"]
FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, as the engine counted them."""

    prompt_tokens: int = 0
    """The whole prompt, reused part included."""
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(slots=True)
class Part:
    """One piece of the answer."""

    kind: PartKind
    text: str = ""
    """Of a call: its arguments."""
    call_id: str = ""
    name: str = ""


class TranslatedAnswer(ABC):
    """See the module."""

    content_type = EVENT_STREAM

    def __init__(self, repeated: str = "") -> None:
        """`repeated` is the text that the answer continues; the engine says it once more, and it is left out."""
        self._parser = SseParser()
        self._repeated = repeated
        self._has_begun = False
        self._open: Part | None = None
        self._call_index: int | None = None
        self.parts: list[Part] = []
        self.usage = Usage()
        self.finish_reason: FinishReason = "stop"
        self.sampling = Sampling()
        """What the engine samples with by default, as soon as it is known."""

    # -- what a dialect says --------------------------------------------------------------------------------------

    @abstractmethod
    def begin(self) -> bytes:
        """The events before the first part. `usage` has the prompt's figures if the engine told them by then."""

    @abstractmethod
    def open_part(self, part: Part, index: int) -> bytes:
        """The events that begin a part."""

    @abstractmethod
    def more(self, part: Part, index: int, text: str) -> bytes:
        """The events for more of the open part's text."""

    @abstractmethod
    def close_part(self, part: Part, index: int) -> bytes:
        """The events that end a part; it holds its whole text."""

    @abstractmethod
    def finish(self) -> bytes:
        """The events after the last part. `usage` and `finish_reason` are the engine's."""

    @abstractmethod
    def alive(self) -> bytes:
        """An event that adds nothing to an answer that may not have begun."""

    @abstractmethod
    def failure(self, error: OstinatoError) -> bytes:
        """The events that end a stream that failed."""

    @abstractmethod
    def body(self) -> Mapping[str, Any]:
        """The answer that is not streamed, out of `parts`, `usage` and `finish_reason`."""

    # -- `Answer` -------------------------------------------------------------------------------------------------

    def sampled_with(self, sampling: Sampling) -> None:
        """For dialects whose answers tell it."""
        self.sampling = sampling

    def events(self, events: bytes) -> bytes:
        """The same in the client's words."""
        chunks = (json.loads(data) for data in self._parser.feed(events) if data != DONE)
        return b"".join(piece for chunk in chunks for piece in self._chunk(chunk))

    def keepalive(self) -> bytes:
        """Something to keep the client waiting."""
        return self.alive()

    def error(self, error: OstinatoError) -> bytes:
        """The end of a stream that failed."""
        return self.failure(error)

    def end(self) -> bytes:
        """The end of a stream."""
        return b"".join([self.began(), self._close(), self.finish()])

    def whole(self, content: bytes) -> bytes:
        """The answer that is not streamed."""
        answer = json.loads(content)
        self._read_figures(answer)
        for choice in answer.get("choices") or ():
            message = choice.get("message") or {}
            message = {**message, "content": self._unrepeated(message.get("content") or "")}
            for kind, name in (("reasoning", "reasoning_content"), ("text", "content")):
                if message.get(name):
                    self.parts.append(Part("reasoning" if kind == "reasoning" else "text", message[name]))
            for call in message.get("tool_calls") or ():
                function = call["function"]
                self.parts.append(Part("call", function["arguments"], call.get("id") or "", function["name"]))
        return json.dumps(self.body(), ensure_ascii=False).encode()

    # -- reading --------------------------------------------------------------------------------------------------

    def began(self) -> bytes:
        """What `begin` says, the first time."""
        if self._has_begun:
            return b""
        self._has_begun = True
        return self.begin()

    def _chunk(self, chunk: Mapping[str, Any]) -> Iterator[bytes]:
        self._read_figures(chunk)
        yield self.began()
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if text := delta.get("reasoning_content"):
                yield from self._say("reasoning", text)
            if text := self._unrepeated(delta.get("content") or ""):
                yield from self._say("text", text)
            for call in delta.get("tool_calls") or ():
                yield from self._say_call(call)

    def _unrepeated(self, text: str) -> str:
        repeated, self._repeated = self._repeated, ""
        if repeated.startswith(text):
            self._repeated = repeated[len(text) :]
            return ""
        return text.removeprefix(repeated)

    def _say(self, kind: PartKind, text: str) -> Iterator[bytes]:
        if self._open is None or self._open.kind != kind:
            yield self._begin_part(Part(kind))
        yield self._more(text)

    def _say_call(self, call: Mapping[str, Any]) -> Iterator[bytes]:
        function = call.get("function") or {}
        if self._open is None or self._open.kind != "call" or call.get("index", 0) != self._call_index:
            self._call_index = call.get("index", 0)
            yield self._begin_part(Part("call", "", call.get("id") or "", function.get("name") or ""))
        if text := function.get("arguments"):
            yield self._more(text)

    def _begin_part(self, part: Part) -> bytes:
        closed = self._close()
        self.parts.append(part)
        self._open = part
        return closed + self.open_part(part, len(self.parts) - 1)

    def _more(self, text: str) -> bytes:
        assert self._open is not None
        self._open.text += text
        return self.more(self._open, len(self.parts) - 1, text)

    def _close(self) -> bytes:
        part, self._open = self._open, None
        return b"" if part is None else self.close_part(part, len(self.parts) - 1)

    def _read_figures(self, told: Mapping[str, Any]) -> None:
        if progress := told.get("prompt_progress"):
            self.usage = Usage(progress["total"], progress["cache"], self.usage.output_tokens)
        if usage := told.get("usage"):
            details = usage.get("prompt_tokens_details") or {}
            self.usage = Usage(usage["prompt_tokens"], details.get("cached_tokens", 0), usage["completion_tokens"])
        for choice in told.get("choices") or ():
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
