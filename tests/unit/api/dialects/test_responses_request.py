"""Requests to the Responses API."""

from __future__ import annotations

from typing import Any

import pytest

from ostinatod.api.dialects.responses_request import chat_fields, seal
from ostinatod.api.dialects.responses_tools import response_tools
from ostinatod.errors import RequestError


def messages(*items: Any, **fields: Any) -> list[Any]:
    chat, _ = chat_fields({"model": "m", "input": list(items), **fields})
    told: list[Any] = chat["messages"]
    return told


def said(role: str, text: str) -> dict[str, Any]:
    return {
        "type": "message",
        "role": role,
        "content": [{"type": f"{'out' if role == 'assistant' else 'in'}put_text", "text": text}],
    }


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a":1}'}


def test_a_turns_items_are_one_message_and_the_next_turns_another() -> None:
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]}
    told = messages(said("user", "go"), reasoning, said("assistant", "I look."), CALL, said("assistant", "More."), CALL)
    assert [message["role"] for message in told] == ["user", "assistant", "assistant"]
    assert (told[1]["reasoning_content"], told[1]["content"]) == ("short", "I look.")
    assert [len(message["tool_calls"]) for message in told[1:]] == [1, 1]
    assert told[2]["content"] == "More."


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ({"content": [{"type": "reasoning_text", "text": "own"}], "encrypted_content": seal("sealed")}, "own"),
        ({"content": None, "encrypted_content": seal("sealed é")}, "sealed é"),
        ({"encrypted_content": "bm90IG91cnM="}, None),
        ({"encrypted_content": "no base64!"}, None),
        ({"encrypted_content": 5}, None),
    ],
)
def test_reasoning_comes_back_from_wherever_the_client_kept_it(item: dict[str, Any], told: str | None) -> None:
    turn = messages(said("user", "x"), {"type": "reasoning", "summary": [], **item}, said("assistant", "y"))[1]
    assert turn.get("reasoning_content") == told


def test_calls_of_every_kind_have_arguments_and_results() -> None:
    told = messages(
        {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "done"},
        {"type": "local_shell_call", "call_id": "2", "action": {"command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "2", "output": {"a": 1}},
        {"type": "function_call", "call_id": "3", "name": "query", "namespace": "mcp__db", "arguments": "{"},
        {"type": "function_call_output", "call_id": "3", "output": None},
    )
    functions = [call["function"] for message in told for call in message.get("tool_calls", ())]
    assert functions == [
        {"name": "patch", "arguments": '{"input": "*** Begin"}'},
        {"name": "local_shell", "arguments": '{"command": ["ls"]}'},
        {"name": "mcp__db__query", "arguments": '{"invalid_arguments": "{"}'},
    ]
    assert [message["content"] for message in told if message["role"] == "tool"] == ["done", '{"a": 1}', ""]
    assert [message["tool_call_id"] for message in told if message["role"] == "tool"] == ["1", "2", "3"]


def test_items_of_a_providers_own_tools_are_left_out() -> None:
    assert messages(said("user", "x"), {"type": "web_search_call"}, {"type": "mcp_list_tools"}) == [
        {"role": "user", "content": "x"}
    ]


def test_images_stay_parts() -> None:
    image = {"type": "input_image", "image_url": "data:x"}
    assert messages({"role": "user", "content": [{"type": "input_text", "text": "x"}, image]})[0]["content"][1] == image


def test_text_alone_and_instructions_are_understood() -> None:
    chat, _ = chat_fields(
        {"model": "m", "input": "hello", "instructions": "Be brief.", "text": {"format": {"type": "json_object"}}}
    )
    assert [message["content"] for message in chat["messages"]] == ["Be brief.", "hello"]
    assert chat["response_format"] == {"type": "json_object"}


def test_names_of_tools_lead_there_and_back() -> None:
    function = {"type": "function", "name": "get", "parameters": {"type": "object"}}
    tools = [
        function,
        {"type": "namespace", "name": "a", "tools": [function, {"type": "function", "name": "a__own"}, "x"]},
        {"type": "namespace", "name": "b", "tools": [function]},
        {"type": "local_shell"},
    ]
    functions, names = response_tools(tools)
    inner = [each["function"]["name"] for each in functions]
    assert inner == ["get", "a__get", "a__own", "b__get", "local_shell"]
    outer = [(names.outer(name).namespace, names.outer(name).name) for name in inner]
    assert outer == [(None, "get"), ("a", "get"), ("a", "a__own"), ("b", "get"), (None, "local_shell")]
    assert [names.inner(name, namespace) for namespace, name in outer] == inner
    assert names.choice({"type": "function", "name": "get", "namespace": "b"})["name"] == "b__get"
    assert names.choice("auto") == "auto"


@pytest.mark.parametrize("tools", ["x", [5], [{"type": "namespace"}], [{"type": "custom", "name": ""}]])
def test_what_is_no_tool_is_refused(tools: Any) -> None:
    with pytest.raises(RequestError, match=r"^tools"):
        response_tools(tools)
