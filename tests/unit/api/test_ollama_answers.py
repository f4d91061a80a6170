from __future__ import annotations

import json
import re
from typing import Any

from ostinatod.api.ollama_answers import OllamaAnswer, embeddings_of
from ostinatod.errors import EngineDied


def delta(finish_reason: str | None = None, **said: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": said, "finish_reason": finish_reason}]}


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 20, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 8}},
    "timings": {"prompt_ms": 1.5, "predicted_ms": 2.25},
}


def translated(*chunks: dict[str, Any], shape: Any = "chat") -> list[dict[str, Any]]:
    """The lines of a stream with these chunks."""
    answer = OllamaAnswer("m", shape)
    events = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    return [json.loads(line) for line in (answer.events(events + b"data: [DONE]\n\n") + answer.end()).splitlines()]


def test_text_and_thinking_keep_their_order_and_the_last_line_has_the_figures() -> None:
    lines = translated(
        delta(role="assistant", content=None), delta(reasoning_content="hm"), delta(content="yes"), delta("stop"), USAGE
    )
    assert [line["message"] for line in lines] == [
        {"role": "assistant", "content": "", "thinking": "hm"},
        {"role": "assistant", "content": "yes"},
        {"role": "assistant", "content": ""},
    ]
    assert [line["done"] for line in lines] == [False, False, True]
    last = lines[-1]
    assert (last["done_reason"], last["prompt_eval_count"], last["eval_count"]) == ("stop", 20, 5)
    assert (last["prompt_eval_duration"], last["eval_duration"], last["reused_tokens"]) == (1_500_000, 2_250_000, 8)
    assert last["total_duration"] >= last["load_duration"] >= 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", last["created_at"])


def test_length_is_told_apart_from_an_end_by_itself() -> None:
    assert translated(delta(content="x"), delta("length"))[-1]["done_reason"] == "length"


def test_pieces_of_parallel_calls_are_joined_and_told_once_with_arguments_as_objects() -> None:
    lines = translated(
        delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x"'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}]),
        delta(tool_calls=[{"index": 1, "id": "b", "function": {"name": "g", "arguments": ""}}]),
        delta("tool_calls"),
    )
    assert [line["message"].get("tool_calls") for line in lines] == [
        [
            {"id": "a", "function": {"index": 0, "name": "f", "arguments": {"x": 1}}},
            {"id": "b", "function": {"index": 1, "name": "g", "arguments": {}}},
        ],
        None,
    ]
    assert lines[-1]["done_reason"] == "stop"


def test_arguments_that_are_not_an_object_are_kept_as_text() -> None:
    lines = translated(
        delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x'}}]), delta("tool_calls")
    )
    assert lines[0]["message"]["tool_calls"][0]["function"]["arguments"] == {"arguments": '{"x'}


def test_an_error_in_the_stream_is_a_line_that_clients_raise() -> None:
    assert json.loads(OllamaAnswer("m", "chat").error(EngineDied("the engine ended", hint="h"))) == {
        "error": "the engine ended"
    }


def test_a_keepalive_is_a_line_that_says_nothing() -> None:
    line = json.loads(OllamaAnswer("m", "generate").keepalive())
    assert (line["model"], line["response"], line["done"]) == ("m", "", False)


def test_generate_tells_text_of_chats_and_of_completions_alike() -> None:
    completion = {"choices": [{"index": 0, "text": "yes", "finish_reason": None}]}
    for chunk in (completion, delta(content="yes")):
        first, last = translated(chunk, delta("stop"), shape="generate")
        assert (first["response"], last["response"], "message" in first) == ("yes", "", False)


def test_a_whole_answer_has_everything_in_one_object() -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": '{"x":1}'}}
    message = {"content": None, "reasoning_content": "hm", "tool_calls": [call]}
    answer = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": USAGE["usage"]}
    told = json.loads(OllamaAnswer("m", "chat").whole(json.dumps(answer).encode()))
    assert told["message"] == {
        "role": "assistant",
        "content": "",
        "thinking": "hm",
        "tool_calls": [{"id": "a", "function": {"index": 0, "name": "f", "arguments": {"x": 1}}}],
    }
    assert (told["done"], told["done_reason"], told["eval_count"]) == (True, "stop", 5)


def test_logprobs_pass() -> None:
    tokens = [{"token": "yes", "logprob": -0.5, "bytes": [121], "top_logprobs": []}]
    chunk = {"choices": [{"delta": {"content": "yes"}, "logprobs": {"content": tokens}, "finish_reason": "stop"}]}
    assert translated(chunk)[0]["logprobs"] == tokens


def test_embeddings_come_in_the_order_of_inputs_and_are_normalised_after_cutting() -> None:
    answer = {"data": [{"index": 1, "embedding": [0.6, 0.8]}, {"index": 0, "embedding": [3.0, 4.0, 12.0]}]}
    assert embeddings_of(answer, None) == [[3.0, 4.0, 12.0], [0.6, 0.8]]
    # |(3, 4)| = 5
    assert embeddings_of(answer, 2)[0] == [0.6, 0.8]
