"""A conversation as every chat template can render it. Pure functions.

Agents replay what they once received, and what is in the history stays there: one message that a template or the engine
refuses would fail every later turn of its session. So nothing in a message is refused that can be given a meaning.

System messages: templates accept one, at the beginning. The leading ones become one; a later one becomes a user's
message with its text marked as a reminder, because some templates refuse it there and others leave it out silently.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any

from ostinatod.errors import RequestError

_ROLES = {"developer": "system", "function": "tool"}
_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text"})
_MEDIA_PARTS = frozenset({"image_url", "input_audio", "audio_url", "video_url", "input_video", "media_marker"})
_REMINDER = "system-reminder"

IMAGE_NOTE = "[image left out: this model reads text only]"


def normal_messages(messages: Any, *, sees_images: bool) -> list[Any]:
    """The same conversation; equal to `messages` where nothing has to change.

    Images are replaced by a note for a model that does not see them: an error would repeat with every turn.
    Raises RequestError where `messages` is no list of objects with a role.
    """
    if not isinstance(messages, list):
        raise RequestError(f"messages: expected a list, found {type(messages).__name__}")
    normal = [_normal_message(message, number) for number, message in enumerate(messages)]
    if not sees_images:
        normal = [_without_images(message) for message in normal]
    leading = list(takewhile(lambda message: message["role"] == "system", normal))
    later = list(_without_system(normal[len(leading) :]))
    if len(leading) > 1:
        contents = [message["content"] for message in leading]
        leading = [{**leading[0], "content": joined_content(contents)}]
    return [*leading, *later]


def joined_content(contents: list[Any]) -> Any:
    """Several messages' contents as one: text where all are, else parts."""
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(content for content in contents if content)
    return [part for content in contents for part in _parts(content)]


def normal_arguments(arguments: Any) -> str:
    """A call's arguments as the text of a JSON object.

    Templates iterate over the object's members, and the engine fails on text that is no JSON; models do write such
    text, and clients replay it for ever. It is kept, as the one argument `invalid_arguments`.
    """
    if isinstance(arguments, Mapping):
        return json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        return "{}" if arguments is None else json.dumps({"invalid_arguments": arguments}, ensure_ascii=False)
    if not arguments.strip():
        return "{}"
    try:
        read = json.loads(arguments)
    except (ValueError, RecursionError):
        read = arguments
    if isinstance(read, dict):
        return arguments
    return "{}" if read is None else json.dumps({"invalid_arguments": read}, ensure_ascii=False)


def _normal_message(message: Any, number: int) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestError(f"messages[{number}]: expected an object with a role")
    normal = {**message, "role": _ROLES.get(message["role"], message["role"])}
    if isinstance(message.get("reasoning"), str) and not message.get("reasoning_content"):
        normal["reasoning_content"] = normal.pop("reasoning")
    for key in ("name", "tool_call_id", "reasoning_content"):
        if key in normal and not isinstance(normal[key], str):
            del normal[key]
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        normal["tool_calls"] = [_normal_call(call, number) for call in calls]
    elif calls is not None:
        del normal["tool_calls"]
    if normal["role"] == "system" or ("content" not in message and not calls):
        normal["content"] = _normal_content(message.get("content") or "")
    elif message.get("content") is not None:
        normal["content"] = _normal_content(message["content"])
    return message if normal == message else normal


def _normal_content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return [_normal_part(part) for part in content]
    return json.dumps(content, ensure_ascii=False)


def _normal_part(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        return {"type": "text", "text": json.dumps(part, ensure_ascii=False)}
    kind = part.get("type", "text" if "text" in part else None)
    if kind in _TEXT_PARTS:
        text = part.get("text", part.get("refusal"))
        if kind == "text" and isinstance(text, str):
            return part
        return {"type": "text", "text": text if isinstance(text, str) else ""}
    if kind == "input_image":
        url = part.get("image_url")
        return {"type": "image_url", "image_url": url if isinstance(url, dict) else {"url": url}}
    if kind in _MEDIA_PARTS:
        return part
    return {"type": "text", "text": f"[content of type {kind} left out]"}


def _normal_call(call: Any, number: int) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(call, dict) and isinstance(call.get("custom"), dict):
        custom = call["custom"]
        function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"messages[{number}]: expected tool calls with a function and its name")
    given = function.get("arguments")
    arguments = normal_arguments(given)
    # An object is what some clients send; the engine takes it as well, and writes it out in the same way.
    kept = given if isinstance(given, dict) and call.get("type") == "function" else arguments
    named = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    normal = {**named, "type": "function", "function": {"name": function["name"], "arguments": kept}}
    return call if _same_call(call, normal) else normal


def _same_call(call: Mapping[str, Any], normal: Mapping[str, Any]) -> bool:
    return all(call.get(key) == value for key, value in normal.items()) and ("id" in normal or "id" not in call)


def _without_images(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list) or not any(part.get("type") == "image_url" for part in content):
        return message
    note = {"type": "text", "text": IMAGE_NOTE}
    return {**message, "content": [note if part.get("type") == "image_url" else part for part in content]}


def _without_system(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The messages after the leading system ones, with reminders joined to the user's message beside them."""
    held: dict[str, Any] | None = None
    held_is_reminder = False
    for message in messages:
        is_reminder = message["role"] == "system"
        told = {**message, "role": "user", "content": _reminder(message["content"])} if is_reminder else message
        if held is not None and told["role"] == "user" and (is_reminder or held_is_reminder):
            held = {**held, "content": joined_content([held["content"], told["content"]])}
            held_is_reminder = held_is_reminder and is_reminder
            continue
        if held is not None:
            yield held
            held, held_is_reminder = None, False
        if told["role"] == "user":
            held, held_is_reminder = told, is_reminder
        else:
            yield told
    if held is not None:
        yield held


def _reminder(content: Any) -> Any:
    if isinstance(content, str):
        return content if f"<{_REMINDER}>" in content else f"<{_REMINDER}>\n{content}\n</{_REMINDER}>"
    return [
        {**part, "text": _reminder(part["text"])} if part.get("type") == "text" and part.get("text") else part
        for part in content
    ]


def _parts(content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []
