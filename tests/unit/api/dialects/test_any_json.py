"""Whatever JSON a client sends, it is understood or refused as its own mistake: nothing else is raised."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinatod.api.body import checked_request, engine_body
from ostinatod.api.dialects import anthropic_request, responses_request
from ostinatod.api.sampled_calls import SampledCall, SampledCalls
from ostinatod.errors import ConfigError, RequestError

Fields: TypeAlias = "Mapping[str, Any]"

SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "x", "{", '{"a":1}', "auto"])
TYPES = st.sampled_from(
    [
        *("text", "image", "image_url", "tool_use", "tool_result", "thinking", "document", "search_result", "function"),
        *("message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "local_shell_call"),
        *("input_text", "output_text", "input_image", "refusal", "namespace", "custom", "local_shell", "json_schema"),
        *("enabled", "disabled", "allowed_tools", "base64", "content", "web_search"),
    ]
)
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"])
NAMES = (
    *("content", "text", "name", "id", "input", "arguments", "function", "tool_calls", "tool_call_id", "call_id"),
    *("source", "title", "thinking", "summary", "encrypted_content", "output", "action", "namespace", "tools", "mode"),
    *("parameters", "input_schema", "properties", "items", "anyOf", "$ref", "pattern", "minLength", "enum", "schema"),
    *("format", "effort", "budget_tokens", "image_url", "custom", "is_error", "reasoning_content", "description"),
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {}, optional={"type": TYPES | SCALARS, "role": ROLES | SCALARS, **dict.fromkeys(NAMES, inner)}
    )


JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | objects(inner), max_leaves=8)
REQUESTS = st.fixed_dictionaries(
    {"model": st.just("m"), "messages": st.lists(JSON, max_size=3) | JSON, "input": st.lists(JSON, max_size=3) | JSON},
    optional=dict.fromkeys(
        (
            *("system", "tools", "tool_choice", "thinking", "output_config", "output_format", "metadata", "text"),
            *("stop_sequences", "reasoning", "reasoning_effort", "response_format", "json_schema", "grammar", "stream"),
            *("max_tokens", "max_output_tokens", "chat_template_kwargs", "instructions", "background", "keep_alive"),
        ),
        JSON,
    ),
)


def as_chat(fields: Fields) -> Fields:
    return fields


def as_responses(fields: Fields) -> Fields:
    return responses_request.chat_fields(fields)[0]


@pytest.mark.parametrize("convert", [as_chat, anthropic_request.chat_fields, as_responses])
@given(fields=REQUESTS)
@settings(max_examples=60, deadline=None)
def test_any_request_is_understood_or_refused(convert: Callable[[Fields], Fields], fields: Fields) -> None:
    calls = SampledCalls()
    calls.remember("x", SampledCall('{"a": 1}', "because"))
    before = json.dumps(fields)
    try:
        request = checked_request(calls.restored(convert(fields)), None)
    except (RequestError, ConfigError):
        return
    finally:
        assert json.dumps(fields) == before
    sent = json.loads(engine_body(request, 4096))
    assert all(isinstance(message["role"], str) for message in sent["messages"])
