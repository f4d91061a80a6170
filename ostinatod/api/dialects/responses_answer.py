"""An answer of OpenAI's Responses API."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

from ostinatod.api.answer import sse_event
from ostinatod.api.dialects.responses_request import seal
from ostinatod.api.dialects.responses_tools import ToolNames
from ostinatod.api.errors import openai_body
from ostinatod.api.translated_answer import Part, TranslatedAnswer
from ostinatod.errors import OstinatoError

_ECHOED: Mapping[str, Any] = {
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
"""Fields of the request that are in its response too, and what they are when the client does not send them; what
None stands for in `temperature` and `top_p`, the engine tells."""


class ResponsesAnswer(TranslatedAnswer):
    """A response and its items."""

    def __init__(self, request: Mapping[str, Any], names: ToolNames) -> None:
        super().__init__()
        self._request = request
        self._names = names
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created_at = int(time.time())
        self._sequence = -1
        self._items: list[dict[str, Any]] = []

    def begin(self) -> bytes:
        """The response without its output."""
        response = self._response("in_progress")
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def open_part(self, part: Part, index: int) -> bytes:
        """An item without its content, and the content's empty part."""
        item = {**self._item(part, f"{_PREFIXES[part.kind]}_{uuid.uuid4().hex}"), "status": "in_progress"}
        self._items.append(item)
        added = self._event("response.output_item.added", output_index=index, item=_emptied(item))
        if part.kind == "call":
            return added
        place = {"item_id": item["id"], "output_index": index, "content_index": 0}
        return added + self._event("response.content_part.added", **place, part=_content(part.kind, ""))

    def more(self, part: Part, index: int, text: str) -> bytes:
        """A delta of the open item."""
        place = {"item_id": self._items[index]["id"], "output_index": index}
        if part.kind == "call":
            if self._names.outer(part.name).kind == "custom":
                return b""
            return self._event("response.function_call_arguments.delta", **place, delta=text)
        logprobs: dict[str, Any] = {"logprobs": []} if part.kind == "text" else {}
        return self._event(f"response.{_TEXTS[part.kind]}.delta", **place, content_index=0, delta=text, **logprobs)

    def close_part(self, part: Part, index: int) -> bytes:
        """The whole item."""
        item = {**self._item(part, self._items[index]["id"]), "status": "completed"}
        self._items[index] = item
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "custom_tool_call":
            said = self._event("response.custom_tool_call_input.delta", **place, delta=item["input"])
            said += self._event("response.custom_tool_call_input.done", **place, input=item["input"])
        elif part.kind == "call":
            done = {"name": item["name"], "arguments": part.text}
            said = self._event("response.function_call_arguments.done", **place, **done)
        else:
            logprobs: dict[str, Any] = {"logprobs": []} if part.kind == "text" else {}
            done = {**place, "content_index": 0}
            said = self._event(f"response.{_TEXTS[part.kind]}.done", **done, text=part.text, **logprobs)
            said += self._event("response.content_part.done", **done, part=_content(part.kind, part.text))
        return said + self._event("response.output_item.done", output_index=index, item=item)

    def finish(self) -> bytes:
        """The whole response."""
        status = self._ended_status()
        return self._event(f"response.{status}", response=self._response(status))

    def alive(self) -> bytes:
        """Codex counts the time between events, and a comment is none."""
        begun = self.began()
        return begun or self._event("response.in_progress", response=self._response("in_progress"))

    def failure(self, error: OstinatoError) -> bytes:
        """The response that failed. Codex knows an overflow by its code, and tries anything else again."""
        told = openai_body(error)["error"]
        code = told.get("code") if told.get("code") == "context_length_exceeded" else "server_error"
        begun = self.began()
        failed = {**self._response("failed"), "error": {"code": code, "message": told["message"]}}
        return begun + self._event("response.failed", response=failed)

    def body(self) -> Mapping[str, Any]:
        """The whole response."""
        for part in self.parts:
            item_id = f"{_PREFIXES[part.kind]}_{uuid.uuid4().hex}"
            self._items.append({**self._item(part, item_id), "status": "completed"})
        return self._response(self._ended_status())

    def _ended_status(self) -> str:
        return "incomplete" if self.finish_reason == "length" else "completed"

    def _response(self, status: str) -> dict[str, Any]:
        defaults = {**_ECHOED, "temperature": self.sampling.temperature, "top_p": self.sampling.top_p}
        echoed = {
            name: default if self._request.get(name) is None else self._request[name]
            for name, default in defaults.items()
        }
        if isinstance(echoed["tools"], list):
            echoed["tools"] = [_echoed_tool(tool) for tool in echoed["tools"]]
        ended = status in ("completed", "incomplete")
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created_at,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._request.get("model"),
            "output": list(self._items) if ended or status == "failed" else [],
            "previous_response_id": None,
            "store": False,
            **echoed,
            "usage": self._usage() if ended else None,
        }

    def _usage(self) -> dict[str, Any]:
        usage = self.usage
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.output_tokens,
        }

    def _item(self, part: Part, item_id: str) -> dict[str, Any]:
        if part.kind == "reasoning":
            told = {"content": [_content(part.kind, part.text)], "encrypted_content": seal(part.text)}
            return {"id": item_id, "type": "reasoning", "summary": [], **told}
        if part.kind == "text":
            return {"id": item_id, "type": "message", "role": "assistant", "content": [_content(part.kind, part.text)]}
        tool = self._names.outer(part.name)
        named = {"call_id": part.call_id or f"call_{uuid.uuid4().hex}", "name": tool.name}
        if tool.namespace is not None:
            named["namespace"] = tool.namespace
        if tool.kind == "custom":
            return {"id": item_id, "type": "custom_tool_call", **named, "input": _free_text(part.text)}
        return {"id": item_id, "type": "function_call", **named, "arguments": part.text}

    def _event(self, name: str, /, **data: Any) -> bytes:
        self._sequence += 1
        return sse_event(name, {"type": name, "sequence_number": self._sequence, **data})


def _echoed_tool(tool: Any) -> Any:
    """A tool as the API's schema has it, which requires what clients may leave out."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    return {"description": None, "parameters": None, "strict": None, **tool}


_PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}
_TEXTS = {"reasoning": "reasoning_text", "text": "output_text"}


def _content(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _emptied(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item before any of its content."""
    empty: dict[str, Any] = {"content": [], "arguments": "", "input": "", "encrypted_content": None}
    return {name: empty.get(name, value) for name, value in item.items()}


def _free_text(arguments: str) -> str:
    """What a custom tool is given; the model's text itself where it is not the one argument that it was asked for."""
    try:
        read = json.loads(arguments)
    except ValueError:
        return arguments
    text = read.get("input") if isinstance(read, dict) else None
    return text if isinstance(text, str) else arguments
