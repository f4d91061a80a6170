"""Every dialect against the real engine and the bundled model: tool conversations, prefix reuse, and what agents send.

What a turn may read again: the tokens that are new to it, and one that the engine always computes anew to have logits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import anthropic
import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from ostinatod.config import Settings
from ostinatod.installer.engine_build import EngineBuild
from ostinatod.store import ModelStore
from tests.conftest import RunningApp, running_app

pytestmark = pytest.mark.engine

SESSION = json.loads((Path(__file__).parents[1] / "data" / "tau2-retail-session.json").read_text())
TOOL = next(t for t in SESSION["tools"] if t["function"]["name"] == "find_user_id_by_name_zip")
NAME = TOOL["function"]["name"]
SCHEMA = TOOL["function"]["parameters"]
ABOUT = TOOL["function"]["description"]
SYSTEM = "You are a customer service agent that helps the user. " * 20
ASKED = "My name is Fatima Johnson, and the ZIP code is 78712."
FOUND = "fatima_johnson_7581"
NEVER_REUSED = 1

Turn: TypeAlias = "tuple[int, int, int]"
"""Prompt tokens, of which reused, and output tokens."""
Talk: TypeAlias = Callable[[RunningApp], "list[Turn]"]


@contextmanager
def _app(directory: Path, build: EngineBuild, settings: Settings) -> Iterator[RunningApp]:
    store: Any = ModelStore(directory / "db", directory / "hub", "http://127.0.0.1:9")
    with running_app(directory, build, settings, store) as running:
        yield running


@pytest.fixture(scope="module")
def app(engine_build: EngineBuild, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    with _app(tmp_path_factory.mktemp("many"), engine_build, Settings(context_tokens=8192, threads=2)) as running:
        yield running


@pytest.fixture(scope="module")
def single(engine_build: EngineBuild, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    """One request at a time, and a template that refuses a system message which is not the first."""
    directory = tmp_path_factory.mktemp("one")
    template = directory / "strict.jinja"
    store = ModelStore(directory / "db", directory / "hub", "http://127.0.0.1:9")
    refusal = "{%- for m in messages %}{%- if m.role == 'system' and not loop.first %}{{- raise_exception('first!') }}"
    template.write_text(f"{refusal}{{%- endif %}}{{%- endfor %}}{store.chat_template(store.resolve('tiny'))}")
    arguments = ("--chat-template-file", str(template))
    settings = Settings(context_tokens=8192, threads=2, parallel=1, engine_args=arguments)
    with _app(directory, engine_build, settings) as running:
        yield running


# -- a conversation of three turns in each dialect --------------------------------------------------------------------
# The first makes a call, the second answers its result, the third is the user's. What the second would say is cut off
# after a token and replaced: it only has to be a turn.

REPLY = "I found your account."
NEXT = "Thank you. What is next?"
LIMITS = (90, 1, 1)


def _openai_talk(app: RunningApp) -> list[Turn]:
    history: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASKED}]
    with openai.OpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0) as sdk:

        def turn(limit: int) -> tuple[Turn, Any]:
            state: Any = ChatCompletionStreamState(input_tools=[TOOL])
            chunks: Any = sdk.chat.completions.create(
                model="tiny",
                messages=history,
                tools=[TOOL],
                temperature=0,
                max_completion_tokens=limit,
                stream=True,
                stream_options={"include_usage": True},
            )
            for chunk in chunks:
                state.handle_chunk(chunk)
            answer = state.current_completion_snapshot
            usage = answer.usage
            told = usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, usage.completion_tokens
            return told, answer.choices[0].message

        first, message = turn(LIMITS[0])
        (call,) = message.tool_calls
        history += [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": FOUND}]
        second, _ = turn(LIMITS[1])
        history += [{"role": "assistant", "content": REPLY}, {"role": "user", "content": NEXT}]
        third, _ = turn(LIMITS[2])
    return [first, second, third]


def _anthropic_talk(app: RunningApp) -> list[Turn]:
    history: list[Any] = [{"role": "user", "content": ASKED}]
    tools: Any = [{"name": NAME, "description": ABOUT, "input_schema": SCHEMA}]
    turns: list[Turn] = []
    with anthropic.Anthropic(base_url=app.url, api_key="none", max_retries=0) as sdk:

        def turn(limit: int) -> Any:
            number = len(turns)
            system: Any = [
                {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.101.{number}; cch=a514{number};"},
                {"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}},
            ]
            request: Any = {"messages": history, "tools": tools, "system": system, "extra_body": {"temperature": 0}}
            with sdk.messages.stream(model="tiny", max_tokens=limit, **request) as stream:
                message = stream.get_final_message()
            usage = message.usage
            cached = usage.cache_read_input_tokens or 0
            turns.append((usage.input_tokens + cached, cached, usage.output_tokens))
            return message

        content = [block.model_dump() for block in turn(LIMITS[0]).content]
        history.append({"role": "assistant", "content": content})
        result = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": FOUND}
        history.append({"role": "user", "content": [result]})
        turn(LIMITS[1])
        history += [{"role": "assistant", "content": REPLY}, {"role": "user", "content": NEXT}]
        turn(LIMITS[2])
    return turns


def _responses_talk(app: RunningApp) -> list[Turn]:
    history: list[Any] = [{"role": "developer", "content": SYSTEM}, {"role": "user", "content": ASKED}]
    function = {"type": "function", "name": NAME, "description": ABOUT, "parameters": SCHEMA}
    tools: Any = [function, {"type": "web_search"}]
    turns: list[Turn] = []
    with openai.OpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0) as sdk:

        def turn(limit: int) -> Any:
            request: Any = {"model": "tiny", "input": history, "tools": tools, "temperature": 0, "store": False}
            events: Any = sdk.responses.create(**request, max_output_tokens=limit, stream=True)
            response = list(events)[-1].response
            usage = response.usage
            turns.append((usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens))
            return response

        (call,) = turn(LIMITS[0]).output
        history.append(call.model_dump(exclude_none=True))
        history.append({"type": "function_call_output", "call_id": call.call_id, "output": FOUND})
        turn(LIMITS[1])
        history += [{"role": "assistant", "content": REPLY}, {"role": "user", "content": NEXT}]
        turn(LIMITS[2])
    return turns


def _ollama_talk(app: RunningApp) -> list[Turn]:
    history: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASKED}]
    turns: list[Turn] = []

    def turn(limit: int) -> Any:
        options = {"temperature": 0, "num_predict": limit, "num_ctx": 4000 + len(turns)}
        body = {"model": "tiny", "messages": history, "tools": [TOOL], "options": options, "stream": False}
        answer = app.http.post("/api/chat", json=body).json()
        turns.append((answer["prompt_eval_count"], answer["reused_tokens"], answer["eval_count"]))
        return answer["message"]

    history += [turn(LIMITS[0]), {"role": "tool", "tool_name": NAME, "content": FOUND}]
    turn(LIMITS[1])
    history += [{"role": "assistant", "content": REPLY}, {"role": "user", "content": NEXT}]
    turn(LIMITS[2])
    return turns


@pytest.mark.parametrize("talk", [_openai_talk, _anthropic_talk, _responses_talk, _ollama_talk])
def test_each_turn_reads_only_what_is_new_to_it(app: RunningApp, talk: Talk) -> None:
    first, second, third = talk(app)
    assert second[1] >= first[0] + first[2] - NEVER_REUSED
    assert third[1] >= second[0] - NEVER_REUSED
    # What is new: the call's result, and then the reply and the next question.
    assert second[0] - second[1] < 40
    assert third[0] - third[1] < 40


# -- what shares the engine with a session ----------------------------------------------------------------------------


def chat(app: RunningApp, *said: str, system: str = SYSTEM, **fields: Any) -> int:
    """Asks for one token; how many of the prompt's tokens were reused."""
    roles = ("user", "assistant")
    history = [{"role": roles[number % 2], "content": text} for number, text in enumerate(said)]
    messages = [{"role": "system", "content": system}, *history]
    answer = app.http.post(
        "/v1/chat/completions", json={"model": "tiny", "messages": messages, "max_tokens": 1, **fields}
    )
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_side_request_does_not_cost_the_session_its_prompt(single: RunningApp) -> None:
    chat(single, "Where is my order W3792453?")
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    title = {"response_format": {"type": "json_schema", "json_schema": {"name": "t", "schema": schema}}}
    chat(single, "Where is my order W3792453?", system="Write a title for this conversation.", **title)
    # The system prompt alone has 200 words.
    assert chat(single, "Where is my order W3792453?", "On its way.", "Thanks.") > 200


