"""Ollama's dialect through Ollama's own client, against the application with a scripted engine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest

from ostinatod.config import Settings
from tests.conftest import RunningApp, ScriptedEngine, StartApp, asking, eventually, least_s
from tests.fakes.engine import HOLD_S

Connect = Callable[[RunningApp], ollama.Client]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes clients of applications; they are closed when the test ends."""
    with ExitStack() as stack:

        def client_of(app: RunningApp) -> ollama.Client:
            return stack.enter_context(ollama.Client(host=app.url, trust_env=False))

        yield client_of


@pytest.fixture
def client(shared_app: RunningApp, connect: Connect) -> ollama.Client:
    return connect(shared_app)


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def received(content: str | None) -> dict[str, Any]:
    """What the scripted engine got: it answers with the body that it received."""
    body: dict[str, Any] = json.loads(content or "")
    return body


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.text.splitlines()]


# -- answers ----------------------------------------------------------------------------------------------------------


def test_a_chat_reaches_the_engine_with_its_options(client: ollama.Client) -> None:
    options = {"temperature": 0, "seed": 3, "num_predict": 5, "top_k": 10**12, "num_ctx": 123, "stop": ["x"]}
    answer = client.chat("m", said("hello"), options=options, format="json", think=False)
    assert (answer.model, answer.done, answer.done_reason) == ("m", True, "stop")
    assert (answer.prompt_eval_count, answer.eval_count) == (3, 1)
    body = received(answer.message.content)
    assert body["messages"] == said("hello")
    assert (body["temperature"], body["seed"], body["max_tokens"], body["stop"]) == (0, 3, 5, ["x"])
    assert body["top_k"] == 2**31 - 1
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert "num_ctx" not in body


def test_a_streamed_chat_comes_line_by_line_and_ends_with_durations(client: ollama.Client, tmp_path: Path) -> None:
    release = tmp_path / "release"
    started_at = time.monotonic()
    parts = []
    for part in client.chat("m", said(f"!halves {release}"), stream=True):
        parts.append(part)
        if part.message.content == "first":
            # Buffered, it would arrive when the engine has waited for the file in vain.
            assert time.monotonic() - started_at < HOLD_S
            time.sleep(0.3)
            release.touch()
    assert "".join(part.message.content or "" for part in parts) == "firstsecond"
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].total_duration > 300e6


def test_generate_streams_and_answers_whole(client: ollama.Client) -> None:
    whole = client.generate("m", "hello", system="be brief")
    assert received(whole.response)["messages"][0] == {"role": "system", "content": "be brief"}
    streamed = list(client.generate("m", "!count 3", stream=True))
    assert "".join(part.response for part in streamed) == "0 1 2 "
    assert received(client.generate("m", "hello", raw=True).response)["prompt"] == "hello"


def test_embeddings_in_both_forms(client: ollama.Client) -> None:
    told = client.embed("embedder", ["a"], dimensions=1)
    assert told.embeddings == [[1.0]]
    assert told.prompt_eval_count == 3
    assert client.embed("embedder", "a").embeddings == [[0.5]]
    assert client.embeddings("embedder", "a").embedding == [0.5]


def test_a_silent_prefill_is_bridged_by_empty_lines(shared_app: RunningApp, connect: Connect, tmp_path: Path) -> None:
    connect(shared_app).chat("m", said("warm"))

    def empty_line_s(number: int) -> float:
        release = tmp_path / f"release-{number}"
        body = {"model": "m", "messages": said(f"!hold {release}")}
        started_at = time.monotonic()
        with shared_app.http.stream("POST", "/api/chat", json=body) as answer:
            assert answer.headers["content-type"] == "application/x-ndjson"
            told = answer.iter_lines()
            first = json.loads(next(told))
            taken_s = time.monotonic() - started_at
            release.touch()
            rest = [json.loads(line) for line in told]
        assert (first["message"], first["done"]) == ({"role": "assistant", "content": ""}, False)
        assert rest[-1]["done"] is True
        return taken_s

    assert least_s(empty_line_s, below_s=1.0) < 1.0


# -- loading and unloading --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["chat", "generate"])
def test_an_empty_request_loads_and_one_with_keep_alive_0_unloads(
    app: RunningApp, endpoint: str, connect: Connect
) -> None:
    client = connect(app)
    call = getattr(client, endpoint)
    assert call("m", keep_alive=-1).done_reason == "load"
    assert [model.model for model in client.ps().models] == ["m"]
    assert app.status()["models"][0]["expires_at"] is None
    assert [part.done_reason for part in call("m", keep_alive=0, stream=True)] == ["unload"]
    assert client.ps().models == []


def test_keep_alive_of_a_request_counts_from_its_end(app: RunningApp, connect: Connect) -> None:
    connect(app).chat("m", said("x"), keep_alive=0)
    eventually(lambda: app.status()["models"] == [], "the model is unloaded", 3)


@pytest.mark.parametrize("num_ctx", [2048, 4096, 9002, 131072])
def test_no_num_ctx_reloads_the_model(
    app: RunningApp, scripted_engine: ScriptedEngine, num_ctx: int, connect: Connect
) -> None:
    client = connect(app)
    client.chat("m", said("x"))
    client.chat("m", said("x"), options={"num_ctx": num_ctx})
    client.generate("m", options={"num_ctx": num_ctx})
    assert len(scripted_engine.events("start")) == 1


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_an_unknown_model_is_404_with_the_error_as_text(shared_app: RunningApp, stream: bool) -> None:
    answer = shared_app.http.post("/api/chat", json={"model": "nope", "messages": said("x"), "stream": stream})
    assert answer.status_code == 404
    assert answer.json()["error"] == "model 'nope' not found"


