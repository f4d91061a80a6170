"""Clients that people install, against the daemon with the real engine and the bundled model."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest

from ostinatod import locations
from ostinatod.installer.engine_build import EngineBuild
from tests.conftest import RunningDaemon, StartDaemon, eventually

pytestmark = pytest.mark.engine

BEGINS_CALL = 3
"""The bundled model's token `<tool_call>`, which it likes about as much as a question."""
SESSION = json.loads((Path(__file__).parents[1] / "data" / "tau2-retail-session.json").read_text())


@pytest.fixture
def daemon(engine_build: EngineBuild, start_daemon: StartDaemon) -> RunningDaemon:
    return start_daemon(locations.engine_cache_dir())


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[ollama.Client]:
    with ollama.Client(host=daemon.url, trust_env=False) as client:
        yield client


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def test_the_ollama_client_streams_and_the_second_turn_reads_only_what_is_new(client: ollama.Client) -> None:
    turns = said("Tell me about the order W3792453 and everything that is known about it.")
    parts = list(client.chat("tiny", turns, stream=True, options={"num_predict": 12, "seed": 1}))
    last = parts[-1]
    assert (last.done, last.done_reason, last.eval_count) == (True, "length", 12)
    assert last.prompt_eval_duration > 0
    assert last.eval_duration > 0
    assert last.total_duration >= last.prompt_eval_duration + last.eval_duration
    text = "".join(part.message.content or "" for part in parts)
    assert text

    turns += [{"role": "assistant", "content": text}, *said("And now?")]
    again = client.chat("tiny", turns, options={"num_predict": 2})
    reused = json.loads(again.model_dump_json()).get("reused_tokens") or _reused(client, turns)
    # Everything of the first turn but its last token, which had not been read yet.
    assert reused >= last.prompt_eval_count + 10


def _reused(client: ollama.Client, turns: list[dict[str, Any]]) -> int:
    """The client's own type drops fields that Ollama does not have."""
    body = {"model": "tiny", "messages": turns, "stream": False, "options": {"num_predict": 2}}
    return int(client._client.post("/api/chat", json=body, timeout=60).json()["reused_tokens"])


def test_the_ollama_client_makes_the_round_trip_of_a_tool_call(client: ollama.Client) -> None:
    tools = [tool for tool in SESSION["tools"] if tool["function"]["name"] == "find_user_id_by_name_zip"]
    turns = said("My name is Fatima Johnson, and the ZIP code is 78712.")
    options = {"temperature": 0, "num_predict": 90}
    for stream in (True, False):
        answers = client.chat("tiny", turns, tools=tools, options=options, stream=stream)
        messages = [part.message for part in answers] if stream else [answers.message]
        (call,) = [call for message in messages for call in message.tool_calls or ()]
        assert call.function.name == "find_user_id_by_name_zip"
        assert call.function.arguments == {"first_name": "Fatima", "last_name": "Johnson", "zip": "78712"}
    turns += [
        {"role": "assistant", "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_name": call.function.name, "content": "fatima_johnson_7581"},
    ]
    assert client.chat("tiny", turns, tools=tools, options={"num_predict": 4}).done