def test_several_sessions_keep_their_prompts_while_one_request_runs_at_a_time(single: RunningApp) -> None:
    systems = [f"You are agent number {number}. {SYSTEM}" for number in range(3)]
    for system in systems:
        chat(single, "Hello.", system=system)
    assert all(chat(single, "Hello.", "Hi.", "How are you?", system=system) > 200 for system in systems)


def test_nothing_is_read_again_when_only_the_billing_line_differs(app: RunningApp) -> None:
    told = []
    for stamp in ("a5145", "0ff1c"):
        billing = f"x-anthropic-billing-header: cc_version=2.1.101.{stamp}; cc_entrypoint=cli; cch={stamp};"
        body = {
            "model": "tiny",
            "max_tokens": 1,
            "system": [{"type": "text", "text": billing}, {"type": "text", "text": SYSTEM}],
            "messages": [{"role": "user", "content": "Hello from Claude Code."}],
        }
        told.append(app.http.post("/v1/messages", json=body).json()["usage"])
    assert told[1]["input_tokens"] == NEVER_REUSED
    assert told[1]["cache_read_input_tokens"] > 200


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_of_anthropics_that_is_continued_does_not_repeat_its_beginning(app: RunningApp, stream: bool) -> None:
    history: Any = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "The answer is"}]
    with anthropic.Anthropic(base_url=app.url, api_key="none", max_retries=0) as sdk:
        request: Any = {"model": "tiny", "messages": history, "max_tokens": 3, "extra_body": {"temperature": 0}}
        if stream:
            with sdk.messages.stream(**request) as events:
                message = events.get_final_message()
        else:
            message = sdk.messages.create(**request)
    text: str = message.content[0].text  # type: ignore[union-attr]
    assert text
    assert "The answer is" not in text


