"""The daemon as a process with the real engine and the bundled model, through the clients that people use."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from ostinatod import locations
from ostinatod.config import Settings
from ostinatod.engine.arguments import engine_arguments, engine_environment
from ostinatod.installer.engine_build import EngineBuild
from ostinatod.store import ModelStore
from tests.conftest import RunningDaemon, StartDaemon, asking, eventually, processes_in_group

pytestmark = pytest.mark.engine

SESSION = json.loads((Path(__file__).parents[1] / "data" / "tau2-retail-session.json").read_text())


@pytest.fixture
def daemon(engine_build: EngineBuild, start_daemon: StartDaemon) -> RunningDaemon:
    return start_daemon(locations.engine_cache_dir())


@pytest.fixture
def sdk(daemon: RunningDaemon) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def messages(*turns: str) -> Any:
    roles = ("user", "assistant")
    return [{"role": roles[number % 2], "content": turn} for number, turn in enumerate(turns)]


def engine_pid(daemon: RunningDaemon) -> int:
    return int(daemon.http.get("/ostinato/status").json()["models"][0]["pid"])


def slots_at_work(daemon: RunningDaemon) -> int:
    """Slots that the engine itself reports as processing."""
    sockets = list((daemon.home / "run").glob("*.sock"))
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(sockets[0])), timeout=60) as engine:
        return sum(slot["is_processing"] for slot in engine.get("http://engine/slots").json())


def test_the_engine_accepts_every_argument(engine_build: EngineBuild, tmp_path: Path) -> None:
    record = ModelStore(tmp_path / "db", tmp_path / "hub", "http://127.0.0.1:9").resolve("tiny")
    arguments = engine_arguments(Settings(threads=2), record, tmp_path / "engine.sock")
    environment = engine_environment(os.environ, engine_build.library_directory)
    done = subprocess.run(
        [engine_build.server, *arguments, "--version"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_chat_streamed_and_whole_with_usage_and_reuse_of_the_first_turn(
    daemon: RunningDaemon, sdk: openai.OpenAI
) -> None:
    question = "Tell me about the order W3792453 and everything that is known about it."
    whole = sdk.chat.completions.create(model="tiny", messages=messages(question), max_tokens=12)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12
    assert whole.usage.prompt_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens == 0

    answer = whole.choices[0].message.content or ""
    chunks = list(
        sdk.chat.completions.create(
            model="tiny",
            messages=messages(question, answer, "And now?"),
            max_completion_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[-1].choices == []
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens <= 8
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens_details.cached_tokens or 0) > 0
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])


def test_a_tool_call_makes_the_round_trip(sdk: openai.OpenAI) -> None:
    tools: Any = [tool for tool in SESSION["tools"] if tool["function"]["name"] == "find_user_id_by_name_zip"]
    history: Any = messages("My name is Fatima Johnson, and the ZIP code is 78712.")
    asked = sdk.chat.completions.create(model="tiny", messages=history, tools=tools, temperature=0, max_tokens=90)
    choice = asked.choices[0]
    assert choice.finish_reason == "tool_calls"
    call: Any = (choice.message.tool_calls or [])[0]
    assert call.function.name == "find_user_id_by_name_zip"
    assert json.loads(call.function.arguments) == {"first_name": "Fatima", "last_name": "Johnson", "zip": "78712"}
    history += [
        {"role": "assistant", "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "fatima_johnson_7581"},
    ]
    told = sdk.chat.completions.create(model="tiny", messages=history, tools=tools, max_tokens=8)
    assert told.usage is not None
    assert told.usage.prompt_tokens_details is not None
    # The tool's result comes after everything that the first turn read and wrote.
    assert (told.usage.prompt_tokens_details.cached_tokens or 0) >= asked.usage.prompt_tokens  # type: ignore[union-attr]


def test_a_json_schema_is_followed(sdk: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    answer = sdk.chat.completions.create(
        model="tiny",
        messages=messages("Is it so?"),
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}},
        max_tokens=60,
    )
    assert (answer.choices[0].message.content or "").replace(" ", "").replace("\n", "") in (
        '{"ok":true}',
        '{"ok":false}',
    )


def test_a_model_without_embeddings_says_so(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="does not make embeddings"):
        sdk.embeddings.create(model="tiny", input="x")


def test_an_overlong_prompt_is_refused_with_the_numbers(engine_build: EngineBuild, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(locations.engine_cache_dir(), OSTINATO_CONTEXT="512")
    daemon.http.post("/ostinato/load", json={"model": "tiny"})
    body = {"model": "tiny", "messages": messages("word " * 900), "stream": True}
    answer = daemon.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["n_ctx"] == 512
    assert error["n_prompt_tokens"] > 900
    assert daemon.http.get("/v1/models/tiny").json()["max_model_len"] == 512


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_the_engine_writes_frees_the_slot(daemon: RunningDaemon, stream: bool) -> None:
    fields = {"model": "tiny", "messages": messages("Count."), "max_tokens": 60000, "ignore_eos": True}
    daemon.http.post("/ostinato/load", json={"model": "tiny"})
    with asking(daemon.url, "/v1/chat/completions", {**fields, "stream": stream}):
        eventually(lambda: slots_at_work(daemon) == 1, "the engine works")
    # Asked seldom: the engine looks for closed connections only after a second without any result, ours included.
    eventually(lambda: slots_at_work(daemon) == 0, "the engine stops", 8, every_s=1.5)


def test_a_killed_engine_ends_the_stream_with_an_error_and_is_replaced(
    daemon: RunningDaemon, sdk: openai.OpenAI
) -> None:
    stream = sdk.chat.completions.create(
        model="tiny", messages=messages("Count."), stream=True, max_tokens=60000, extra_body={"ignore_eos": True}
    )
    chunks = iter(stream)
    next(chunks)
    killed = engine_pid(daemon)
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(openai.APIError, match="SIGKILL"):
        list(chunks)
    assert sdk.chat.completions.create(model="tiny", messages=messages("Hi"), max_tokens=2).choices
    assert engine_pid(daemon) != killed


def test_a_killed_daemon_leaves_no_engine(daemon: RunningDaemon) -> None:
    daemon.http.post("/ostinato/load", json={"model": "tiny"})
    group = engine_pid(daemon)
    daemon.process.kill()
    daemon.process.wait()
    eventually(lambda: not processes_in_group(group), "no engine is left", 5)


def test_a_daemon_that_is_told_to_stop_finishes_the_answer_and_leaves_nothing(daemon: RunningDaemon) -> None:
    body = {"model": "tiny", "messages": messages("Count."), "stream": True, "max_tokens": 100, "ignore_eos": True}
    daemon.http.post("/ostinato/load", json={"model": "tiny"})
    pid = engine_pid(daemon)
    with daemon.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        chunks = answer.iter_raw()
        text = next(chunks)
        daemon.process.send_signal(signal.SIGTERM)
        text += b"".join(chunks)
    assert text.endswith(b"data: [DONE]\n\n")
    daemon.http.close()
    assert daemon.process.wait(20) == 0
    assert not psutil.pid_exists(pid)
    assert not list((daemon.home / "run").iterdir())


def test_four_cold_requests_share_one_load(daemon: RunningDaemon) -> None:
    body = {"model": "tiny", "messages": messages("Hi"), "max_tokens": 4}
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: daemon.http.post("/v1/chat/completions", json=body), range(4)))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert (daemon.home / "output").read_text().count("engine_started") == 1


def test_routes_of_an_answer_are_told(daemon: RunningDaemon) -> None:
    body = {"model": "tiny", "messages": messages("Hi"), "max_tokens": 4}
    assert daemon.http.post("/v1/chat/completions", json=body).status_code == 200
    answer = daemon.http.get("/ostinato/routes", params={"model": "tiny"})
    assert answer.status_code == 200
    assert sum(_numbers(answer.json())) > 0


def test_keep_alive_unloads_the_model(daemon: RunningDaemon) -> None:
    body = {"model": "tiny", "messages": messages("Hi"), "max_tokens": 2, "keep_alive": "300ms"}
    daemon.http.post("/ostinato/load", json={"model": "tiny"})
    pid = engine_pid(daemon)
    assert daemon.http.post("/v1/chat/completions", json=body).status_code == 200
    eventually(lambda: daemon.http.get("/api/ps").json()["models"] == [], "the model is unloaded", 5)
    assert not psutil.pid_exists(pid)


def _numbers(value: Any) -> list[float]:
    """Every number in a JSON value."""
    if isinstance(value, dict):
        return [number for item in value.values() for number in _numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    return [value] if isinstance(value, (int, float)) else []