def test_the_ollama_client_gets_the_json_that_it_asks_for(client: ollama.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"const": "yes"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    answer = client.generate("tiny", "Is it so?", format=schema, options={"num_predict": 60})
    assert json.loads(answer.response) == {"ok": "yes"}


def test_the_ollama_client_is_told_of_an_overflow_and_loads_once(
    engine_build: EngineBuild, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon(locations.engine_cache_dir(), OSTINATO_CONTEXT="512")
    with ollama.Client(host=daemon.url, trust_env=False) as client:
        client.generate("tiny", keep_alive="10m")
        for num_ctx in (256, 512, 4096):
            with pytest.raises(ollama.ResponseError, match="maximum context length is 512 tokens") as refused:
                list(client.chat("tiny", said("word " * 900), stream=True, options={"num_ctx": num_ctx}))
            assert refused.value.status_code == 400
        assert client.ps().models[0].context_length == 512
    assert (daemon.home / "output").read_text().count("engine_started") == 1


def test_llm_finds_the_model_and_chats(daemon: RunningDaemon, tmp_path: Path) -> None:
    for package in ("llm", "llm_ollama"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install llm llm-ollama")
    environment = {**os.environ, "OLLAMA_HOST": daemon.url, "LLM_USER_PATH": str(tmp_path), "NO_PROXY": "*"}

    def llm(*arguments: str, fails: bool = False) -> str:
        command = [sys.executable, "-m", "llm", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
        assert (done.returncode != 0) == fails, done.stderr
        return done.stderr if fails else done.stdout

    short = ("-o", "num_predict", "8")
    assert "Ollama: ollama/tiny" in llm("models")
    assert llm("-m", "ollama/tiny", "Hello", *short, "--no-stream").strip()
    assert llm("-m", "ollama/tiny", "Tell me about the order W3792453.", *short).strip()
    assert llm("-c", "And now?", *short).strip()
    # Requests are logged off their path, a moment after they have ended.
    latest, _, first = eventually(
        lambda: (told := daemon.http.get("/ostinato/requests").json()["requests"])[2:] and told, "all are logged"
    )
    assert latest["kind"] == "after_user"
    assert latest["reused_tokens"] >= first["new_tokens"] + first["reused_tokens"]
    assert "maximum context length is 8192 tokens" in llm("-m", "ollama/tiny", "word " * 9000, fails=True)


def test_llm_runs_the_tool_that_the_model_calls(
    engine_build: EngineBuild, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    for package in ("llm", "llm_ollama"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install llm llm-ollama")
    calls = f"--logit-bias {BEGINS_CALL}+4"
    daemon = start_daemon(locations.engine_cache_dir(), OSTINATO_ENGINE_ARGS=calls, OSTINATO_THREADS="1")
    name = "find_user_id_by_name_zip"
    (described,) = [tool["function"]["description"] for tool in SESSION["tools"] if tool["function"]["name"] == name]
    tool = tmp_path / "tool.py"
    tool.write_text(
        f"def {name}(first_name: str, last_name: str, zip: str) -> str:\n"
        f'    """{described}"""\n'
        '    return "fatima_johnson_7581"\n'
    )
    environment = {**os.environ, "OLLAMA_HOST": daemon.url, "LLM_USER_PATH": str(tmp_path), "NO_PROXY": "*"}
    asked = "My name is Fatima Johnson, and the ZIP code is 78712."
    options = ("-o", "num_predict", "90", "-o", "temperature", "0", "--chain-limit", "2")
    command = [sys.executable, "-m", "llm", "-m", "ollama/tiny", "--functions", str(tool), "--td", asked, *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert f"{name}({{'first_name': 'Fatima', 'last_name': 'Johnson', 'zip': '78712'}})" in done.stderr
    assert "fatima_johnson_7581" in done.stderr


@pytest.fixture
def openai_sdk(daemon: RunningDaemon) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic_sdk(daemon: RunningDaemon) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=daemon.url, api_key="none", max_retries=0) as client:
        yield client


def test_each_sdk_finds_the_model_and_how_much_fits(
    client: ollama.Client, openai_sdk: openai.OpenAI, anthropic_sdk: anthropic.Anthropic
) -> None:
    assert [model.model for model in client.list().models] == ["tiny"]
    shown = client.show("tiny")
    assert shown.modelinfo is not None
    assert shown.modelinfo["qwen3moe.context_length"] == 8192
    assert "tools" in (shown.capabilities or ())
    (told,) = openai_sdk.models.list()
    assert (told.id, told.model_extra and told.model_extra["context_window"]) == ("tiny", 8192)
    assert openai_sdk.models.retrieve("tiny") == told
    (found,) = anthropic_sdk.models.list()
    assert (found.id, anthropic_sdk.models.retrieve("tiny").id) == ("tiny", "tiny")


def test_an_overflow_is_told_to_each_sdk_in_its_own_words(
    daemon: RunningDaemon, openai_sdk: openai.OpenAI, anthropic_sdk: anthropic.Anthropic
) -> None:
    # A stream that has to wait for the model begins without it, and an error inside a stream has no status.
    assert daemon.http.post("/ostinato/load", json={"model": "tiny"}).is_success
    told: Any = said("word " * 9000)
    for stream in (True, False):
        with pytest.raises(openai.BadRequestError, match="exceeds the available context size") as refused:
            openai_sdk.chat.completions.create(model="tiny", messages=told, stream=stream)
        assert refused.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError, match="exceeds the available context size") as refused:
            openai_sdk.responses.create(model="tiny", input=told, stream=stream)
        assert refused.value.code == "context_length_exceeded"
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 8192 maximum"):
            anthropic_sdk.messages.create(model="tiny", max_tokens=10, messages=told, stream=stream)


@pytest.fixture
def endless(engine_build: EngineBuild, start_daemon: StartDaemon) -> RunningDaemon:
    """Its answers end with their context, after some 8,000 tokens, whatever the dialect can say about that."""
    return start_daemon(locations.engine_cache_dir(), OSTINATO_ENGINE_ARGS="--ignore-eos")


def test_a_stream_that_a_client_closes_frees_the_engine(endless: RunningDaemon) -> None:
    told: Any = said("Count.")
    with (
        openai.OpenAI(base_url=f"{endless.url}/v1", api_key="none", max_retries=0) as openai_sdk,
        anthropic.Anthropic(base_url=endless.url, api_key="none", max_retries=0) as anthropic_sdk,
        ollama.Client(host=endless.url, trust_env=False) as client,
    ):
        streams: list[Any] = [
            openai_sdk.chat.completions.create(model="tiny", messages=told, stream=True),
            openai_sdk.responses.create(model="tiny", input="Count.", stream=True),
            anthropic_sdk.messages.create(model="tiny", max_tokens=8000, messages=told, stream=True),
            client.chat("tiny", told, stream=True, options={"num_predict": 8000}),
        ]
        for stream in streams:
            next(iter(stream))
        assert endless.http.get("/ostinato/status").json()["models"][0]["in_flight"] == len(streams)
        for stream in streams:
            stream.close()

    def statuses() -> list[str]:
        return [request["status"] for request in endless.http.get("/ostinato/requests").json()["requests"]]

    # Requests are logged off their path, a moment after they have ended.
    eventually(lambda: len(statuses()) == len(streams), "all requests have ended")
    assert statuses() == ["cancelled"] * len(streams)
    assert endless.http.get("/ostinato/status").json()["models"][0]["in_flight"] == 0
