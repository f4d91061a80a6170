from __future__ import annotations

from typing import Any

import pytest

from ostinatod.sessions.turn_kind import turn_kind

SYSTEM = {"role": "system", "content": "You are an agent."}
USER = {"role": "user", "content": "Fix the bug"}
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "read", "arguments": "{}"}}]}
OUTPUT = {"role": "tool", "content": "line 1"}
ANSWER = {"role": "assistant", "content": "Done"}
GREETING = {"role": "assistant", "content": "Hi! How can I help you today?"}
REMINDER = {"role": "system", "content": "The to-do list is empty."}
TOOLS = [{"type": "function", "function": {"name": "read"}}]


@pytest.mark.parametrize(
    ("messages", "kind"),
    [
        ([SYSTEM, USER], "first"),
        ([USER], "first"),
        ([SYSTEM, USER, USER], "first"),
        ([SYSTEM, GREETING, USER], "first"),
        ([SYSTEM, GREETING], "first"),
        ([SYSTEM, USER, REMINDER], "first"),
        ([SYSTEM, USER, CALL, OUTPUT], "after_tool"),
        ([SYSTEM, USER, CALL, OUTPUT, OUTPUT], "after_tool"),
        ([SYSTEM, USER, CALL, OUTPUT, REMINDER], "after_tool"),
        ([SYSTEM, USER, ANSWER, USER], "after_user"),
        ([SYSTEM, GREETING, USER, ANSWER, USER], "after_user"),
        ([SYSTEM, USER, CALL, OUTPUT, ANSWER, USER, REMINDER], "after_user"),
        ([SYSTEM, USER, CALL, OUTPUT, USER], "after_user"),
        ([SYSTEM, USER, ANSWER], "other"),
        ([], "other"),
        ("text", "other"),
        (None, "other"),
    ],
)
def test_the_kind_is_what_the_turn_answers(messages: Any, kind: str) -> None:
    assert turn_kind({"messages": messages, "tools": TOOLS}) == kind
    assert turn_kind({"messages": messages}) == kind


def asks(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [SYSTEM, {"role": "user", "content": text}], **fields}


def told(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": text}, USER], **fields}


def labelled(**properties: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": {"properties": properties}}}


@pytest.mark.parametrize(
    "request_",
    [
        asks("Fix the bug", response_format=labelled(title={})),
        asks("Fix the bug", response_format=labelled(isNewTopic={}, title={})),
        asks("Fix the bug", response_format={"type": "json_object", "schema": {"properties": {"title": {}}}}),
        asks("quota", max_tokens=1),
        told("You are a title generator. You output ONLY a thread title."),
        told("Generate a concise, sentence-case title (3-7 words) that captures the topic."),
        told("Analyze if this message indicates a new conversation topic."),
        asks("Please summarize this coding conversation in under 50 characters."),
        asks("### Task:\nGenerate a concise, 3-5 word title with an emoji."),
        asks("### Task:\nSuggest 3-5 relevant follow-up questions."),
        asks("[SUGGESTION MODE: Suggest what the user might naturally type next.]", tools=TOOLS),
    ],
)
def test_what_agents_send_beside_the_conversation_is_a_side_request(request_: dict[str, Any]) -> None:
    assert turn_kind(request_) == "side"


@pytest.mark.parametrize(
    "request_",
    [
        asks("Fix the title generator", tools=TOOLS),
        asks("Fix the bug", response_format=labelled(title={}, body={})),
        asks("Fix the bug", response_format=labelled()),
        asks("Fix the bug", response_format={"type": "json_object"}),
        asks("Fix the bug", max_tokens=2),
        asks("Which title has the book?"),
        asks("x" * 500 + " generate a title"),
    ],
)
def test_what_a_user_asks_is_no_side_request(request_: dict[str, Any]) -> None:
    assert turn_kind(request_) == "first"
