"""What is read out of the engine's events before they are passed on."""

from __future__ import annotations

import json

import pytest

from ostinatod.api.answer import ending_events, has_output, is_unreadable_output, split_error
from ostinatod.client_streams import DONE, sse_data

PROGRESS = b'data: {"choices":[],"prompt_progress":{"total":9,"cache":0,"processed":4}}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":"say \\"prompt_progress\\""}}]}\n\n'
ERROR = b'data: {"error":{"code":500,"message":"The model produced output that does not match x","type":"s"}}\n\n'


@pytest.mark.parametrize(("events", "told"), [(PROGRESS, False), (TOKEN, True), (PROGRESS + TOKEN, True)])
def test_progress_with_the_prompt_is_no_output(events: bytes, told: bool) -> None:
    assert has_output(events) is told


@pytest.mark.parametrize("before", [b"", TOKEN, PROGRESS + TOKEN])
def test_an_error_is_split_from_what_comes_before_it(before: bytes) -> None:
    events, error = split_error(before + ERROR, param="messages")
    assert events == before
    assert error is not None
    assert is_unreadable_output(error)


def test_text_about_errors_is_no_error() -> None:
    text = json.dumps({"choices": [{"delta": {"content": '\n\ndata: {"error": 1}'}}]})
    events = f"data: {text}\n\n".encode()
    assert split_error(events, param="messages") == (events, None)


def test_an_answer_is_ended_as_the_engine_would() -> None:
    chunk, done = sse_data([ending_events("m")])
    assert json.loads(chunk)["choices"][0]["finish_reason"] == "stop"
    assert done == DONE
