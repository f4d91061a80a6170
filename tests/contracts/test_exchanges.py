"""What is told of requests in flight, how they are cancelled by id, and what later turns are given back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from ostinatod.api.observer import Exchange, Figures
from ostinatod.config import Settings
from ostinatod.errors import OstinatoError
from ostinatod.loaded import Lease
from ostinatod.store.records import ModelRecord
from tests.conftest import RunningApp, ScriptedEngine, StartApp, asking, eventually, make_scripted_engine, running_app
from tests.fakes.memory_store import MemoryStore, record


class Notes:
    """An observer that writes down what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.exchanges: list[Exchange] = []
        self.figures: list[Figures] = []
        self.context_tokens = 0

    def queued(self, exchange: Exchange) -> None:
        self.calls.append("queued")
        self.exchanges.append(exchange)

    async def admitted(self, exchange: Exchange, lease: Lease) -> None:
        self.calls.append("admitted")
        self.context_tokens = lease.context_tokens

    def first_byte(self, exchange: Exchange) -> None:
        self.calls.append("first_byte")

    def finished(self, exchange: Exchange, figures: Figures) -> None:
        self.calls.append("finished")
        self.figures.append(figures)

    def failed(self, exchange: Exchange, error: OstinatoError) -> None:
        self.calls.append(f"failed {error.kind}")

    def cancelled(self, exchange: Exchange) -> None:
        self.calls.append("cancelled")


class Faulty(Notes):
    """An observer that raises whenever it is told anything."""

    def queued(self, exchange: Exchange) -> None:
        raise RuntimeError("a fault of the observer")

    first_byte = queued

    async def admitted(self, exchange: Exchange, lease: Lease) -> None:
        raise RuntimeError("a fault of the observer")


@pytest.fixture(scope="module")
def notes() -> Notes:
    return Notes()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, notes: Notes) -> Iterator[RunningApp]:
    directory = tmp_path_factory.mktemp("shared")
    with running_app(directory, make_scripted_engine(directory), observers=(Faulty(), notes)) as app:
        yield app


@pytest.fixture
def told(shared: RunningApp, notes: Notes) -> Notes:
    """The notes, empty."""
    for log in (notes.calls, notes.exchanges, notes.figures):
        log.clear()  # type: ignore[attr-defined]
    return notes


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "!tools"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "!tools"}], "max_tokens": 9},
    "/v1/responses": {"input": "!tools"},
    "/api/chat": {"messages": [{"role": "user", "content": "!tools"}]},
}
DIALECTS = dict(zip(BODIES, ("openai", "anthropic", "responses", "ollama"), strict=True))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", BODIES)
def test_observers_are_told_every_step_and_the_engines_figures(
    shared: RunningApp, told: Notes, path: str, stream: bool
) -> None:
    headers = {"X-Session-Id": "s-1", "Authorization": "Bearer secret"}
    body = {"model": "m", "stream": stream, "metadata": {"user_id": "u"}, **BODIES[path]}
    if path == "/v1/chat/completions" and stream:
        body["stream_options"] = {"include_usage": True}
    assert shared.http.post(path, json=body, headers=headers).status_code == 200
    eventually(lambda: told.figures, "the end is told")
    assert told.calls == ["queued", "admitted", "first_byte", "finished"]
    (exchange,) = told.exchanges
    assert (exchange.dialect, exchange.path, exchange.stream) == (DIALECTS[path], path, stream)
    assert exchange.request["messages"][-1]["content"] == "!tools"
    assert exchange.headers["x-session-id"] == "s-1"
    assert "authorization" not in exchange.headers
    # The scripted engine read 1 token, reused 2 and wrote 1, in 1 ms and 2 ms.
    assert told.figures == [Figures(3, 2, 1, "tool_calls", 1.0, 2.0)]
    assert told.context_tokens == 4096


@pytest.mark.parametrize("stream", [True, False])
def test_observers_are_told_of_errors(shared: RunningApp, told: Notes, stream: bool) -> None:
    shared.chat("!overflow", stream=stream)
    eventually(lambda: told.calls == ["queued", "admitted", "failed context_length_exceeded"], "the error is told")


