"""The exact text of calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ostinatod.api import sampled_calls
from ostinatod.api.sampled_calls import CallsReader, SampledCall, SampledCalls

ODD = '{"b" :1,  "a":"é"}'


def replayed(arguments: Any, call_id: str = "c", **message: Any) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"messages": [{"role": "assistant", "content": "", "tool_calls": [call], **message}]}


def arguments_of(fields: Any) -> Any:
    return fields["messages"][0]["tool_calls"][0]["function"]["arguments"]


@pytest.fixture
def calls() -> SampledCalls:
    known = SampledCalls()
    known.remember("c", SampledCall(ODD, "because"))
    return known


@pytest.mark.parametrize("arguments", [ODD, '{"a":"é","b":1}', '{"b": 1, "a": "\\u00e9"}', {"a": "é", "b": 1}])
def test_arguments_that_mean_the_same_become_what_was_sampled(calls: SampledCalls, arguments: Any) -> None:
    assert arguments_of(calls.restored(replayed(arguments))) == ODD


@pytest.mark.parametrize("arguments", ['{"b": 2, "a": "é"}', "{", "", None])
def test_arguments_that_were_edited_stay(calls: SampledCalls, arguments: Any) -> None:
    assert arguments_of(calls.restored(replayed(arguments))) == arguments


def test_reasoning_that_the_client_left_out_is_put_back_and_its_own_is_kept(calls: SampledCalls) -> None:
    assert calls.restored(replayed(ODD))["messages"][0]["reasoning_content"] == "because"
    kept = replayed(ODD, reasoning_content="mine")
    assert calls.restored(kept) is kept


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"messages": "x"},
        {"messages": ["x", {"role": "user", "tool_calls": [1, {}, {"id": "c"}]}]},
        replayed("{}", "d"),
    ],
)
def test_what_is_not_known_is_the_same_object(calls: SampledCalls, fields: Any) -> None:
    assert calls.restored(fields) is fields


def test_the_oldest_calls_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_calls, "MAX_CHARS", 10)
    known = SampledCalls()
    for call_id in "abc":
        known.remember(call_id, SampledCall('{"x":1}', ""))
    # 7 characters each: only one fits into 10.
    again = '{"x": 1}'
    assert [arguments_of(known.restored(replayed(again, call_id))) for call_id in "abc"] == [again, again, '{"x":1}']


def event(delta: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"


def test_a_streamed_call_is_read_out_of_its_pieces() -> None:
    known = SampledCalls()
    reader = CallsReader(known)
    reader.events(event({"reasoning_content": "be"}) + event({"reasoning_content": "cause"}))
    reader.events(event({"content": "no call"}))
    reader.events(event({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ODD[:5]}}]}))
    reader.events(event({"tool_calls": [{"index": 0, "function": {"arguments": ODD[5:]}}]}) + b"data: [DONE]\n\n")
    unfinished = replayed('{"a":"é","b":1}')
    assert known.restored(unfinished) is unfinished
    reader.end()
    restored = known.restored(unfinished)
    assert (arguments_of(restored), restored["messages"][0]["reasoning_content"]) == (ODD, "because")
