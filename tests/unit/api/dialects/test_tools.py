"""Tools and the choice among them."""

from __future__ import annotations

from typing import Any

import pytest

from ostinatod.api.dialects.chat import normal_chat
from ostinatod.api.dialects.tools import normal_tools
from ostinatod.errors import RequestError


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}, **function}}


def chat(**fields: Any) -> Any:
    return normal_chat({"messages": [{"role": "user", "content": "x"}], **fields}, sees_images=True)


def names(fields: Any) -> list[str]:
    return [each["function"]["name"] for each in fields["tools"]]


def test_a_request_that_needs_no_change_is_the_same_object() -> None:
    fields = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [tool("a", description="d", strict=True)],
        "tool_choice": "auto",
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
        "reasoning_effort": "low",
        "unknown": None,
    }
    assert normal_chat(fields, sees_images=True) is fields


def test_only_functions_are_left() -> None:
    assert names(chat(tools=[{"type": "web_search"}, tool("a"), {"type": "mcp", "server_label": "x"}])) == ["a"]
    assert "tools" not in chat(tools=[{"type": "web_search"}], tool_choice="required")


def test_a_function_beside_its_type_is_understood() -> None:
    assert normal_tools([{"type": "function", "name": "a", "parameters": None}]) == [
        {"type": "function", "function": {"name": "a", "parameters": {}}}
    ]


@pytest.mark.parametrize(
    ("choice", "word", "left"),
    [
        ("any", "required", ["a", "b"]),
        ("sometimes", "auto", ["a", "b"]),
        ({"type": "any"}, "required", ["a", "b"]),
        ({"type": "auto"}, "auto", ["a", "b"]),
        ({"type": "function", "function": {"name": "b"}}, "required", ["b"]),
        ({"type": "tool", "name": "b"}, "required", ["b"]),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "a"}]},
            "required",
            ["a"],
        ),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool("b")]}}, "auto", ["b"]),
    ],
)
def test_every_form_of_choice_has_the_engines_word(choice: Any, word: str, left: list[str]) -> None:
    told = chat(tools=[tool("a"), tool("b")], tool_choice=choice)
    assert (told["tool_choice"], names(told)) == (word, left)


def test_the_choice_of_a_tool_that_is_not_there_is_refused() -> None:
    with pytest.raises(RequestError, match="expected one of the request's tools, found 'c'"):
        chat(tools=[tool("a")], tool_choice={"type": "function", "function": {"name": "c"}})


@pytest.mark.parametrize("tools", ["x", ["x"], [{"type": "function"}], [tool("")]])
def test_what_is_no_tool_is_refused(tools: Any) -> None:
    with pytest.raises(RequestError, match=r"^tools"):
        chat(tools=tools)


@pytest.mark.parametrize(
    ("effort", "nearest"),
    [("none", "none"), ("minimal", "low"), ("xhigh", "high"), ("max", "high"), ("new", None), (5, None)],
)
def test_an_effort_is_the_nearest_that_templates_know(effort: Any, nearest: str | None) -> None:
    assert chat(reasoning_effort=effort).get("reasoning_effort") == nearest


def test_schemas_of_formats_are_made_good() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
    good = {"type": "object", "properties": {"a": {"type": "string"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert chat(response_format=wanted)["response_format"]["json_schema"] == {"name": "x", "schema": good}
    assert chat(response_format={"type": "json_object", "schema": schema})["response_format"]["schema"] == good
    assert chat(json_schema=schema)["json_schema"] == good
