"""An answer in Anthropic's words."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from ostinatod.api.answer import sse_event
from ostinatod.api.errors import anthropic_body
from ostinatod.api.translated_answer import Part, TranslatedAnswer
from ostinatod.errors import OstinatoError

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_BLOCKS = {"reasoning": "thinking", "text": "text", "call": "tool_use"}

_UNUSED_USAGE = dict.fromkeys(
    ("cache_creation", "inference_geo", "output_tokens_details", "server_tool_use", "service_tier")
)
_UNUSED_MESSAGE = dict.fromkeys(("container", "context_management", "stop_details"))
"""What the API's schema requires and only a provider can tell."""

_CALLER = {"type": "direct"}
"""The model itself calls a tool, not a program that it wrote."""

SIGNATURE = "unsigned"
"""Clients send thinking back with its signature, and some of them drop what has an empty one; nothing is verified."""


class AnthropicAnswer(TranslatedAnswer):
    """A message."""

    def __init__(self, model: str, continued: str = "") -> None:
        """`continued` is the beginning of the answer that the client gave in the last message."""
        super().__init__(continued)
        self._model = model
        self._id = f"msg_{uuid.uuid4().hex}"

    def begin(self) -> bytes:
        """The message without its content."""
        message = {**self._message(), "content": [], "stop_reason": None, "stop_sequence": None}
        return _event("message_start", message={**message, "usage": self._usage()})

    def open_part(self, part: Part, index: int) -> bytes:
        """An empty block."""
        empty: dict[str, Any] = {"type": _BLOCKS[part.kind]}
        if part.kind == "reasoning":
            empty |= {"thinking": "", "signature": ""}
        elif part.kind == "text":
            empty |= {"text": ""}
        else:
            empty |= {"id": part.call_id, "name": part.name, "input": {}, "caller": _CALLER}
        return _event("content_block_start", index=index, content_block=empty)

    def more(self, part: Part, index: int, text: str) -> bytes:
        """A delta of the open block."""
        if part.kind == "reasoning":
            delta = {"type": "thinking_delta", "thinking": text}
        elif part.kind == "text":
            delta = {"type": "text_delta", "text": text}
        else:
            delta = {"type": "input_json_delta", "partial_json": text}
        return _event("content_block_delta", index=index, delta=delta)

    def close_part(self, part: Part, index: int) -> bytes:
        """The block's end; before it the signature of thinking."""
        signed = b""
        if part.kind == "reasoning":
            delta = {"type": "signature_delta", "signature": SIGNATURE}
            signed = _event("content_block_delta", index=index, delta=delta)
        return signed + _event("content_block_stop", index=index)

    def finish(self) -> bytes:
        """Why it ended, and the figures, which are known only now."""
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": None}
        return _event("message_delta", delta=delta, usage=self._usage()) + _event("message_stop")

    def alive(self) -> bytes:
        """Anthropic's own keep-alive."""
        return _event("ping")

    def failure(self, error: OstinatoError) -> bytes:
        """The event that Anthropic's clients raise."""
        return sse_event("error", anthropic_body(error))

    def body(self) -> Mapping[str, Any]:
        """The whole message."""
        content = [_block(part) for part in self.parts]
        ended = {"stop_reason": self._stop_reason(), "stop_sequence": None}
        return {**self._message(), "content": content, **ended, "usage": self._usage()}

    def _message(self) -> dict[str, Any]:
        return {**_UNUSED_MESSAGE, "id": self._id, "type": "message", "role": "assistant", "model": self._model}

    def _stop_reason(self) -> str:
        has_calls = any(part.kind == "call" for part in self.parts)
        return _STOP_REASONS["tool_calls" if has_calls and self.finish_reason == "stop" else self.finish_reason]

    def _usage(self) -> dict[str, Any]:
        usage = self.usage
        return {
            **_UNUSED_USAGE,
            "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.output_tokens,
        }


def _block(part: Part) -> dict[str, Any]:
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": part.text, "signature": SIGNATURE}
    if part.kind == "text":
        return {"type": "text", "text": part.text, "citations": None}
    try:
        arguments = json.loads(part.text or "{}")
    except ValueError:
        arguments = None
    # An answer that was cut off ends inside its arguments; clients take an object only.
    told = arguments if isinstance(arguments, dict) else {"invalid_arguments": part.text}
    return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": told, "caller": _CALLER}


def _event(name: str, /, **data: Any) -> bytes:
    return sse_event(name, {"type": name, **data})
