"""A request in Anthropic's words, in those of a chat completion. Pure functions.

What Claude Code changes between turns and means nothing is left out, because the prompt would be read again from there:
the billing line before its system prompt, and the `cache_control` marks that move with the conversation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ostinatod.api.dialects.messages import IMAGE_NOTE
from ostinatod.api.dialects.tools import function_tool
from ostinatod.errors import RequestError

_BILLING = re.compile(r"\Ax-anthropic-billing-header:[ \t]*(?:[\w-]+=[^;\n]*(?:;[ \t]*|\n|\Z))*\n*")
_PASSED = (
    *("model", "stream", "temperature", "top_p", "top_k", "max_tokens", "metadata"),
    *("keep_alive", "seed", "min_p", "chat_template_kwargs"),
)


def chat_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a chat completion. Raises RequestError where messages or tools cannot be understood."""
    chat: dict[str, Any] = {name: fields[name] for name in _PASSED if fields.get(name) is not None}
    chat["messages"] = [*_system(fields.get("system")), *_messages(fields.get("messages"))]
    if tools := _tools(fields.get("tools")):
        chat |= {"tools": tools} | _choice(fields.get("tool_choice"))
    if isinstance(fields.get("stop_sequences"), list):
        chat["stop"] = fields["stop_sequences"]
    return chat | _thinking(fields) | _output(fields)


def _system(system: Any) -> Iterator[dict[str, Any]]:
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system
    texts = [_BILLING.sub("", text) for text in _texts(blocks)]
    if text := "\n\n".join(text for text in texts if text):
        yield {"role": "system", "content": text}


def _texts(blocks: Any) -> list[str]:
    found = [block.get("text") for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    return [text for text in found if isinstance(text, str)]


def _messages(messages: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(messages, list):
        raise RequestError(f"messages: expected a list, found {type(messages).__name__}")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RequestError(f"messages[{number}]: expected an object with a role")
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        known = [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
        if message["role"] == "assistant":
            yield from _assistant(known, number)
        elif message["role"] == "system":
            yield from _system(known)
        else:
            yield from _user(known)


def _assistant(blocks: list[dict[str, Any]], number: int) -> Iterator[dict[str, Any]]:
    texts = _texts([block for block in blocks if block.get("type") == "text"])
    told: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    reasoning = [block.get("thinking") for block in blocks if block.get("type") == "thinking"]
    if text := "".join(text for text in reasoning if isinstance(text, str)):
        told["reasoning_content"] = text
    calls = [_call(block, number) for block in blocks if block.get("type") == "tool_use"]
    if calls:
        told["tool_calls"] = calls
    if calls or told["content"] or text:
        yield told


def _call(block: Mapping[str, Any], number: int) -> dict[str, Any]:
    if not isinstance(block.get("name"), str):
        raise RequestError(f"messages[{number}]: expected tool_use blocks with a name")
    arguments = json.dumps(block.get("input", {}), ensure_ascii=False)
    function = {"name": block["name"], "arguments": arguments}
    return {"id": str(block.get("id", "")), "type": "function", "function": function}


def _user(blocks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Results of tools first: they answer the calls before, and what else the message says comes after them."""
    for block in blocks:
        if block.get("type") == "tool_result":
            yield _result(block)
    parts = [part for block in blocks if block.get("type") != "tool_result" for part in _parts(block)]
    if parts or not blocks:
        yield {"role": "user", "content": _compact(parts)}


def _result(block: Mapping[str, Any]) -> dict[str, Any]:
    content = block.get("content")
    if isinstance(content, list):
        content = _compact([part for item in content if isinstance(item, dict) for part in _parts(item)])
    elif not isinstance(content, str):
        content = ""
    if block.get("is_error") is True and isinstance(content, str) and "error" not in content[:200].lower():
        content = f"Error: {content}"
    return {"role": "tool", "tool_call_id": str(block.get("tool_use_id", "")), "content": content}


def _parts(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    kind = block.get("type")
    if kind == "text":
        if isinstance(block.get("text"), str):
            yield _text(block["text"])
    elif kind == "image":
        yield _image(block.get("source"))
    elif kind == "document":
        yield from _document(block)
    elif kind == "search_result":
        named = [str(block[key]) for key in ("title", "source") if block.get(key)]
        yield _text("\n".join([*named, *_texts(block.get("content"))]))
    else:
        yield _text(f"[content of type {kind} left out]")


def _image(source: Any) -> dict[str, Any]:
    if not isinstance(source, dict) or source.get("type") != "base64":
        return _text(IMAGE_NOTE)
    url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _document(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    if isinstance(block.get("title"), str):
        yield _text(block["title"])
    if source.get("type") == "text" and isinstance(source.get("data"), str):
        yield _text(source["data"])
    elif source.get("type") == "content":
        content = source.get("content")
        yield from map(_text, [content] if isinstance(content, str) else _texts(content))
    else:
        yield _text("[document left out: only text can be read]")


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _compact(parts: list[dict[str, Any]]) -> Any:
    """Text alone as a string: templates differ in how they join parts."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _tools(tools: Any) -> list[dict[str, Any]]:
    """Functions of the client; tools that Anthropic runs have a type of their own, and do not exist here."""
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise RequestError(f"tools: expected a list, found {type(tools).__name__}")
    for number, tool in enumerate(tools):
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            raise RequestError(f"tools[{number}]: expected an object with a name")
    return [
        function_tool(tool["name"], tool.get("description"), tool.get("input_schema", {}))
        for tool in tools
        if tool.get("type") in (None, "custom", "function") or isinstance(tool.get("input_schema"), dict)
    ]


def _choice(choice: Any) -> dict[str, Any]:
    if not isinstance(choice, dict):
        return {}
    parallel = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") is True else {}
    return {"tool_choice": choice, **parallel}


def _thinking(fields: Mapping[str, Any]) -> dict[str, Any]:
    thinking = fields.get("thinking")
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if kind == "disabled":
        kwargs = fields.get("chat_template_kwargs")
        return {"chat_template_kwargs": {**(kwargs if isinstance(kwargs, dict) else {}), "enable_thinking": False}}
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    return {"reasoning_budget_tokens": budget} if kind == "enabled" and isinstance(budget, int) else {}


def _output(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Effort and format, which both have moved between API versions."""
    config = fields.get("output_config")
    config = config if isinstance(config, dict) else {}
    told: dict[str, Any] = {"reasoning_effort": config["effort"]} if isinstance(config.get("effort"), str) else {}
    wanted = config.get("format") or fields.get("output_format")
    if isinstance(wanted, dict) and wanted.get("type") == "json_schema":
        schema = wanted.get("schema", {})
        told["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return told