def test_an_overflow_is_400_and_says_the_numbers(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="maximum context length is 4096 tokens") as caught:
        list(client.chat("m", said("!overflow"), stream=True))
    assert caught.value.status_code == 400


def test_an_engine_that_dies_in_a_stream_ends_it_with_an_error_line(app: RunningApp, connect: Connect) -> None:
    told: list[str] = []
    with pytest.raises(ollama.ResponseError, match="SIGKILL"):
        told.extend(part.message.content or "" for part in connect(app).chat("m", said("!crash"), stream=True))
    assert "".join(told) == "before"
    answer = lines(app.http.post("/api/chat", json={"model": "m", "messages": said("!crash")}))
    assert "".join(line["message"]["content"] for line in answer[:-1]) == "before"
    assert list(answer[-1]) == ["error"]


def test_an_engine_that_dies_before_the_first_byte_is_502(app: RunningApp, connect: Connect) -> None:
    with pytest.raises(ollama.ResponseError, match="SIGKILL") as caught:
        connect(app).chat("m", said("!die"))
    assert caught.value.status_code == 502


def test_a_full_queue_is_503_with_retry_after(
    start_app: StartApp, scripted_engine: ScriptedEngine, tmp_path: Path
) -> None:
    app = start_app(scripted_engine, Settings(parallel=1, max_queue=0))
    release = tmp_path / "release"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(app.chat, f"!hold {release}")
        eventually(lambda: any(model["in_flight"] for model in app.status()["models"]), "a request runs")
        refused = app.http.post("/api/chat", json={"model": "m", "messages": said("x")})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert isinstance(refused.json()["error"], str)
        release.touch()
        assert running.result().status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_the_engines_work(
    app: RunningApp, scripted_engine: ScriptedEngine, stream: bool
) -> None:
    with asking(app.url, "/api/chat", {"model": "m", "messages": said("!slow 60"), "stream": stream}):
        eventually(lambda: scripted_engine.events("begin"), "the engine reads the prompt")
    eventually(lambda: scripted_engine.events("gone"), "the engine sees the client go", 3)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/api/chat", {"model": "embedder", "messages": said("x")}, "embedding model"),
        ("/api/embed", {"model": "m", "input": "x"}, "does not make embeddings"),
        ("/api/chat", {"model": "m", "messages": [{"content": "x"}]}, "messages.0.role"),
        ("/api/chat", {"model": "m", "messages": said("x"), "options": {"seed": "x"}}, "options.seed"),
        ("/api/chat", {"model": "m", "messages": said("x"), "keep_alive": "soon"}, "expected a duration"),
        ("/api/generate", {"model": "m", "prompt": "x", "context": [1]}, "context"),
        ("/api/chat", {"messages": said("x")}, "model"),
        ("/api/embed", {"model": "embedder", "input": ["x"] * 2049}, "at most 2048 inputs"),
    ],
)
def test_what_cannot_be_done_is_400_and_names_the_field(
    shared_app: RunningApp, path: str, body: dict[str, Any], words: str
) -> None:
    answer = shared_app.http.post(path, json=body)
    assert answer.status_code in (400, 422)
    assert words in answer.json()["error"]


# -- models -----------------------------------------------------------------------------------------------------------


def test_models_are_listed_shown_copied_and_deleted(app: RunningApp, connect: Connect) -> None:
    client = connect(app)
    assert {model.model for model in client.list().models} == {"m", "embedder"}
    shown = client.show("m")
    assert shown.modelinfo is not None
    assert shown.modelinfo["qwen3moe.context_length"] == 65536
    assert shown.modelinfo["general.basename"] == "m"
    assert client.copy("m", "n").status == "success"
    assert client.delete("n").status == "success"


def test_the_older_key_name_is_accepted(shared_app: RunningApp) -> None:
    assert shared_app.http.post("/api/show", json={"name": "m"}).status_code == 200
    assert shared_app.http.post("/api/chat", json={"name": "m", "messages": []}).status_code == 200


def test_capabilities_are_read_off_the_template(
    start_app: StartApp, scripted_engine: ScriptedEngine, connect: Connect
) -> None:
    app = start_app(scripted_engine)
    templates = {
        "{{ messages }}": ["completion"],
        "{% if tools %}": ["completion", "tools"],
        "{% if tools %}{{ enable_thinking }}": ["completion", "tools", "thinking"],
    }
    for template, capabilities in templates.items():
        app.store.template = template
        assert connect(app).show("m").capabilities == capabilities
    assert connect(app).show("embedder").capabilities == ["embedding"]


def test_a_pull_through_the_client_ends_with_success(shared_app: RunningApp, client: ollama.Client) -> None:
    assert [step.status for step in client.pull("org/repo", stream=True)] == ["success"]
    assert client.pull("org/other").status == "success"


@pytest.mark.parametrize("path", ["/api/create", "/api/push", "/api/blobs/sha256-00"])
def test_what_is_left_out_says_so(shared_app: RunningApp, path: str) -> None:
    answer = shared_app.http.post(path, json={"model": "m"})
    assert (answer.status_code, answer.json()["kind"]) == (501, "not_supported")
    assert answer.json()["hint"]
