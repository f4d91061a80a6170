"""A chat completion's request with what the engine would refuse or misunderstand made good. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostinatod.api.dialects.messages import normal_messages
from ostinatod.api.dialects.schema import check_grammar, grammar_schema
from ostinatod.api.dialects.tools import chosen_tools, normal_tools

_EFFORTS = ("none", "low", "medium", "high")
_NEAREST_EFFORTS = {"minimal": "low", "xhigh": "high", "max": "high", "ultra": "high"}
"""Templates know three efforts; clients offer more."""


def normal_chat(fields: Mapping[str, Any], *, sees_images: bool) -> Mapping[str, Any]:
    """The same request; `fields` itself where nothing has to change.

    Raises RequestError for what has no meaning, such as the choice of a tool that is not there.
    """
    changes: dict[str, Any] = {"messages": normal_messages(fields.get("messages"), sees_images=sees_images)}
    tools = normal_tools(fields.get("tools"))
    choice, tools = chosen_tools(fields.get("tool_choice"), tools)
    changes |= {"tools": tools or None, "tool_choice": choice}
    if isinstance(fields.get("response_format"), dict):
        changes["response_format"] = _response_format(fields["response_format"])
    if fields.get("json_schema") is not None:
        changes["json_schema"] = grammar_schema(fields["json_schema"])
    if isinstance(fields.get("grammar"), str):
        check_grammar(fields["grammar"])
    if "reasoning_effort" in fields:
        changes["reasoning_effort"] = normal_effort(fields["reasoning_effort"])
    dropped = {name for name, value in changes.items() if value is None}
    normal = {name: changes.get(name, value) for name, value in fields.items() if name not in dropped}
    given = {name: value for name, value in fields.items() if value is not None or name not in dropped}
    return fields if normal == given else normal


def normal_effort(effort: Any) -> str | None:
    """The nearest effort that templates know; None for anything else."""
    if not isinstance(effort, str):
        return None
    return effort if effort in _EFFORTS else _NEAREST_EFFORTS.get(effort)


def _response_format(wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    if wanted.get("type") == "json_schema" and isinstance(wanted.get("json_schema"), dict):
        inner = wanted["json_schema"]
        return {**wanted, "json_schema": {**inner, "schema": grammar_schema(inner.get("schema"))}}
    if wanted.get("schema") is not None:
        return {**wanted, "schema": grammar_schema(wanted["schema"])}
    return wanted
