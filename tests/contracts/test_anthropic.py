"""Anthropic's dialect through its own SDK, against the application on a real port with a scripted engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from ostinatod.config import Settings
from tests.conftest import RunningApp, ScriptedEngine, StartApp

HELLO: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def app(shared_app: RunningApp) -> RunningApp:
    return shared_app


@pytest.fixture(scope="module")
def sdk(app: RunningApp) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=app.url, api_key="none", max_retries=0) as client:
        yield client


def said(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def sent(app: RunningApp, **fields: Any) -> dict[str, Any]:
    """What the engine receives of a request that the scripted engine answers with the body it received."""
    answer = app.http.post("/v1/messages", json={"model": "m", "max_tokens": 9, "messages": HELLO, **fields})
    assert answer.status_code == 200, answer.text
    received: dict[str, Any] = json.loads(answer.json()["content"][0]["text"])
    return received


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


def test_a_whole_message_has_thinking_text_calls_and_cached_tokens(sdk: anthropic.Anthropic) -> None:
    message = sdk.messages.create(model="m", max_tokens=9, messages=said("!tools"))
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.content[2].input == {"a": 1}  # type: ignore[union-attr]
    assert message.stop_reason == "tool_use"
    # The scripted engine read 1 token and reused 2.
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens, message.usage.output_tokens) == (1, 2, 1)


def test_a_streamed_message_is_the_same_and_tells_the_prompts_size_first(sdk: anthropic.Anthropic) -> None:
    with sdk.messages.stream(model="m", max_tokens=9, messages=said("!tools")) as stream:
        seen = list(stream)
        message = stream.get_final_message()
    start = seen[0]
    assert start.type == "message_start"
    assert (start.message.usage.input_tokens, start.message.usage.cache_read_input_tokens) == (1, 2)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.content[0].thinking == "Let me think."  # type: ignore[union-attr]
    assert [block.input for block in message.content[2:]] == [{"a": 1}, {}]  # type: ignore[union-attr]
    assert (message.stop_reason, message.usage.output_tokens) == ("tool_use", 1)


def test_blocks_begin_and_end_one_after_the_other(app: RunningApp) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": said("!tools"), "stream": True}
    told = events(app.http.post("/v1/messages?beta=true", json=body).text)
    open_block: int | None = None
    ended = -1
    for event in told:
        if event["type"] == "content_block_start":
            assert open_block is None
            assert event["index"] == ended + 1
            open_block = event["index"]
        elif event["type"] == "content_block_delta":
            assert event["index"] == open_block
        elif event["type"] == "content_block_stop":
            assert event["index"] == open_block
            open_block, ended = None, event["index"]
    assert ended == 3
    assert [event["type"] for event in told[-2:]] == ["message_delta", "message_stop"]


def test_an_answer_at_the_limit_says_so(sdk: anthropic.Anthropic) -> None:
    assert sdk.messages.create(model="m", max_tokens=9, messages=said("!cut")).stop_reason == "max_tokens"


def test_tokens_are_counted_by_the_engine(sdk: anthropic.Anthropic) -> None:
    few = sdk.messages.count_tokens(model="m", messages=HELLO).input_tokens
    tools: Any = [{"name": "find", "input_schema": {"type": "object"}}]
    assert sdk.messages.count_tokens(model="m", messages=HELLO, tools=tools).input_tokens > few > 0


def test_pings_come_within_a_second_of_a_long_prefill(app: RunningApp) -> None:
    app.chat("warm")
    body = {"model": "m", "max_tokens": 9, "messages": said("!slow 3"), "stream": True}
    told = events(app.http.post("/v1/messages", json=body).text)
    assert told[0] == {"type": "ping"}
    assert told[1]["type"] == "message_start"


def test_an_overflow_is_told_in_the_words_that_claude_code_compacts_on(sdk: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as told:
        sdk.messages.create(model="m", max_tokens=9, messages=said("!overflow"))
    assert told.value.body == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "prompt is too long: 70211 tokens > 4096 maximum"},
    }


@pytest.mark.parametrize(
    ("fields", "status", "kind"),
    [
        ({"model": "unknown"}, 404, "not_found_error"),
        ({"model": ""}, 400, "invalid_request_error"),
        ({"messages": "x"}, 400, "invalid_request_error"),
        ({"messages": [{"content": "x"}]}, 400, "invalid_request_error"),
        ({"tools": [{"description": "nameless"}]}, 400, "invalid_request_error"),
    ],
)
def test_errors_have_anthropics_shape(app: RunningApp, fields: dict[str, Any], status: int, kind: str) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": HELLO, **fields}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        answer = app.http.post(path, json=body)
        assert (answer.status_code, answer.json()["type"], answer.json()["error"]["type"]) == (status, "error", kind)


def test_a_full_queue_is_an_overload(start_app: StartApp, scripted_engine: ScriptedEngine) -> None:
    app = start_app(scripted_engine, Settings(parallel=0, max_queue=0))
    answer = app.http.post("/v1/messages", json={"model": "m", "max_tokens": 9, "messages": HELLO})
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "overloaded_error")


def test_an_engine_that_dies_in_a_stream_is_an_error_event(
    start_app: StartApp, scripted_engine: ScriptedEngine
) -> None:
    app = start_app(scripted_engine)
    with anthropic.Anthropic(base_url=app.url, api_key="none", max_retries=0) as sdk:
        stream: Any = sdk.messages.create(model="m", max_tokens=9, messages=said("!crash"), stream=True)
        seen = []
        with pytest.raises(anthropic.APIStatusError, match="SIGKILL"):
            seen.extend(event.type for event in stream)
    assert "content_block_delta" in seen


def test_output_that_cannot_be_parsed_ends_the_message_instead_of_failing_the_turn(sdk: anthropic.Anthropic) -> None:
    with sdk.messages.stream(model="m", max_tokens=9, messages=said("!unreadable")) as stream:
        message = stream.get_final_message()
    assert (message.content[0].text, message.stop_reason) == ("so far", "end_turn")  # type: ignore[union-attr]


# -- what Claude Code sends -------------------------------------------------------------------------------------------


def claude_code_body(billing: str, marked: int) -> dict[str, Any]:
    """The shape of a turn: a billing block, and cache marks that move to the last message."""
    mark = {"cache_control": {"type": "ephemeral"}}
    system = [
        {
            "type": "text",
            "text": f"x-anthropic-billing-header: cc_version=2.1.197.{billing}; cc_entrypoint=cli; cch={billing};",
        },
        {"type": "text", "text": "You are Claude Code.", **mark},
        {"type": "text", "text": "Rules.", **mark},
    ]
    texts = [{"type": "text", "text": "fix it", **(mark if marked == number else {})} for number in range(2)]
    return {
        "system": system,
        "messages": [{"role": "user", "content": [text]} for text in texts],
        "tools": [{"name": "Bash", "description": "Runs.", "input_schema": {"$schema": "x", "type": "object"}, **mark}],
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "max"},
        "context_management": {"edits": []},
        "metadata": {"user_id": "user_1_account__session_0"},
        "max_tokens": 32000,
    }


def test_nothing_that_claude_code_changes_between_turns_reaches_the_prompt(app: RunningApp) -> None:
    first, second = (sent(app, **claude_code_body(*turn)) for turn in (("a5145", 0), ("ff0e1", 1)))
    assert first == second
    assert first["messages"][0] == {"role": "system", "content": "You are Claude Code.\n\nRules."}
    assert first["reasoning_effort"] == "high"
    # 32000 do not fit into the loaded 4096.
    assert first["max_tokens"] == 4096


def test_a_system_message_within_the_conversation_becomes_a_reminder(app: RunningApp) -> None:
    messages = [*said("do it"), {"role": "assistant", "content": "Done."}, {"role": "system", "content": "Be brief."}]
    assert sent(app, messages=[*messages, *said("again")])["messages"][-1] == {
        "role": "user",
        "content": "<system-reminder>\nBe brief.\n</system-reminder>\n\nagain",
    }


def test_a_call_its_result_and_its_thinking_make_the_round_trip(app: RunningApp) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls", "n": 1}}
    history = [
        *said("list"),
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, call]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "a.py"},
                {"type": "text", "text": "so?"},
            ],
        },
    ]
    assert sent(app, messages=history)["messages"][1:] == [
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "Bash", "arguments": '{"command": "ls", "n": 1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "a.py"},
        {"role": "user", "content": "so?"},
    ]


def test_the_title_request_asks_for_its_schema(app: RunningApp) -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string", "pattern": "(?i)x"}}}
    wanted = sent(app, output_config={"format": {"type": "json_schema", "schema": schema}})["response_format"]
    assert wanted["json_schema"]["schema"] == {"type": "object", "properties": {"title": {"type": "string"}}}
