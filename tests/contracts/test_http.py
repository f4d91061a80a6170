"""The daemon's HTTP contract, against the application on a real port with a scripted engine."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from ostinatod.config import Settings
from tests.conftest import RunningApp, ScriptedEngine, StartApp, asking, eventually, least_s

JSON = {"Content-Type": "application/json"}


def chat_body(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


def sse_data(text: str) -> list[str]:
    return [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]


# -- the gate ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost:1", "LOCALHOST", "127.0.0.1:1", "127.1.2.3", "[::1]:1", "box.example:9"])
def test_own_names_are_answered(start_app: StartApp, scripted_engine: ScriptedEngine, host: str) -> None:
    app = start_app(scripted_engine, Settings(allowed_hosts=("Box.example",)))
    assert app.http.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "localhost.", "[::1", ""]
)
def test_foreign_host_names_are_refused_before_the_handler(shared_app: RunningApp, host: str) -> None:
    answer = shared_app.http.post("/ostinato/shutdown", headers={"Host": host})
    assert (answer.status_code, answer.json()["kind"]) == (403, "forbidden")
    assert not shared_app.shutdown_requests


@pytest.mark.parametrize(
    "origin",
    [
        *("https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1"),
        *("https://vscode-webview", "vscode-webview", "xvscode-webview://1abc"),
    ],
)
def test_foreign_origins_are_refused_before_the_handler(shared_app: RunningApp, origin: str) -> None:
    answer = shared_app.http.post("/ostinato/shutdown", headers={"Origin": origin})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    assert not shared_app.shutdown_requests


def test_listed_origins_get_a_preflight_and_cors_headers(start_app: StartApp, scripted_engine: ScriptedEngine) -> None:
    app = start_app(scripted_engine, Settings(allowed_origins=("http://app.example", "tauri://*")))
    asking = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    preflight = app.http.options("/v1/chat/completions", headers={"Origin": "http://app.example", **asking})
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == "http://app.example"
    assert preflight.headers["access-control-allow-headers"] == "authorization,content-type"
    assert "access-control-allow-credentials" not in preflight.headers
    answer = app.http.get("/v1/models/unknown", headers={"Origin": "tauri://localhost"})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (404, "tauri://localhost")
    assert app.http.options("/", headers={"Origin": "http://app.example.evil.example", **asking}).status_code == 403


@pytest.mark.parametrize("origin", ["vscode-webview://1abc", "vscode-file://vscode-app"])
def test_the_panels_of_an_editor_need_no_setting(shared_app: RunningApp, origin: str) -> None:
    asking = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    preflight = shared_app.http.options("/v1/chat/completions", headers={"Origin": origin, **asking})
    assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (204, origin)
    answer = shared_app.http.get("/v1/models", headers={"Origin": origin})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, origin)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", None])
def test_bodies_that_need_no_preflight_are_refused(shared_app: RunningApp, content_type: str | None) -> None:
    # A page that leaves the type out is a browser's all the same.
    headers = {"Content-Type": content_type} if content_type else {"Sec-Fetch-Site": "cross-site"}
    answer = shared_app.http.post("/api/copy", content=b'{"source":"m","destination":"stolen"}', headers=headers)
    assert answer.status_code == 415
    assert "stolen" not in shared_app.store.records


def test_compressed_bodies_are_refused(shared_app: RunningApp) -> None:
    assert (
        shared_app.http.post("/api/show", content=b"x", headers={**JSON, "Content-Encoding": "gzip"}).status_code == 415
    )


def test_a_body_of_more_than_64_mib_is_refused_unread(shared_app: RunningApp) -> None:
    with socket.create_connection(("127.0.0.1", httpx.URL(shared_app.url).port or 0)) as connection:
        length = 64 * 1024**2 + 1
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n"
        connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n")
        assert connection.recv(64).startswith(b"HTTP/1.1 413")


def test_a_chunked_body_is_counted(shared_app: RunningApp) -> None:
    chunks = (b" " * 1024**2 for _ in range(66))
    try:
        assert shared_app.http.post("/v1/completions", content=chunks, headers=JSON).status_code == 413
    except httpx.WriteError:
        assert shared_app.http.get("/health").is_success


# -- errors -----------------------------------------------------------------------------------------------------------


def test_unknown_model_is_404_in_each_dialect_and_passes_the_hint_on(shared_app: RunningApp) -> None:
    openai = shared_app.http.post("/v1/chat/completions", json={**chat_body("x"), "model": "embeder"})
    assert openai.status_code == 404
    error = openai.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "model", "model_not_found")
    assert "Did you mean embedder?" in error["message"]
    native = shared_app.http.post("/api/show", json={"model": "embeder"})
    assert native.status_code == 404
    assert native.json()["kind"] == "model_not_found"
    assert native.json()["hint"] == "Did you mean embedder?"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not JSON"),
        (b'{"model":"m","temperature":NaN}', "NaN"),
        (b"[]", "expected a JSON object"),
        (b"[" * 200_000, "nested too deeply"),
        (b"{}", "expected the name of a model"),
        (json.dumps(chat_body("x", n=2)).encode(), "one answer per request"),
        (json.dumps(chat_body("x", keep_alive="soon")).encode(), "expected a duration"),
    ],
)
def test_malformed_requests_are_400_in_openai_words(shared_app: RunningApp, body: bytes, words: str) -> None:
    answer = shared_app.http.post("/v1/chat/completions", content=body, headers=JSON)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize("url", ["http://169.254.169.254/latest", "file:///etc/passwd", "https://example.com/a.png"])
def test_images_by_url_are_refused(shared_app: RunningApp, url: str) -> None:
    for part in ({"image_url": {"url": url}}, {"image_url": url}):
        messages = [{"role": "user", "content": [{"type": "image_url", **part}]}]
        answer = shared_app.http.post("/v1/chat/completions", json={"model": "m", "messages": messages})
        assert answer.status_code == 400
        assert "data: URLs" in answer.json()["error"]["message"]


def test_the_wrong_kind_of_model_is_refused_without_loading_it(app: RunningApp) -> None:
    assert app.http.post("/v1/embeddings", json={"model": "m", "input": "x"}).status_code == 400
    assert app.http.post("/v1/chat/completions", json={**chat_body("x"), "model": "embedder"}).status_code == 400
    assert app.status()["models"] == []


def test_unknown_paths_methods_and_fields_answer_json(shared_app: RunningApp) -> None:
    assert shared_app.http.get("/v1/nothing").json()["error"]["type"] == "invalid_request_error"
    assert shared_app.http.get("/api/nothing").status_code == 404
    assert shared_app.http.post("/api/tags").status_code == 405
    assert shared_app.http.post("/api/copy", json={"source": "m"}).json()["error"].startswith("destination:")


def test_context_overflow_says_the_numbers_in_words_that_agents_know(shared_app: RunningApp) -> None:
    answer = shared_app.chat("!overflow")
    assert answer.status_code == 400
    assert answer.json() == {
        "error": {
            "message": "This model's maximum context length is 4096 tokens; your request has 70211 tokens and exceeds "
            "the available context size.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
            "n_prompt_tokens": 70211,
            "n_ctx": 4096,
        }
    }
    assert shared_app.chat("!overflow", stream=True).json() == answer.json()


# -- forwarding -------------------------------------------------------------------------------------------------------


def test_a_body_that_needs_no_change_reaches_the_engine_byte_for_byte(shared_app: RunningApp) -> None:
    body = '{ "model":"m",  "z":1.50, "messages":[{"role":"user","content":"\\u00e9 ü"}], "tool_choice": "auto"}'
    answer = shared_app.http.post("/v1/chat/completions", content=body.encode(), headers=JSON)
    assert answer.json()["choices"][0]["message"]["content"] == body


def test_numbers_are_clamped_and_internal_fields_dropped(shared_app: RunningApp) -> None:
    answer = shared_app.chat(
        "x", max_tokens=384000, max_completion_tokens=10, top_k=10**12, n_discard=-7, id_slot=99, seed=-5, logprobs=True
    )
    received = json.loads(answer.json()["choices"][0]["message"]["content"])
    assert received["max_tokens"] == 4096
    assert received["max_completion_tokens"] == 10
    assert (received["top_k"], received["n_discard"], received["logprobs"]) == (2**31 - 1, 0, True)
    assert "id_slot" not in received
    assert received["seed"] == 2**32 - 5


def test_embeddings_and_completions_are_forwarded(shared_app: RunningApp) -> None:
    vectors = shared_app.http.post("/v1/embeddings", json={"model": "embedder", "input": "x"}).json()
    assert vectors["data"][0]["embedding"] == [0.5]
    assert (
        shared_app.http.post("/v1/completions", json={"model": "m", "prompt": "x"}).json()["usage"]["total_tokens"] == 4
    )


def test_a_stream_arrives_chunk_by_chunk_with_headers_against_buffering(shared_app: RunningApp, tmp_path: Path) -> None:
    release = tmp_path / "release"
    body = chat_body(f"!halves {release}", stream=True)
    with shared_app.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no"
        parts = answer.iter_raw()
        seen = b""
        while b"first" not in seen:
            seen += next(parts)
        # Buffered, both would arrive when the engine has waited for the file in vain.
        assert b"second" not in seen
        release.touch()
        assert b"second" in b"".join(parts)


def test_two_streams_at_once_both_complete(shared_app: RunningApp) -> None:
    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(lambda count: shared_app.chat(f"!count {count}", stream=True).text, (30, 20)))
    numbers = [[json.loads(data)["choices"][0]["delta"]["content"] for data in sse_data(text)[:-1]] for text in texts]
    assert ["".join(each).split() for each in numbers] == [[str(n) for n in range(count)] for count in (30, 20)]


def test_parallel_calls_keep_their_places_and_end_with_their_own_reason(shared_app: RunningApp) -> None:
    state: Any = ChatCompletionStreamState()
    with openai.OpenAI(base_url=f"{shared_app.url}/v1", api_key="none", max_retries=0) as sdk:
        asked: Any = {"model": "m", "messages": [{"role": "user", "content": "!tools"}]}
        for chunk in sdk.chat.completions.create(**asked, stream=True):
            state.handle_chunk(chunk)
    choice = state.current_completion_snapshot.choices[0]
    calls = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert calls == [("c-1", "find", '{"a": 1}'), ("c-2", "look", "{}")]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.reasoning_content == "Let me think."


def test_headers_and_keepalive_come_within_a_second_of_a_long_prefill(shared_app: RunningApp, tmp_path: Path) -> None:
    shared_app.chat("warm")

    def keepalive_s(number: int) -> float:
        release = tmp_path / f"release-{number}"
        body = chat_body(f"!hold {release}", stream=True)
        started_at = time.monotonic()
        with shared_app.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            parts = answer.iter_raw()
            assert next(parts) == b": keepalive\n\n"
            taken_s = time.monotonic() - started_at
            release.touch()
            assert b"".join(parts).endswith(b"data: [DONE]\n\n")
        return taken_s

    assert least_s(keepalive_s, below_s=1.0) < 1.0


def test_a_failure_after_the_headers_is_an_event_in_the_stream(
    start_app: StartApp, scripted_engine: ScriptedEngine
) -> None:
    app = start_app(scripted_engine.scripted(load_s=1.0, exit_status=1, exit_words="E failed to load model"))
    answer = app.chat("x", stream=True)
    assert answer.status_code == 200
    error = json.loads(sse_data(answer.text)[-1])["error"]
    assert error["code"] == "engine_load_error"
    assert "failed to load model" in error["message"]


# -- loading, queueing, cancelling ------------------------------------------------------------------------------------


def test_four_cold_requests_share_one_load(start_app: StartApp, scripted_engine: ScriptedEngine) -> None:
    app = start_app(scripted_engine.scripted(load_s=0.3))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(app.chat, ["a", "b", "c", "d"]))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len(scripted_engine.events("start")) == 1


def test_a_failed_load_says_what_the_engine_said(start_app: StartApp, scripted_engine: ScriptedEngine) -> None:
    words = "0.00.100.000 E llama_model_load: unknown model architecture: 'zebra'"
    app = start_app(scripted_engine.scripted(exit_status=1, exit_words=words))
    answer = app.chat("x")
    assert answer.status_code == 500
    assert "unknown model architecture: 'zebra'" in answer.json()["error"]["message"]


def test_requests_beyond_the_queue_are_told_when_to_come_back(
    start_app: StartApp, scripted_engine: ScriptedEngine, tmp_path: Path
) -> None:
    app = start_app(scripted_engine, Settings(parallel=1, max_queue=1))
    release = tmp_path / "release"
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(app.chat, f"!hold {release}") for _ in range(2)]
        eventually(lambda: any(model["in_flight"] == 2 for model in app.status()["models"]), "two requests wait")
        refused = app.chat("x")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert refused.json()["error"]["code"] == "engine_busy"
        release.touch()
        assert [job.result().status_code for job in running] == [200, 200]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_during_prefill_ends_the_engines_work(
    app: RunningApp, scripted_engine: ScriptedEngine, stream: bool
) -> None:
    with asking(app.url, "/v1/chat/completions", chat_body("!slow 60", stream=stream)):
        eventually(lambda: scripted_engine.events("begin"), "the engine reads the prompt")
    eventually(lambda: scripted_engine.events("gone"), "the engine sees the client go", 3)
    eventually(lambda: app.status()["models"][0]["in_flight"] == 0, "the request has ended", 3)


def test_clients_that_leave_a_flood_of_chunks_are_always_noticed(app: RunningApp) -> None:
    for _ in range(12):
        with app.http.stream("POST", "/v1/chat/completions", json=chat_body("!flood", stream=True)) as answer:
            chunks = answer.iter_raw()
            next(chunks)
    eventually(lambda: app.status()["models"][0]["in_flight"] == 0, "every request has ended", 5)


def test_a_client_that_leaves_the_queue_never_reaches_the_engine(
    start_app: StartApp, scripted_engine: ScriptedEngine, tmp_path: Path
) -> None:
    app = start_app(scripted_engine, Settings(parallel=1))
    release = tmp_path / "release"

    def in_flight() -> int:
        return int(app.status()["models"][0]["in_flight"])

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(app.chat, f"!hold {release}")
        eventually(lambda: scripted_engine.events("begin"), "the first request runs")
        with asking(app.url, "/v1/chat/completions", chat_body("x")):
            eventually(lambda: in_flight() == 2, "the second one waits")
        eventually(lambda: in_flight() == 1, "nobody waits any more", 3)
        release.touch()
        assert first.result().status_code == 200
    eventually(lambda: in_flight() == 0, "nothing is in flight")
    assert len(scripted_engine.events("begin")) == 1


def test_a_client_that_leaves_during_the_load_leaves_the_load_to_others(
    start_app: StartApp, scripted_engine: ScriptedEngine, tmp_path: Path
) -> None:
    loads = tmp_path / "loads"
    app = start_app(scripted_engine.scripted(load_until=str(loads)))
    with asking(app.url, "/v1/chat/completions", chat_body("x")):
        eventually(lambda: scripted_engine.events("start"), "the model is being loaded")
    eventually(lambda: app.status()["models"][0]["in_flight"] == 0, "nobody waits any more", 3)
    loads.touch()
    assert app.chat("y").status_code == 200
    assert len(scripted_engine.events("start")) == len(scripted_engine.events("begin")) == 1


def test_an_engine_that_dies_in_a_stream_ends_it_with_an_error_event_and_is_replaced(
    app: RunningApp, scripted_engine: ScriptedEngine
) -> None:
    answer = app.chat("!crash", stream=True)
    events = sse_data(answer.text)
    assert json.loads(events[0])["choices"][0]["delta"]["content"] == "before"
    assert "half" not in answer.text
    error = json.loads(events[1])["error"]
    assert error["code"] == "engine_died"
    assert "SIGKILL" in error["message"]
    assert events[2:] == []
    assert app.chat("again").status_code == 200
    assert len(scripted_engine.events("start")) == 2


@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_that_dies_before_the_first_byte_is_502(app: RunningApp, stream: bool) -> None:
    app.chat("warm")
    answer = app.chat("!die", stream=stream)
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "engine_died"


def test_repeated_crashes_are_backed_off_from(app: RunningApp) -> None:
    # Restarted at once after the first crash, then after 1, 2, 4 ... seconds, so that one of these comes too early.
    refused = next(answer for answer in (app.chat("!die") for _ in range(6)) if answer.status_code != 502)
    assert refused.status_code == 503
    assert "SIGKILL" in refused.json()["error"]["message"]
    time.sleep(int(refused.headers["retry-after"]))
    assert app.chat("x").status_code == 200
