"""Conversations that templates can render."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinatod.api.dialects.messages import IMAGE_NOTE, normal_arguments, normal_messages
from ostinatod.errors import RequestError

USER = {"role": "user", "content": "u"}
REPLY = {"role": "assistant", "content": "a"}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def call(arguments: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def normal(*messages: Any, sees_images: bool = True) -> list[Any]:
    return normal_messages(list(messages), sees_images=sees_images)


def test_an_ordinary_conversation_is_unchanged() -> None:
    messages = [
        system("s"),
        {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
        {**call('{"b": 1,"a":2}'), "reasoning_content": "r"},
        {"role": "tool", "tool_call_id": "1", "content": "t"},
        {"role": "assistant", "content": "a", "tool_calls": None},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]},
    ]
    assert normal(*messages) == messages


def test_leading_system_and_developer_messages_become_one() -> None:
    parts = {"role": "developer", "content": [{"type": "input_text", "text": "2"}]}
    assert normal(system("1"), system("2"), USER) == [system("1\n\n2"), USER]
    assert normal(system("1"), parts, USER)[0] == system([{"type": "text", "text": "1"}, {"type": "text", "text": "2"}])


def test_a_later_system_message_joins_the_users_beside_it() -> None:
    told = "<system-reminder>\ns\n</system-reminder>"
    assert normal(USER, system("s"), REPLY) == [{**USER, "content": f"u\n\n{told}"}, REPLY]
    assert normal(USER, REPLY, system("s"), USER)[2:] == [{**USER, "content": f"{told}\n\nu"}]
    tool = {"role": "tool", "tool_call_id": "1", "content": "t"}
    assert normal(USER, call("{}"), tool, system("s"))[2:] == [tool, {"role": "user", "content": told}]
    marked = f"{told} already"
    assert normal(USER, REPLY, system(marked))[2] == {"role": "user", "content": marked}


def test_a_reminder_leaves_the_same_prefix_when_the_conversation_goes_on() -> None:
    before = normal(USER, REPLY, USER, system("s"))
    after = normal(USER, REPLY, USER, system("s"), REPLY, USER)
    assert after[: len(before)] == before


def test_two_messages_of_the_user_stay_two() -> None:
    assert normal(USER, USER) == [USER, USER]


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        ('{"b": 1,"a":2}', '{"b": 1,"a":2}'),
        ("", "{}"),
        (None, "{}"),
        ("null", "{}"),
        ({"a": 1}, '{"a": 1}'),
        ("{", '{"invalid_arguments": "{"}'),
        ("[1]", '{"invalid_arguments": [1]}'),
        (5, '{"invalid_arguments": 5}'),
    ],
)
def test_arguments_are_always_a_json_object(given_: Any, told: str) -> None:
    assert normal_arguments(given_) == told


@given(st.text())
def test_no_text_of_arguments_is_lost(text: str) -> None:
    read = json.loads(normal_arguments(text))
    assert isinstance(read, dict)


@pytest.mark.parametrize("name", ["name", "tool_call_id", "reasoning_content"])
def test_fields_that_are_null_are_dropped(name: str) -> None:
    assert normal({**USER, name: None}) == [USER]


def test_other_spellings_are_understood() -> None:
    assert normal({**REPLY, "reasoning": "r"}) == [{**REPLY, "reasoning_content": "r"}]
    assert normal({"role": "function", "name": "f", "content": "x"})[0]["role"] == "tool"
    custom = {"role": "assistant", "tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "f", "input": "x"}}]}
    assert normal(custom)[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"input": "x"}'}
    image = {"type": "input_image", "image_url": "data:x"}
    assert normal({"role": "user", "content": [image]})[0]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:x"}}
    ]


def test_an_image_is_noted_where_it_cannot_be_seen() -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}
    assert normal(image, sees_images=False) == [{"role": "user", "content": [{"type": "text", "text": IMAGE_NOTE}]}]


@pytest.mark.parametrize(
    "messages", ["x", None, ["x"], [{"content": "x"}], [{"role": 5}], [{**REPLY, "tool_calls": [1]}]]
)
def test_what_is_no_conversation_is_refused(messages: Any) -> None:
    with pytest.raises(RequestError, match=r"^messages"):
        normal_messages(messages, sees_images=True)
