"""Tools and the choice among them, in the form that the engine accepts. Pure functions.

Only functions can be called: tools that a provider runs on its own side (web search, code interpreter ...) do not exist
here and are left out, which every client that offers them beside functions survives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostinatod.api.dialects.schema import grammar_schema
from ostinatod.errors import RequestError

_CHOICES = {"auto": "auto", "none": "none", "required": "required", "any": "required", "tool": "required"}


def normal_tools(tools: Any) -> list[Any]:
    """The functions among `tools`; equal to it where nothing has to change.

    Raises RequestError for a function without a name.
    """
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise RequestError(f"tools: expected a list, found {type(tools).__name__}")
    normal = [_normal_tool(tool, number) for number, tool in enumerate(tools)]
    return [tool for tool in normal if tool is not None]


def function_tool(name: str, description: Any, parameters: Any) -> dict[str, Any]:
    """A function as chat completions describe it."""
    described = {"description": description} if isinstance(description, str) else {}
    return {"type": "function", "function": {"name": name, **described, "parameters": grammar_schema(parameters)}}


def chosen_tools(choice: Any, tools: list[Any]) -> tuple[str | None, list[Any]]:
    """The engine's word for `choice`, and the tools that it leaves.

    The engine takes the choice of one function for "auto"; its only means to force one is to know no other. Raises
    RequestError for a function that is not among the tools.
    """
    if choice is None or not tools:
        return (choice if choice in ("auto", "none") else None), tools
    if isinstance(choice, str):
        return _CHOICES.get(choice, "auto"), tools
    if not isinstance(choice, Mapping):
        return "auto", tools
    if choice.get("type") == "allowed_tools":
        return _allowed(choice, tools)
    if (name := _chosen_name(choice)) is None:
        return _CHOICES.get(str(choice.get("type")), "auto"), tools
    left = [tool for tool in tools if tool["function"]["name"] == name]
    if not left:
        raise RequestError(f"tool_choice: expected one of the request's tools, found {name!r}")
    return "required", left[:1]


def _allowed(choice: Mapping[str, Any], tools: list[Any]) -> tuple[str, list[Any]]:
    within = choice["allowed_tools"] if isinstance(choice.get("allowed_tools"), Mapping) else choice
    allowed = within.get("tools")
    named = allowed if isinstance(allowed, list) else []
    names = {_chosen_name(tool) for tool in named if isinstance(tool, Mapping)}
    left = [tool for tool in tools if tool["function"]["name"] in names]
    return _CHOICES.get(str(within.get("mode")), "auto"), left or tools


def _chosen_name(choice: Mapping[str, Any]) -> str | None:
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
    return name if isinstance(name, str) else None


def _normal_tool(tool: Any, number: int) -> Any | None:
    if not isinstance(tool, dict):
        raise RequestError(f"tools[{number}]: expected an object, found {type(tool).__name__}")
    if tool.get("type", "function") != "function":
        return None
    is_nested = "function" in tool
    function = tool["function"] if is_nested else tool
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise RequestError(f"tools[{number}]: expected a function with a name")
    normal = {key: value for key, value in function.items() if is_nested or key != "type"}
    if not isinstance(function.get("description", ""), str):
        del normal["description"]
    normal["parameters"] = grammar_schema(function.get("parameters"))
    changed = {**(tool if is_nested else {}), "type": "function", "function": normal}
    return tool if changed == tool else changed
