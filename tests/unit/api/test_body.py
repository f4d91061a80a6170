"""What changes in a request on its way to the engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinatod.api.body import engine_body, parse_request
from ostinatod.config import FOREVER_S
from ostinatod.errors import ConfigError, RequestError

CONTEXT = 4096


def sent(**fields: Any) -> dict[str, Any]:
    """What the engine receives of a request with these fields."""
    raw = json.dumps({"model": "m", **fields}).encode()
    received: dict[str, Any] = json.loads(engine_body(parse_request(raw, sees_images=True), CONTEXT))
    return received


@given(
    st.dictionaries(st.text(), st.none() | st.booleans() | st.text() | st.floats(allow_nan=False, allow_infinity=False))
)
def test_unknown_fields_pass_in_the_original_bytes(fields: dict[str, Any]) -> None:
    raw = json.dumps({**{f"x_{key}": value for key, value in fields.items()}, "model": "m"}, indent=1).encode()
    assert engine_body(parse_request(raw), CONTEXT) is raw


@given(st.sampled_from(["max_tokens", "max_completion_tokens", "n_predict"]), st.integers())
def test_the_output_limit_is_always_within_the_context(name: str, value: int) -> None:
    received = sent(**{name: value})[name]
    assert -1 <= received <= CONTEXT
    assert received == value or not -1 <= value <= CONTEXT


@given(st.sampled_from(["top_k", "n_keep", "n_discard", "n_probs", "repeat_last_n", "seed"]), st.integers())
def test_integers_fit_the_engines_types(name: str, value: int) -> None:
    received = sent(**{name: value})[name]
    assert -1 <= received < 2**32


@pytest.mark.parametrize("value", [True, None, "auto", {"a": 1}, [1]])
def test_values_of_other_types_are_the_engines_to_judge(value: object) -> None:
    assert sent(top_k=value, logprobs=value) == {"model": "m", "top_k": value, "logprobs": value}


def test_order_and_text_survive_a_change() -> None:
    tools = [{"z": 1, "a": {"é": "ü", "b": 1.5}}]
    raw = json.dumps({"tools": tools, "model": "m", "max_tokens": 10**9, "id_slot": 3}).encode()
    changed = engine_body(parse_request(raw), CONTEXT)
    assert changed.decode() == '{"tools":[{"z":1,"a":{"é":"ü","b":1.5}}],"model":"m","max_tokens":4096}'


@pytest.mark.parametrize(("value", "seconds"), [("5m", 300.0), (0, 0.0), (-1, FOREVER_S), (None, None)])
def test_keep_alive_is_read(value: object, seconds: float | None) -> None:
    assert parse_request(json.dumps({"model": "m", "keep_alive": value}).encode()).keep_alive_s == seconds


@pytest.mark.parametrize("fields", [{"n": 2}, {"n_cmpl": 0}, {"best_of": 3}])
def test_several_answers_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="one answer"):
        sent(**fields)


@pytest.mark.parametrize("keep_alive", ["a while", True, [], {}])
def test_a_malformed_keep_alive_is_named(keep_alive: object) -> None:
    with pytest.raises(ConfigError, match="duration"):
        sent(keep_alive=keep_alive)


@pytest.mark.parametrize(
    ("text", "told"), [("cut \\ud83d", "cut ?"), ("\\ud83d\\ude00", "\U0001f600"), ("\\ude00", "?")]
)
def test_halves_of_characters_are_replaced(text: str, told: str) -> None:
    raw = b'{"model":"m","x":"' + text.encode() + b'"}'
    request = parse_request(raw)
    assert request.fields["x"] == told
    assert json.loads(engine_body(request, CONTEXT))["x"] == told


def test_inline_images_pass() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "what?"}, part]}]
    assert sent(messages=messages)["messages"] == messages
