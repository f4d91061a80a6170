"""What is added to an answer that the engine made."""

from __future__ import annotations

import json

from ostinatod.api.answer import ChatAnswer


def test_a_whole_chat_answer_has_every_field_that_the_schema_requires() -> None:
    told = {"id": "c", "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}}], "usage": {}}
    answer = json.loads(ChatAnswer().whole(json.dumps(told).encode()))
    assert answer["choices"][0]["logprobs"] is None
    said = {"role": "assistant", "content": "hi", "refusal": None, "annotations": []}
    assert answer["choices"][0]["message"] == said
    assert (answer["id"], answer["usage"]) == ("c", {})


def test_what_the_engine_says_of_logprobs_is_kept() -> None:
    logprobs = {"content": []}
    told = {"choices": [{"logprobs": logprobs, "message": {"refusal": "no", "annotations": [1]}}]}
    (choice,) = json.loads(ChatAnswer().whole(json.dumps(told).encode()))["choices"]
    assert choice == {"logprobs": logprobs, "message": {"refusal": "no", "annotations": [1]}}
