"""A message as bytes that are equal where the rendered prompt is: what moves between turns and means nothing is out.

Clients move `cache_control` marks, send text now as a string and now as parts, serialise tool arguments anew, and
number tool calls afresh; Claude Code puts a billing line before its system prompt that changes with every request.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_BILLING_LINE = re.compile(r"^x-anthropic-billing-header:[^\n]*\n?", re.MULTILINE)
_MARK = "cache_control"
_UNRENDERED = frozenset({"id", "tool_call_id", "index"})
"""Of a message or a tool call: clients make them up anew."""
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_PROMPT_SETTINGS = ("chat_template", "chat_template_kwargs", "reasoning_effort", "thinking", "enable_thinking")
"""Fields beside messages and tools that chat templates read."""


def canonical_bytes(value: Any) -> bytes:
    """JSON with sorted keys, without the marks."""
    return json.dumps(_without_marks(value), sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", errors="surrogatepass"
    )


def canonical_message(message: Any) -> bytes:
    """One chat message."""
    if not isinstance(message, Mapping):
        return canonical_bytes(message)
    own = _UNRENDERED | {"content", "tool_calls"}
    kept = {key: value for key, value in message.items() if key not in own and value}
    if content := _content(message.get("content")):
        kept["content"] = content
    if calls := message.get("tool_calls"):
        kept["tool_calls"] = [_call(call) for call in calls] if isinstance(calls, list) else calls
    return canonical_bytes(kept)


def canonical_settings(request: Mapping[str, Any]) -> bytes:
    """What else decides how the same messages are rendered."""
    settings = {name: request[name] for name in _PROMPT_SETTINGS if request.get(name) is not None}
    # The engine leaves the tools out of the prompt then.
    settings["no_tools"] = request.get("tool_choice") == "none"
    return canonical_bytes(settings)


def message_text(message: Any) -> str:
    """The text of a message; empty where it has none."""
    content = _content(message.get("content")) if isinstance(message, Mapping) else None
    return content if isinstance(content, str) else ""


def _content(content: Any) -> Any:
    if isinstance(content, str):
        return _BILLING_LINE.sub("", content)
    if isinstance(content, Sequence) and all(_is_text(part) for part in content):
        return _BILLING_LINE.sub("", "\n".join(part["text"] for part in content))
    return content


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str)


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    kept = {key: value for key, value in call.items() if key not in _UNRENDERED}
    return {**kept, "function": {**function, "arguments": arguments}}


def _without_marks(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_marks(item) for key, item in value.items() if key != _MARK}
    if isinstance(value, list):
        return [_without_marks(item) for item in value]
    return value