# -- what the engine by itself refuses --------------------------------------------------------------------------------


def _of(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


UNGRAMMATICAL = {
    "an invalid pattern": _of({"type": "string", "pattern": "^[a-z$"}),
    "a pattern with a lookahead": _of({"type": "string", "pattern": "^(?=a).*$"}),
    "a pattern without anchors": _of({"type": "string", "pattern": "[a-z]+"}),
    "a long least length": _of({"type": "string", "minLength": 3000}),
    "a long greatest length": _of({"type": "string", "maxLength": 100_000}),
    "bounds beyond 64 bits": _of({"type": "integer", "minimum": -1e300, "maximum": 1e300}),
    "a boolean bound": _of({"type": "integer", "minimum": 0, "exclusiveMinimum": True}),
    "bounds that cross": _of({"type": "integer", "minimum": 9, "maximum": 1}),
    "a least count above the greatest": _of(
        {"type": "array", "items": {"type": "string"}, "minItems": 5, "maxItems": 2}
    ),
    "a reference to nothing": _of({"$ref": "#/$defs/Y"}),
    "a reference elsewhere": _of({"$ref": "https://example.com/x.json"}),
    "a reference to the whole": _of({"$ref": "#"}),
    "a reference to itself": {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/X"}},
        "$defs": {"X": _of({"$ref": "#/$defs/X"})},
    },
    "an empty enumeration": _of({"enum": []}),
    "an empty choice": _of({"anyOf": []}),
    "a schema that is true": _of(True),
    "a schema that is false": _of(False),
    "an unknown type": _of({"type": "any"}),
    "no properties": {"type": "object", "properties": None},
    "what validators know": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "propertyNames": {"pattern": "^x"},
        "dependentRequired": {"a": ["b"]},
        "if": {"required": ["a"]},
        "then": {"required": ["b"]},
        **_of({"type": ["string", "null"], "format": "uri", "minLength": 1, "default": None, "not": {"const": "x"}}),
    },
}


