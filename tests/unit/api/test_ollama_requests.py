from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from ostinatod.api.ollama_requests import ChatRequest, GenerateRequest, chat_fields, generate_fields
from ostinatod.errors import RequestError

CONTEXT_TOKENS = 4096


def chat(**fields: Any) -> dict[str, Any]:
    wanted = ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields})
    return chat_fields(wanted, CONTEXT_TOKENS)


def generate(*, as_chat: bool = True, **fields: Any) -> dict[str, Any]:
    wanted = GenerateRequest.model_validate({"model": "m", "prompt": "hi", **fields})
    return generate_fields(wanted, CONTEXT_TOKENS, as_chat=as_chat)


def test_a_plain_chat_streams_with_usage() -> None:
    assert chat() == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert chat(stream=None) == chat()
    assert chat(stream=False) == {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": False}


def test_sampling_options_keep_their_values_under_the_engines_names() -> None:
    options = {
        "temperature": 0.5,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.1,
        "typical_p": 0.7,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "mirostat": 1,
        "mirostat_tau": 5.0,
        "seed": 7,
        "mirostat_eta": 0.1,
        "repeat_last_n": 32,
        "stop": ["a", "b"],
    }
    fields = chat(options={**options, "num_predict": 12})
    assert {name: fields[name] for name in options} == options
    assert fields["max_tokens"] == 12


@pytest.mark.parametrize("num_predict", [-1, -2])
def test_a_negative_num_predict_sets_no_limit(num_predict: int) -> None:
    assert "max_tokens" not in chat(options={"num_predict": num_predict})


def test_options_about_loading_have_no_effect() -> None:
    loading = {"num_ctx": 9002, "num_gpu": 99, "num_thread": 4, "num_batch": 512, "use_mmap": False, "numa": True}
    assert chat(options=loading) == chat()


def test_repeat_last_n_minus_one_is_the_whole_context() -> None:
    assert chat(options={"repeat_last_n": -1})["repeat_last_n"] == CONTEXT_TOKENS


@pytest.mark.parametrize("options", [{"temperature": "hot"}, {"top_k": 1.5}, {"stop": 3}, {"seed": []}])
def test_an_option_of_the_wrong_type_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        chat(options=options)


def test_format_is_json_or_a_schema() -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    assert chat(format="json")["response_format"] == {"type": "json_object"}
    assert chat(format=schema)["response_format"]["json_schema"]["schema"] == schema
    assert "response_format" not in chat(format="")
    with pytest.raises(RequestError, match="format: expected json or a JSON schema, found 'yaml'"):
        chat(format="yaml")


@pytest.mark.parametrize(
    ("think", "fields"),
    [
        (True, {"chat_template_kwargs": {"enable_thinking": True}}),
        (False, {"chat_template_kwargs": {"enable_thinking": False}}),
        ("high", {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "high"}),
    ],
)
def test_think_reaches_the_chat_template(think: Any, fields: dict[str, Any]) -> None:
    assert chat(think=think) == {**chat(), **fields}


def test_calls_without_ids_are_numbered_and_their_results_find_them_by_name() -> None:
    messages = [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "thinking": "hm",
            "tool_calls": [
                {"function": {"name": "rain", "arguments": {"city": "Köln"}}},
                {"function": {"name": "wind", "arguments": {}}},
            ],
        },
        {"role": "tool", "tool_name": "wind", "content": "calm"},
        {"role": "tool", "content": "dry"},
    ]
    _, assistant, wind, rain = chat(messages=messages)["messages"]
    assert assistant["reasoning_content"] == "hm"
    assert [call["id"] for call in assistant["tool_calls"]] == ["call_1_0", "call_1_1"]
    assert json.loads(assistant["tool_calls"][0]["function"]["arguments"]) == {"city": "Köln"}
    assert (wind["tool_call_id"], rain["tool_call_id"]) == ("call_1_1", "call_1_0")


def test_ids_and_argument_text_that_a_client_keeps_are_kept() -> None:
    call = {"id": "abc", "function": {"name": "f", "arguments": '{ "x":1 }'}}
    messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "abc", "content": "1"}]
    assistant, result = chat(messages=messages)["messages"]
    assert assistant["tool_calls"][0]["function"]["arguments"] == '{ "x":1 }'
    assert assistant["tool_calls"][0]["id"] == result["tool_call_id"] == "abc"


def test_images_are_refused() -> None:
    with pytest.raises(RequestError, match="images are not supported"):
        chat(messages=[{"role": "user", "content": "what is it?", "images": ["aGk="]}])
    with pytest.raises(RequestError, match="images are not supported"):
        generate(images=["aGk="])


def test_generate_is_one_turn_of_a_chat() -> None:
    assert generate(system="be brief")["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]
    assert generate(think=False)["chat_template_kwargs"] == {"enable_thinking": False}


def test_generate_without_a_template_is_the_text_itself() -> None:
    assert generate(as_chat=False, raw=True, system="ignored as asked")["prompt"] == "hi"
    assert generate(as_chat=False, system="S")["prompt"] == "S\n\nhi"
    assert generate(as_chat=False, logprobs=True, top_logprobs=3)["logprobs"] == 3


@pytest.mark.parametrize("name", ["suffix", "context", "template"])
def test_what_would_change_the_answer_is_refused_rather_than_ignored(name: str) -> None:
    with pytest.raises(RequestError, match=name):
        generate(**{name: [1] if name == "context" else "x"})
    assert generate(**{name: [] if name == "context" else ""}) == generate()
