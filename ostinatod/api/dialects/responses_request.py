"""A request to OpenAI's Responses API, in the words of a chat completion. Pure functions.

Stateless: every request brings its whole conversation, as Codex does. Items that only a provider's own tools produce
are left out of it.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ostinatod.api.dialects.messages import normal_arguments
from ostinatod.api.dialects.responses_tools import ToolNames, response_tools
from ostinatod.errors import RequestError

_PASSED = (
    *("model", "stream", "temperature", "top_p", "parallel_tool_calls", "metadata", "prompt_cache_key", "user"),
    *("keep_alive", "seed", "stop", "chat_template_kwargs", "client_metadata", "session_id"),
)
_STATEFUL = ("previous_response_id", "conversation", "prompt")
_CALLS = ("function_call", "custom_tool_call", "local_shell_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
_SEALED = "ostinato:"


def chat_fields(fields: Mapping[str, Any]) -> tuple[dict[str, Any], ToolNames]:
    """The body of a chat completion, and what its tools are called in the client's words.

    Raises RequestError for what needs answers that were stored, and for input that cannot be understood.
    """
    _refuse_stored(fields)
    tools, names = response_tools(fields.get("tools"))
    chat: dict[str, Any] = {name: fields[name] for name in _PASSED if fields.get(name) is not None}
    chat["messages"] = [*_instructions(fields.get("instructions")), *_messages(fields.get("input"), names)]
    if tools:
        chat["tools"] = tools
        if fields.get("tool_choice") is not None:
            chat["tool_choice"] = names.choice(fields["tool_choice"])
    if fields.get("max_output_tokens") is not None:
        chat["max_tokens"] = fields["max_output_tokens"]
    reasoning = fields.get("reasoning")
    if isinstance(reasoning, dict) and reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    return chat | _format(fields.get("text")), names


def seal(text: str) -> str:
    """Reasoning as the opaque `encrypted_content` that clients return; it is not secret, it is already theirs."""
    return base64.b64encode(f"{_SEALED}{text}".encode()).decode()


def _refuse_stored(fields: Mapping[str, Any]) -> None:
    for name in _STATEFUL:
        if fields.get(name) is not None:
            raise RequestError(
                f"{name}: answers are not stored here", hint="Send the whole conversation as 'input', with store: false"
            )
    if fields.get("background") is True:
        raise RequestError("background: answers are given on the same connection", hint="Use stream: true")


def _instructions(instructions: Any) -> Iterator[dict[str, Any]]:
    if isinstance(instructions, str) and instructions:
        yield {"role": "system", "content": instructions}


def _messages(items: Any, names: ToolNames) -> list[dict[str, Any]]:
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if not isinstance(items, list):
        raise RequestError("input: expected text or a list of items")
    messages: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            raise RequestError(f"input[{number}]: expected an object, found {type(item).__name__}")
        kind = item.get("type", "message")
        if kind == "item_reference":
            raise RequestError(f"input[{number}]: answers are not stored here", hint="Send the item instead of its id")
        if kind == "message":
            _add_message(messages, item, number)
        elif kind == "reasoning":
            _add_reasoning(messages, item)
        elif kind in _CALLS:
            _assistant(messages).setdefault("tool_calls", []).append(_call(item, names, number))
        elif kind in _OUTPUTS:
            messages.append(_output(item))
    return messages


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's message in progress: a turn's reasoning, text and calls are items of their own."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _add_message(messages: list[dict[str, Any]], item: Mapping[str, Any], number: int) -> None:
    role = item.get("role")
    if not isinstance(role, str):
        raise RequestError(f"input[{number}]: expected a message with a role")
    if role != "assistant":
        messages.append({"role": role, "content": _compact(item.get("content"))})
        return
    text = _plain(item.get("content"))
    told = _assistant(messages)
    if told.get("tool_calls"):
        # Text after calls begins the next message: a template writes text first.
        messages.append({"role": "assistant", "content": text})
    else:
        told["content"] = told["content"] + text


def _add_reasoning(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    text = _plain(item.get("content")) or _unsealed(item.get("encrypted_content")) or _plain(item.get("summary"))
    if not text:
        return
    if messages and messages[-1]["role"] == "assistant" and messages[-1].get("tool_calls"):
        messages.append({"role": "assistant", "content": ""})
    told = _assistant(messages)
    told["reasoning_content"] = told.get("reasoning_content", "") + text


def _unsealed(content: Any) -> str:
    try:
        text = base64.b64decode(content, validate=True).decode() if isinstance(content, str) else ""
    except (binascii.Error, ValueError):
        return ""
    return text.removeprefix(_SEALED) if text.startswith(_SEALED) else ""


def _call(item: Mapping[str, Any], names: ToolNames, number: int) -> dict[str, Any]:
    kind = item["type"]
    if kind == "local_shell_call":
        name, arguments = "local_shell", json.dumps(item.get("action") or {}, ensure_ascii=False)
    elif not isinstance(item.get("name"), str):
        raise RequestError(f"input[{number}]: expected a call with a name")
    elif kind == "custom_tool_call":
        name, arguments = item["name"], json.dumps({"input": item.get("input", "")}, ensure_ascii=False)
    else:
        name, arguments = item["name"], normal_arguments(item.get("arguments"))
    function = {"name": names.inner(name, item.get("namespace")), "arguments": arguments}
    return {"id": str(item.get("call_id") or item.get("id") or ""), "type": "function", "function": function}


def _output(item: Mapping[str, Any]) -> dict[str, Any]:
    output = item.get("output")
    content = json.dumps(output, ensure_ascii=False) if isinstance(output, dict) else _compact(output)
    return {"role": "tool", "tool_call_id": str(item.get("call_id") or item.get("id") or ""), "content": content}


def _compact(content: Any) -> Any:
    """Text alone as a string: templates differ in how they join parts."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    parts = [part for part in content if isinstance(part, dict)]
    if all(isinstance(part.get("text"), str) for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _plain(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    texts = [part.get("text", part.get("refusal")) for part in parts]
    return "".join(text for text in texts if isinstance(text, str))


def _format(text: Any) -> dict[str, Any]:
    wanted = text.get("format") if isinstance(text, dict) else None
    if not isinstance(wanted, dict) or wanted.get("type") not in ("json_schema", "json_object"):
        return {}
    if wanted["type"] == "json_object":
        return {"response_format": {"type": "json_object"}}
    schema = {"name": wanted.get("name", "answer"), "schema": wanted.get("schema", {})}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
