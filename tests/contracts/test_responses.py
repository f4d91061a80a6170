"""OpenAI's Responses API through its own SDK, against the application on a real port with a scripted engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.conftest import RunningApp, ScriptedEngine, StartApp


@pytest.fixture(scope="module")
def app(shared_app: RunningApp) -> RunningApp:
    return shared_app


@pytest.fixture(scope="module")
def sdk(app: RunningApp) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def sent(app: RunningApp, **fields: Any) -> dict[str, Any]:
    """What the engine receives of a request that the scripted engine answers with the body it received."""
    answer = app.http.post("/v1/responses", json={"model": "m", "input": "hello", **fields})
    assert answer.status_code == 200, answer.text
    received: dict[str, Any] = json.loads(answer.json()["output"][0]["content"][0]["text"])
    return received


def streamed(app: RunningApp, **fields: Any) -> list[dict[str, Any]]:
    text = app.http.post("/v1/responses", json={"model": "m", "stream": True, **fields}).text
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


def test_a_whole_response_has_reasoning_a_message_calls_and_cached_tokens(sdk: openai.OpenAI) -> None:
    response = sdk.responses.create(model="m", input="!tools", instructions="Be brief.")
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert response.output_text == "I look."
    assert (response.status, response.instructions) == ("completed", "Be brief.")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.input_tokens_details.cached_tokens) == (3, 2)


def test_a_response_tells_what_was_sampled_with_and_the_tools_in_full(app: RunningApp) -> None:
    tool = {"type": "function", "name": "find"}
    answer = app.http.post("/v1/responses", json={"model": "m", "input": "hello", "top_p": 0.5, "tools": [tool]}).json()
    assert (answer["temperature"], answer["top_p"]) == (0.8, 0.5)  # the engine's own, and the client's
    assert answer["tools"] == [{**tool, "description": None, "parameters": None, "strict": None}]


def test_a_streamed_response_is_the_same(sdk: openai.OpenAI) -> None:
    with sdk.responses.stream(model="m", input="!tools") as stream:
        seen = [event.type for event in stream]
        response = stream.get_final_response()
    assert seen[:2] == ["response.created", "response.in_progress"]
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    calls: Any = response.output[2:]
    assert [(call.name, call.call_id, call.arguments) for call in calls] == [
        ("find", "c-1", '{"a": 1}'),
        ("look", "c-2", "{}"),
    ]
    assert response.usage is not None
    assert response.usage.input_tokens_details.cached_tokens == 2


def test_events_are_numbered_and_items_begin_and_end_one_after_the_other(app: RunningApp) -> None:
    told = streamed(app, input="!tools")
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    opened = [event["output_index"] for event in told if event["type"] == "response.output_item.added"]
    places = [event["output_index"] for event in told if "output_index" in event]
    assert opened == [0, 1, 2, 3]
    assert places == sorted(places)
    ids = {
        event["output_index"]: event["item"]["id"] for event in told if event["type"] == "response.output_item.added"
    }
    assert all(event["item_id"] == ids[event["output_index"]] for event in told if "item_id" in event)
    assert told[-1]["type"] == "response.completed"


def test_an_answer_at_the_limit_is_incomplete(app: RunningApp) -> None:
    last = streamed(app, input="!cut", max_output_tokens=1)[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_tokens_are_counted_by_the_engine(app: RunningApp) -> None:
    counted = app.http.post("/v1/responses/input_tokens", json={"model": "m", "input": "x"}).json()
    assert counted["object"] == "response.input_tokens"
    assert counted["input_tokens"] > 0


def test_a_silent_prefill_is_bridged_by_events(app: RunningApp) -> None:
    app.chat("warm")
    told = streamed(app, input="!slow 3")
    assert [event["type"] for event in told[:3]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
    ]


def test_an_overflow_has_the_code_that_clients_know(app: RunningApp) -> None:
    for stream in (False, True):
        answer = app.http.post("/v1/responses", json={"model": "m", "input": "!overflow", "stream": stream})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input")


def test_a_failure_after_the_first_event_is_a_failed_response(
    start_app: StartApp, scripted_engine: ScriptedEngine
) -> None:
    app = start_app(scripted_engine)
    last = streamed(app, input="!crash")[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"]["code"] == "server_error"
    assert "SIGKILL" in last["response"]["error"]["message"]


def test_output_that_cannot_be_parsed_completes_the_response(app: RunningApp) -> None:
    last = streamed(app, input="!unreadable")[-1]
    assert last["type"] == "response.completed"
    assert last["response"]["output"][0]["content"][0]["text"] == "so far"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"previous_response_id": "resp_1"}, "Send the whole conversation"),
        ({"conversation": "conv_1"}, "Send the whole conversation"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "Send the item"),
        ({"background": True}, "same connection"),
        ({"input": 5}, "expected text or a list"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"type": "function_call"}]}, "input[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
    ],
)
def test_what_cannot_be_done_is_400_and_says_what_to_do(app: RunningApp, fields: dict[str, Any], words: str) -> None:
    answer = app.http.post("/v1/responses", json={"model": "m", "input": "x", **fields})
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


# -- what Codex sends -------------------------------------------------------------------------------------------------


CODEX: dict[str, Any] = {
    "include": ["reasoning.encrypted_content"],
    "store": False,
    "prompt_cache_key": "0199",
    "client_metadata": {"a": "b"},
    "reasoning": {"effort": "xhigh", "summary": "auto"},
    "text": {"verbosity": "low"},
    "parallel_tool_calls": False,
}


def test_a_turn_of_codex_is_understood(app: RunningApp) -> None:
    received = sent(
        app,
        **CODEX,
        input=[
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Rules."}]},
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "More."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Do it."}]},
        ],
        tools=[
            {"type": "function", "name": "shell", "strict": False, "parameters": {"type": "object"}},
            {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
            {
                "type": "namespace",
                "name": "mcp__db__",
                "tools": [{"type": "function", "name": "query", "parameters": {}}],
            },
            {"type": "web_search"},
        ],
    )
    assert received["messages"] == [
        {"role": "system", "content": "Rules.\n\nMore."},
        {"role": "user", "content": "Do it."},
    ]
    assert [tool["function"]["name"] for tool in received["tools"]] == ["shell", "patch", "mcp__db__query"]
    assert received["reasoning_effort"] == "high"
    assert "store" not in received


def test_calls_are_told_in_the_words_of_their_tools(app: RunningApp) -> None:
    # The scripted engine calls "find" with {"a": 1} and "look" with {}.
    tools = [
        {"type": "namespace", "name": "fi", "tools": [{"type": "function", "name": "find", "parameters": {}}]},
        {"type": "custom", "name": "look"},
    ]
    last = streamed(app, input="!tools", tools=tools)[-1]
    namespaced, custom = last["response"]["output"][2:]
    assert (namespaced["type"], namespaced["namespace"], namespaced["name"]) == ("function_call", "fi", "find")
    assert (custom["type"], custom["call_id"], custom["input"]) == ("custom_tool_call", "c-2", "{}")


def test_a_turns_items_become_one_message_of_the_assistant(app: RunningApp) -> None:
    first = app.http.post("/v1/responses", json={"model": "m", "input": "!tools"}).json()
    for drop in (("content",), ()):
        output = [
            {key: value for key, value in item.items() if item["type"] != "reasoning" or key not in drop}
            for item in first["output"]
        ]
        results = [
            {"type": "function_call_output", "call_id": "c-1", "output": "one"},
            {"type": "function_call_output", "call_id": "c-2", "output": [{"type": "input_text", "text": "two"}]},
        ]
        received = sent(app, input=[{"role": "user", "content": "go"}, *output, *results, {"type": "web_search_call"}])
        assistant = received["messages"][1]
        # With its content left out, as Codex does, the reasoning comes out of what is opaque to clients.
        assert (assistant["reasoning_content"], assistant["content"]) == ("Let me think.", "I look.")
        assert [call["function"]["name"] for call in assistant["tool_calls"]] == ["find", "look"]
        assert [message["content"] for message in received["messages"][2:]] == ["one", "two"]


def test_a_format_and_a_chosen_tool_are_passed_on(app: RunningApp) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    wanted = sent(app, text={"format": {"type": "json_schema", "name": "x", "schema": schema}})["response_format"]
    assert wanted["json_schema"]["schema"] == schema
    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("a", "b")]
    received = sent(app, tools=tools, tool_choice={"type": "function", "name": "b"})
    assert received["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in received["tools"]] == ["b"]
