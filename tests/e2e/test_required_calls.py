"""A request that requires a call gets one, from the first token on."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinatod.config import Settings
from ostinatod.installer.engine_build import EngineBuild
from ostinatod.store import ModelStore
from tests.conftest import RunningApp, StartApp
from tests.fakes.memory_store import MemoryStore

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]

FIND = {"name": "find", "parameters": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}}


@pytest.fixture
def app(engine_build: EngineBuild, start_app: StartApp, tmp_path: Path) -> RunningApp:
    record = ModelStore(tmp_path / "db", tmp_path / "hub", "http://127.0.0.1:9").resolve("tiny")
    return start_app(engine_build, Settings(threads=1), MemoryStore(record))


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "find"}}])
def test_a_required_call_begins_at_once(app: RunningApp, choice: object) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [{"type": "function", "function": FIND}],
        "tool_choice": choice,
        "temperature": 0,
        "max_tokens": 60,
    }
    answer = app.http.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]
    assert not answer["message"]["content"]
    assert {call["function"]["name"] for call in answer["message"]["tool_calls"]} == {"find"}
