from __future__ import annotations

from typing import Any

import pytest

from ostinatod.api import limits
from ostinatod.api.limits import check_limits
from ostinatod.errors import RequestError


def nested(depth: int) -> dict[str, Any]:
    """A JSON schema whose value lies `depth` objects deep."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"properties": schema}
    return schema


def test_what_agents_send_passes() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": nested(30)}}
    fields = {"messages": [{"role": "user", "content": "x"}] * 3000, "tools": [tool] * 300, "stop": ["a"] * 16}
    check_limits({**fields, "prompt": [1] * 100_000, "response_format": {"type": "json_object"}})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": [0] * (limits.MAX_MESSAGES + 1)}, "messages: expected at most 10000 messages, found 10001"),
        ({"tools": [0] * (limits.MAX_TOOLS + 1)}, "tools: expected at most 1024"),
        ({"input": ["x"] * (limits.MAX_INPUTS + 1)}, "input: expected at most"),
        ({"prompt": ["x"] * (limits.MAX_PROMPTS + 1)}, "prompt: expected at most 64 prompts"),
        ({"stop": ["x"] * (limits.MAX_STOPS + 1)}, "stop: expected at most 256 stop sequences"),
        ({"logit_bias": dict.fromkeys(range(limits.MAX_BIASES + 1), 0)}, "logit_bias: expected at most"),
        ({"grammar": "x" * (limits.MAX_GRAMMAR_CHARS + 1)}, "grammar: expected at most 262144 characters"),
        ({"tools": [nested(limits.MAX_SCHEMA_DEPTH + 1)]}, "tools: nested deeper than 64 levels"),
        ({"response_format": nested(5000)}, "response_format: nested deeper"),
        ({"json_schema": {"enum": [0] * limits.MAX_SCHEMA_NODES}}, "json_schema: expected at most 100000 values"),
    ],
)
def test_what_is_beyond_a_limit_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        check_limits(fields)


def test_a_schema_that_doubles_with_each_level_is_cut_off_early() -> None:
    schema: Any = {}
    for _ in range(60):
        # The same object twice: 2^60 values for whoever walks it to its end.
        schema = [schema, schema]
    with pytest.raises(RequestError, match="expected at most"):
        check_limits({"tools": schema})
