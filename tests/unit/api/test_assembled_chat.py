"""A streamed chat completion, put together, is the whole one."""

from __future__ import annotations

import json
from typing import Any

from ostinatod.api.assembled_chat import AssembledChat


def chunk(delta: dict[str, Any], **fields: Any) -> bytes:
    choice = {
        "index": 0,
        "delta": delta,
        "finish_reason": fields.pop("finish_reason", None),
        **fields.pop("choice", {}),
    }
    told = {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **fields}
    return b"data: " + json.dumps(told).encode() + b"\n\n"


def call(**fields: Any) -> dict[str, Any]:
    return {"tool_calls": [fields]}


def assembled(*events: bytes) -> dict[str, Any]:
    chat = AssembledChat("m")
    for event in events:
        chat.events(event)
    told: dict[str, Any] = json.loads(chat.content())
    return told


def test_text_reasoning_figures_and_the_reason_of_the_end_are_joined() -> None:
    usage = {"prompt_tokens": 3}
    told = assembled(
        chunk({"role": "assistant", "content": None}),
        chunk({"reasoning_content": "Let me "}) + chunk({"reasoning_content": "think."}),
        chunk({"content": "A"}, choice={"logprobs": {"content": [1]}}),
        chunk({"content": "B"}, choice={"logprobs": {"content": [2]}}),
        chunk({}, finish_reason="length", usage=usage, timings={"prompt_n": 1}),
        b"data: [DONE]\n\n",
    )
    choice = told["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "AB", "reasoning_content": "Let me think."}
    assert (choice["finish_reason"], choice["logprobs"]) == ("length", {"content": [1, 2]})
    assert (told["object"], told["id"], told["usage"], told["timings"]) == (
        "chat.completion",
        "x",
        usage,
        {"prompt_n": 1},
    )


def test_calls_are_joined_by_their_index() -> None:
    told = assembled(
        chunk(call(index=0, id="c-1", type="function", function={"name": "find", "arguments": '{"a": '})),
        chunk(call(index=1, id="c-2", type="function", function={"name": "look", "arguments": ""})),
        chunk(call(index=0, function={"arguments": "1}"})),
        chunk(call(index=1, function={"arguments": "{}"}), finish_reason="tool_calls"),
    )
    message = told["choices"][0]["message"]
    assert message["content"] is None
    assert [(made["id"], made["function"]) for made in message["tool_calls"]] == [
        ("c-1", {"name": "find", "arguments": '{"a": 1}'}),
        ("c-2", {"name": "look", "arguments": "{}"}),
    ]


def test_nothing_read_is_an_empty_answer() -> None:
    told = assembled()
    assert told["choices"][0]["message"] == {"role": "assistant", "content": ""}
    assert told["choices"][0]["finish_reason"] == "stop"