@pytest.mark.parametrize("case", UNGRAMMATICAL)
def test_no_schema_keyword_fails_the_request(app: RunningApp, case: str) -> None:
    tools = [{"type": "function", "function": {"name": "t", "parameters": UNGRAMMATICAL[case]}}]
    chat(app, "x", system="", tools=tools, tool_choice="required")


def _called(arguments: Any, **call: Any) -> list[Any]:
    function = {"name": "t", "arguments": arguments}
    return [
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": function, **call}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ]


USER = {"role": "user", "content": "x"}
HISTORIES: dict[str, list[Any]] = {
    "arguments that are no JSON": _called("{"),
    "arguments that are empty": _called(""),
    "arguments that are a list": _called("[1]"),
    "arguments as an object": _called({"a": 1}),
    "a call without a type": _called("{}", type=None),
    "a call without an id": _called("{}", id=None),
    "an assistant without content": [USER, {"role": "assistant"}, USER],
    "content that is null": [{"role": "user", "content": None}],
    "content as parts of other APIs": [{"role": "user", "content": [{"type": "input_text", "text": "x"}, "y"]}],
    "an image": [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}
    ],
    "an unknown part": [{"role": "user", "content": [{"type": "file", "file": {}}, {"type": "text", "text": "x"}]}],
    "fields that are null": [
        {**USER, "name": None},
        {"role": "assistant", "content": "y", "reasoning_content": None},
        USER,
    ],
    "developer messages": [{"role": "developer", "content": "1"}, {"role": "developer", "content": "2"}, USER],
    "a system message in between": [
        USER,
        {"role": "assistant", "content": "y"},
        {"role": "system", "content": "z"},
        USER,
    ],
    "a system message at the end": [*_called("{}"), {"role": "system", "content": "z"}],
}


@pytest.mark.parametrize("case", HISTORIES)
def test_no_message_that_agents_replay_fails_the_request(single: RunningApp, case: str) -> None:
    body = {"model": "tiny", "messages": HISTORIES[case], "max_tokens": 1}
    answer = single.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_late_system_messages_pass_in_the_other_dialects(single: RunningApp, path: str) -> None:
    messages = [{"role": role, "content": "x"} for role in ("system", "user", "assistant", "system", "user")]
    limits = {"max_tokens": 1, "max_output_tokens": 1}
    assert (
        single.http.post(path, json={"model": "tiny", "messages": messages, "input": messages, **limits}).status_code
        == 200
    )


FIELDS: dict[str, dict[str, Any]] = {
    "tools that are no functions": {"tools": [TOOL, {"type": "web_search"}]},
    "a chosen function": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": NAME}}},
    "a choice of Anthropic's": {"tools": [TOOL], "tool_choice": "any"},
    "an unknown choice": {"tools": [TOOL], "tool_choice": "sometimes"},
    "an effort beyond the template's": {"reasoning_effort": "ultra"},
    "what other providers know": {
        "store": True,
        "metadata": {"a": "b"},
        "prediction": {},
        "verbosity": "low",
        "x": None,
    },
    "more output than any context holds": {"max_completion_tokens": 384_000, "stop": ["x"], "temperature": 0},
    "fewer tokens than none": {"max_tokens": -5, "stop": ["a", "e", "i", "o", "u", "<"]},
}


@pytest.mark.parametrize("case", FIELDS)
def test_no_field_that_agents_send_fails_the_request(app: RunningApp, case: str) -> None:
    body = {"model": "tiny", "messages": [USER], "max_tokens": 1, **FIELDS[case]}
    answer = app.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text


def test_a_grammar_that_would_exhaust_the_engine_is_refused(app: RunningApp) -> None:
    for grammar in ("root ::= [a-z]{5,2}", "root ::= [a-z]{3000}", "root ::= (([a-z]{999}){999}){999}"):
        answer = app.http.post("/v1/chat/completions", json={"model": "tiny", "messages": [USER], "grammar": grammar})
        assert answer.status_code == 400
    assert chat(app, "still here") >= 0
