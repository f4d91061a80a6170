"""A request that requires a call gets one, from the first token on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ostinatod.config import Settings
from ostinatod.installer.engine_build import EngineBuild
from ostinatod.store import ModelStore
from tests.conftest import RunningApp, StartApp
from tests.e2e.conftest import CompileProgram
from tests.fakes.memory_store import MemoryStore

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]

FIND = {"name": "find", "parameters": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}}

CANNOT_CALL = {
    "HuggingFaceTB-SmolLM3-3B",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "google-gemma-2-2b-it",
    "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}
"""Templates in which the engine finds no form of a call, so that none can be required."""
SHOWS_NO_CALL = {"CohereForAI-c4ai-command-r-plus-tool_use", "LFM2-8B-A1B", "LFM2.5-Instruct"}
"""Templates that leave out a call which is given as such, or write what stands before it differently."""


@pytest.fixture(scope="module")
def told(engine_build: EngineBuild, pinned_source: Path, compile_program: CompileProgram) -> list[dict[str, Any]]:
    """What the engine's grammars let pass, for each template of the pinned source and each way to think."""
    libraries = engine_build.library_directory
    includes = (f"-I{pinned_source / folder}" for folder in ("common", "include", "src", "vendor"))
    linked = (f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lllama-common", "-lllama", "-lggml-base")
    program = compile_program("required_calls.cpp", *includes, "-Wno-unused-function", *linked)
    done = subprocess.run(
        [program, pinned_source / "models" / "templates"], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_no_template_lets_plain_text_pass_where_a_call_is_required(told: list[dict[str, Any]]) -> None:
    assert {case["template"] for case in told if not case["has_grammar"]} == CANNOT_CALL
    answered = [case for case in told if "texts" in case]
    assert len(answered) == 2 * (len({case["template"] for case in told}) - len(CANNOT_CALL)) > 100
    assert [case for case in answered if case["texts"]] == []


def test_the_call_that_a_template_would_write_is_read_and_no_byte_of_it_passes_for_text(
    told: list[dict[str, Any]],
) -> None:
    """Nor is a part of it text for a moment, wherever a stream is cut, where the model was free to call."""
    answered = [case for case in told if "texts" in case]
    assert {case["template"] for case in answered if not case["writes_calls"]} == SHOWS_NO_CALL
    for case in answered:
        if case["writes_calls"]:
            assert case["read"], case
            assert case["read"] == [{"calls": 1, "content": "", "leaks": []}] * len(case["read"]), case


def test_the_beginning_of_an_answer_that_a_template_writes_itself_passes(told: list[dict[str, Any]]) -> None:
    """Also where thoughts stay in the text, so that a begun thought is text before a call."""
    assert [case for case in told if case["has_grammar"] and not case["takes_prompt"]] == []


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


def test_an_answer_that_the_client_has_begun_is_gone_on_with_where_a_call_is_required(app: RunningApp) -> None:
    begun = "Let me look it up."
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Find 1."}, {"role": "assistant", "content": begun}],
        "tools": [{"type": "function", "function": FIND}],
        "tool_choice": "required",
        "temperature": 0,
        "max_tokens": 20,
    }
    answer = app.http.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]
    assert answer["message"]["content"].startswith(begun)
