"""What a model writes beside its template is answered in every dialect, and written into no log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostinatod.config import Settings
from ostinatod.installer.engine_build import EngineBuild
from ostinatod.store import ModelStore
from tests.conftest import RunningApp, StartApp
from tests.fakes.memory_store import MemoryStore

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

NONCE = "quixotic-nonce-7391"
BROKEN = f'<tool_call>\n{{"name": 5, {NONCE} '
"""The beginning of a call that the template's grammar does not know; the model goes on from there."""
FUNCTION = {"name": "find", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": BROKEN}]

TEMPLATE = """{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
<|im_start|>assistant
{% if message.tool_calls %}<|START_THINKING|>{{ message.reasoning_content }}<|END_THINKING|><|START_ACTION|>[
{% for call in message.tool_calls %}
{"tool_call_id": "0", "tool_name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}
{% endfor %}
]<|END_ACTION|><|im_end|>
{%- else %}<|START_RESPONSE|>{{ message.content }}<|END_RESPONSE|><|im_end|>
{%- endif -%}
{%- else -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif -%}
{%- endfor -%}
<|im_start|>assistant
{% if not enable_thinking -%}<|START_THINKING|><|END_THINKING|>{%- endif -%}
"""
"""Expects thoughts and marks around every answer, such as the bundled model never writes."""

REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": TURNS,
        "tools": [{"type": "function", "function": FUNCTION}],
        "max_tokens": 6,
        "temperature": 0,
    },
    "/v1/messages": {
        "messages": TURNS,
        "tools": [{"name": "find", "input_schema": FUNCTION["parameters"]}],
        "max_tokens": 6,
        "temperature": 0,
    },
    "/v1/responses": {
        "input": TURNS,
        "tools": [{"type": "function", **FUNCTION}],
        "max_output_tokens": 6,
        "temperature": 0,
    },
    "/api/chat": {
        "messages": TURNS,
        "tools": [{"type": "function", "function": FUNCTION}],
        "options": {"num_predict": 6, "temperature": 0},
    },
}


@pytest.fixture
def app(engine_build: EngineBuild, start_app: StartApp, tmp_path: Path) -> RunningApp:
    record = ModelStore(tmp_path / "db", tmp_path / "hub", "http://127.0.0.1:9").resolve("tiny")
    return start_app(engine_build, Settings(threads=1), MemoryStore(record))


def test_text_that_cannot_be_parsed_is_the_answer_and_in_no_log(app: RunningApp, tmp_path: Path) -> None:
    said = {}
    for path, fields in REQUESTS.items():
        body = {"model": "tiny", **fields}
        answer = app.http.post(path, json={**body, "stream": False})
        assert answer.status_code == 200, answer.text
        said[path] = text_of(answer.json())
        streamed = app.http.post(path, json={**body, "stream": True})
        assert streamed.status_code == 200
        assert '"error": {' not in streamed.text
    assert all(said.values()), said
    for file in (tmp_path / "logs").iterdir():
        assert NONCE not in file.read_text(), file


def test_a_stream_that_cannot_be_read_from_its_beginning_says_all_in_the_end(
    engine_build: EngineBuild, start_app: StartApp, tmp_path: Path
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    record = ModelStore(tmp_path / "db", tmp_path / "hub", "http://127.0.0.1:9").resolve("tiny")
    settings = Settings(threads=1, engine_args=("--chat-template-file", str(template)))
    app = start_app(engine_build, settings, MemoryStore(record))
    body = {"model": "tiny", "messages": TURNS[:1], "max_tokens": 6, "temperature": 0}
    said = text_of(app.http.post("/v1/chat/completions", json=body).json())
    assert said
    streamed = app.http.post("/v1/chat/completions", json={**body, "stream": True})
    assert streamed.status_code == 200
    events = streamed.text.removesuffix("\n\ndata: [DONE]\n\n").split("\n\n")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events if event.startswith("data: ")]
    deltas = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    assert "".join(deltas) == said
    for file in (tmp_path / "logs").iterdir():
        assert "unparsed" not in file.read_text(), file


def text_of(answer: dict[str, Any]) -> str:
    """What was said, in any dialect."""
    if "choices" in answer:
        message = answer["choices"][0]["message"]
    elif "output" in answer:
        message = answer["output"][0]
    else:
        message = answer.get("message", answer)
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
