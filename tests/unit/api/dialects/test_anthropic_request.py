"""Requests in Anthropic's words."""

from __future__ import annotations

from typing import Any

import pytest

from ostinatod.api.dialects.anthropic_request import chat_fields
from ostinatod.api.dialects.messages import IMAGE_NOTE
from ostinatod.errors import RequestError


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    return chat_fields({"model": "m", "messages": list(messages), **fields})


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


@pytest.mark.parametrize(
    ("system", "told"),
    [
        ("x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch=a5145;You are.", "You are."),
        ("x-anthropic-billing-header: cc_version=2.1.101\nYou are.", "You are."),
        ([text("x-anthropic-billing-header: cc_version=1; cch=a;"), text("You are.")], "You are."),
        (
            [text("You are."), text("x-anthropic-billing-header is a header.")],
            "You are.\n\nx-anthropic-billing-header is a header.",
        ),
        ("", None),
        ([], None),
        (5, None),
    ],
)
def test_the_billing_line_is_left_out_of_the_system_prompt(system: Any, told: str | None) -> None:
    messages = chat(user(text("x")), system=system)["messages"]
    assert messages[:-1] == ([{"role": "system", "content": told}] if told else [])


def test_results_come_before_what_else_the_user_says() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text("a"), text("b")]}
    assert chat(user(text("and now?"), result))["messages"] == [
        {"role": "tool", "tool_call_id": "t", "content": "a\nb"},
        {"role": "user", "content": "and now?"},
    ]


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ({"content": "no such file", "is_error": True}, "Error: no such file"),
        ({"content": "<tool_use_error>no</tool_use_error>", "is_error": True}, "<tool_use_error>no</tool_use_error>"),
        ({}, ""),
        ({"content": None}, ""),
        ({"content": [{"type": "tool_reference", "name": "x"}]}, "[content of type tool_reference left out]"),
    ],
)
def test_every_result_has_a_text(result: dict[str, Any], told: str) -> None:
    (message,) = chat(user({"type": "tool_result", "tool_use_id": "t", **result}))["messages"]
    assert message["content"] == told


def test_images_are_passed_inline_and_noted_otherwise() -> None:
    inline = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    remote = {"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/"}}
    (message,) = chat(user(inline, remote))["messages"]
    assert message["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        text(IMAGE_NOTE),
    ]


def test_documents_and_search_results_are_read_as_text() -> None:
    blocks = [
        {"type": "document", "title": "T", "source": {"type": "text", "data": "body"}},
        {"type": "document", "source": {"type": "content", "content": [text("part")]}},
        {"type": "document", "source": {"type": "base64", "data": "AA=="}},
        {"type": "search_result", "title": "S", "source": "where", "content": [text("found")]},
    ]
    (message,) = chat(user(*blocks))["messages"]
    assert message["content"] == "T\nbody\npart\n[document left out: only text can be read]\nS\nwhere\nfound"


def test_an_assistant_that_says_nothing_is_left_out() -> None:
    hidden = {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, {"type": "server_tool_use"}]}
    assert [message["role"] for message in chat(user(text("x")), hidden, user(text("y")))["messages"]] == [
        "user",
        "user",
    ]


def test_tools_that_anthropic_runs_are_left_out() -> None:
    tools = [
        {"type": "web_search_20250305", "name": "web_search"},
        {"name": "Read", "input_schema": {"type": "object"}},
        {"type": "custom", "name": "Edit", "description": "d", "input_schema": {"type": "object"}},
    ]
    told = chat(user(text("x")), tools=tools, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [tool["function"]["name"] for tool in told["tools"]] == ["Read", "Edit"]
    assert told["parallel_tool_calls"] is False
    assert "tools" not in chat(user(text("x")), tools=tools[:1], tool_choice={"type": "any"})


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, {"reasoning_budget_tokens": 2048}),
        ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"thinking": {"type": "adaptive"}}, {}),
        ({"thinking": 5, "output_config": 5}, {}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"stop_sequences": ["a"], "top_k": 4, "unknown": 1}, {"stop": ["a"], "top_k": 4}),
        ({"metadata": {"user_id": "u"}}, {"metadata": {"user_id": "u"}}),
    ],
)
def test_settings_have_their_words(fields: dict[str, Any], told: dict[str, Any]) -> None:
    said = chat(user(text("x")), **fields)
    assert {key: value for key, value in said.items() if key not in ("model", "messages")} == told


@pytest.mark.parametrize("messages", ["x", [5], [{"role": "assistant", "content": [{"type": "tool_use"}]}]])
def test_what_is_no_conversation_is_refused(messages: Any) -> None:
    with pytest.raises(RequestError, match=r"^messages"):
        chat_fields({"model": "m", "messages": messages})