def test_observers_are_told_of_a_stream_that_breaks_off(shared: RunningApp, told: Notes) -> None:
    shared.chat("!crash", stream=True)
    steps = ["queued", "admitted", "first_byte", "failed engine_died"]
    eventually(lambda: told.calls == steps, "the end is told")


def test_observers_are_told_of_clients_that_leave(shared: RunningApp, told: Notes) -> None:
    with asking(shared.url, "/v1/chat/completions", {"model": "m", "messages": slow(60)}):
        eventually(lambda: told.calls == ["queued", "admitted"], "the request runs")
    eventually(lambda: told.calls == ["queued", "admitted", "cancelled"], "the cancellation is told")


def leave_at_the_end(app: RunningApp, command: str) -> None:
    """Read a stream up to why the answer ended, and close the connection there."""
    body = {"model": "m", "messages": [{"role": "user", "content": command}], "stream": True}
    body["stream_options"] = {"include_usage": True}
    with (
        httpx.Client(base_url=app.url, trust_env=False) as http,
        http.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        seen = b""
        for chunk in answer.iter_raw():
            seen += chunk
            if b'"finish_reason":"stop"' in seen.replace(b": ", b":"):
                return
    pytest.fail("the stream ended first")


@pytest.mark.parametrize(
    ("command", "figures"),
    [
        pytest.param("!lingers", Figures(3, 2, 1, "stop", 1.0, 2.0), id="the-engine-ends-it"),
        pytest.param("!unreadable", Figures(None, None, None, None, None, None), id="the-daemon-ends-it"),
    ],
)
def test_a_client_that_leaves_when_it_has_its_answer_cancels_nothing(
    shared: RunningApp, told: Notes, monkeypatch: pytest.MonkeyPatch, command: str, figures: Figures
) -> None:
    # How long it may take is another test's subject; on a busy machine an engine is late with its last words.
    monkeypatch.setattr("ostinatod.api.streaming.ENDING_PATIENCE_S", 60.0)
    leave_at_the_end(shared, command)
    eventually(lambda: len(told.calls) == 4, "the end is told")
    assert told.calls == ["queued", "admitted", "first_byte", "finished"]
    assert told.figures == [figures]


def test_an_engine_that_does_not_end_its_answer_is_left_soon_after_its_client_did(
    start_app: StartApp, scripted_engine: ScriptedEngine
) -> None:
    notes = Notes()
    app = start_app(scripted_engine, observers=(notes,))
    leave_at_the_end(app, "!stuck")
    eventually(lambda: notes.calls == ["queued", "admitted", "first_byte", "cancelled"], "the end is told", 5)
    eventually(lambda: scripted_engine.events("gone"), "the engine is told", 3)


def slow(duration_s: float) -> list[Any]:
    return [{"role": "user", "content": f"!slow {duration_s}"}]


def cancel(app: RunningApp, exchange_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = app.http.post("/ostinato/cancel", json={"id": exchange_id}).json()
    return answer


def test_a_request_is_cancelled_while_its_prompt_is_read(start_app: StartApp, scripted_engine: ScriptedEngine) -> None:
    notes = Notes()
    app = start_app(scripted_engine, observers=(notes,))
    with ThreadPoolExecutor(1) as pool:
        answering = pool.submit(app.chat, "!slow 60")
        eventually(lambda: "admitted" in notes.calls, "the request runs")
        exchange_id = notes.exchanges[0].id
        assert cancel(app, exchange_id) == {"status": "success", "was_running": True}
        answer = answering.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (499, "cancelled")
    eventually(lambda: scripted_engine.events("gone"), "the engine is told", 3)
    eventually(lambda: notes.calls[-1] == "cancelled", "the end is told")
    assert cancel(app, exchange_id)["was_running"] is False


def test_a_request_is_cancelled_in_the_queue(
    start_app: StartApp, scripted_engine: ScriptedEngine, tmp_path: Path
) -> None:
    notes = Notes()
    app = start_app(scripted_engine, Settings(parallel=1), observers=(notes,))
    with ThreadPoolExecutor(2) as pool:
        release = tmp_path / "release"
        running = pool.submit(app.chat, f"!hold {release}")
        eventually(lambda: "admitted" in notes.calls, "the first request runs")
        waiting = pool.submit(app.chat, "x")
        eventually(lambda: len(notes.exchanges) == 2, "the second request waits")
        assert cancel(app, notes.exchanges[1].id)["was_running"] is True
        assert waiting.result().status_code == 499
        release.touch()
        assert running.result().status_code == 200
    assert len(scripted_engine.events("begin")) == 1


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/chat/completions", b'"code": "cancelled"'),
        ("/v1/messages", b"event: error"),
        ("/v1/responses", b"event: response.failed"),
    ],
)
def test_a_stream_that_is_cancelled_ends_with_an_error_in_its_dialect(
    start_app: StartApp, scripted_engine: ScriptedEngine, path: str, words: bytes
) -> None:
    notes = Notes()
    app = start_app(scripted_engine, observers=(notes,))
    said = [{"role": "user", "content": "!count 1000"}]
    body = {"model": "m", "input" if path == "/v1/responses" else "messages": said, "max_tokens": 9, "stream": True}
    with app.http.stream("POST", path, json=body) as answer:
        chunks = answer.iter_raw()
        first = next(chunks)
        assert cancel(app, notes.exchanges[0].id)["was_running"], first
        rest = b"".join(chunks)
    assert words in rest
    assert rest.endswith(b"\n\n")


# -- what later turns are given back ----------------------------------------------------------------------------------


def received(answer: httpx.Response) -> Any:
    return json.loads(answer.json()["choices"][0]["message"]["content"])["messages"][1]


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_that_is_serialised_anew_reaches_the_engine_as_it_was_sampled(shared: RunningApp, stream: bool) -> None:
    shared.chat("!tools", stream=stream)
    function = {"name": "find", "arguments": '{"a":1}'}
    call = {"id": "c-1", "type": "function", "function": function}
    history: list[Any] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
    ]
    history.append({"role": "tool", "tool_call_id": "c-1", "content": "found"})
    turn = received(shared.http.post("/v1/chat/completions", json={"model": "m", "messages": history}))
    assert turn["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    assert turn["reasoning_content"] == "Let me think."


def test_a_call_is_given_back_across_dialects(shared: RunningApp) -> None:
    shared.http.post("/v1/messages", json={"model": "m", **BODIES["/v1/messages"], "stream": True})
    use = {"type": "tool_use", "id": "c-1", "name": "find", "input": {"a": 1}}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c-1", "content": "found"}]},
    ]
    answer = shared.http.post("/v1/messages", json={"model": "m", "max_tokens": 9, "messages": messages})
    sent = json.loads(answer.json()["content"][0]["text"])["messages"][1]
    assert sent["reasoning_content"] == "Let me think."


def test_output_that_cannot_be_parsed_ends_the_chat_in_order(shared: RunningApp) -> None:
    text = shared.chat("!unreadable", stream=True).text
    assert "so far" in text
    assert '"finish_reason": "stop"' in text
    assert text.endswith("data: [DONE]\n\n")
    assert '"error"' not in text


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}),
        ("/v1/responses", {"input": "Hi"}),
        ("/api/chat", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/api/generate", {"prompt": "Hi"}),
    ],
)
def test_keep_alive_is_understood_in_every_dialect(shared: RunningApp, path: str, fields: dict[str, Any]) -> None:
    for keep_alive, stays in ((-1, True), ("1h", False)):
        assert shared.http.post(path, json={"model": "m", **fields, "keep_alive": keep_alive}).status_code == 200
        (model,) = shared.status()["models"]
        assert (model["expires_at"] is None) == stays


def test_an_engine_that_cannot_save_prompts_serves_and_ends_all_the_same(
    start_app: StartApp, scripted_engine: ScriptedEngine, tmp_path: Path
) -> None:
    app = start_app(scripted_engine, Settings(prompt_state_bytes=10**6), MemoryStore(on_disk(record("m"), tmp_path)))
    assert app.chat("Hi").status_code == 200
    assert app.http.post("/ostinato/unload", json={"model": "m"}).json()["was_loaded"]
    assert app.chat("Hi").status_code == 200


def on_disk(registered: ModelRecord, directory: Path) -> ModelRecord:
    """The same with a file that exists."""
    file = directory / "m.gguf"
    file.touch()
    return replace(registered, parts=(file,))
