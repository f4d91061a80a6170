"""What a hostile page, a stranger and a careless client cannot do, in every dialect."""

from __future__ import annotations

import json
import logging
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from ostinatod.config import Settings
from ostinatod.keys import KeyFile, KeyRing
from tests.conftest import RunningApp, ScriptedEngine, StartApp

TURN = [{"role": "user", "content": "hello"}]
CHATS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", {"model": "m", "messages": TURN}),
    ("/v1/completions", {"model": "m", "prompt": "hello"}),
    ("/v1/messages", {"model": "m", "messages": TURN, "max_tokens": 8}),
    ("/v1/responses", {"model": "m", "input": "hello"}),
    ("/api/chat", {"model": "m", "messages": TURN}),
    ("/api/generate", {"model": "m", "prompt": "hello"}),
)


class Guarded:
    """An application that requires a key."""

    def __init__(self, start_app: StartApp, engine: ScriptedEngine, directory: Path, **ring: Any) -> None:
        self.file = KeyFile(directory / "keys.json")
        self.secret = self.file.add("test")[1]
        self.app: RunningApp = start_app(engine, Settings(), keys=KeyRing(self.file, **ring))
        self.http = self.app.http

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.http.get(path, headers=headers)


@pytest.fixture
def guarded(start_app: StartApp, scripted_engine: ScriptedEngine, tmp_path: Path) -> Guarded:
    return Guarded(start_app, scripted_engine, tmp_path)


# -- keys -------------------------------------------------------------------------------------------------------------


def test_a_key_is_accepted_as_bearer_and_as_x_api_key(guarded: Guarded) -> None:
    for headers in (
        {"Authorization": f"Bearer {guarded.secret}"},
        {"authorization": f"bearer  {guarded.secret}"},
        {"x-api-key": guarded.secret},
        {"Authorization": "Basic abc", "x-api-key": guarded.secret},
        {"Authorization": "Bearer dummy", "x-api-key": guarded.secret},
        # Claude Code sends an empty one beside its token.
        {"Authorization": f"Bearer {guarded.secret}", "x-api-key": ""},
    ):
        assert guarded.get("/v1/models", **headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer ost_wrong"},
        {"Authorization": "Bearer"},
        {"x-api-key": "ost_wrong"},
        {"Authorization": "Basic b3N0Og=="},
    ],
)
def test_without_one_nothing_but_401_is_learnt(guarded: Guarded, headers: dict[str, str]) -> None:
    paths = (
        "/",
        "/api/tags",
        "/v1/models",
        "/v1/models/nope",
        "/ostinato/status",
        "/nowhere",
        "/metrics",
        "/api/version",
    )
    answers = [guarded.http.get(path, headers=headers) for path in paths]
    answers += [guarded.http.post(path, json=body, headers=headers) for path, body in CHATS]
    # Nor which Host, Origin, content type or length would have been refused.
    answers.append(guarded.http.get("/api/tags", headers={**headers, "Host": "evil.example"}))
    answers.append(guarded.http.get("/api/tags", headers={**headers, "Origin": "https://evil.example"}))
    answers.append(guarded.http.post("/api/show", content=b"x", headers={**headers, "Content-Type": "text/plain"}))
    asking = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    answers.append(guarded.http.options("/api/show", headers={**headers, **asking}))
    assert {answer.status_code for answer in answers} == {401}
    assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}
    shapes = {json.dumps(answer.json(), sort_keys=True) for answer in answers}
    assert all("m" not in json.loads(shape) for shape in shapes)
    assert len(shapes) <= 3  # One per dialect.


def test_401_comes_in_the_callers_dialect(guarded: Guarded) -> None:
    openai = guarded.http.post("/v1/chat/completions", json={}).json()["error"]
    assert openai["code"] == "invalid_api_key"
    assert guarded.http.post("/api/chat", json={}).json()["error"].startswith("an API key is required")


def test_health_is_open_and_says_nothing(guarded: Guarded) -> None:
    assert guarded.get("/health").json() == {"status": "ok"}
    assert guarded.http.post("/health").status_code == 401


def test_a_dummy_key_is_accepted_while_no_keys_are_in_use(
    start_app: StartApp, scripted_engine: ScriptedEngine, tmp_path: Path
) -> None:
    app = start_app(scripted_engine, keys=KeyRing(KeyFile(tmp_path / "none.json")))
    assert app.http.get("/v1/models", headers={"Authorization": "Bearer dummy"}).status_code == 200


def test_a_removed_key_is_refused_at_once_and_the_last_one_opens_the_door_again(guarded: Guarded) -> None:
    other = guarded.file.add("other")[1]
    guarded.file.remove("test")
    assert guarded.get("/v1/models", **{"x-api-key": guarded.secret}).status_code == 401
    assert guarded.get("/v1/models", **{"x-api-key": other}).status_code == 200
    guarded.file.remove("other")
    assert guarded.get("/v1/models").status_code == 200


def test_an_exposed_daemon_stays_closed_without_keys(
    start_app: StartApp, scripted_engine: ScriptedEngine, tmp_path: Path
) -> None:
    app = start_app(scripted_engine, keys=KeyRing(KeyFile(tmp_path / "none.json"), exposed=True))
    assert app.http.get("/v1/models").status_code == 401
    assert app.http.get("/health").status_code == 200


def test_a_key_stands_in_for_a_known_host_name_but_not_for_a_known_origin(guarded: Guarded) -> None:
    key = {"x-api-key": guarded.secret}
    assert guarded.get("/v1/models", **key, Host="box.lan:11435").status_code == 200
    assert guarded.get("/v1/models", **key, Origin="https://evil.example").status_code == 403


def test_an_exposed_daemon_answers_health_under_its_addresses(
    start_app: StartApp, scripted_engine: ScriptedEngine, tmp_path: Path
) -> None:
    app = Guarded(start_app, scripted_engine, tmp_path, exposed=True)
    assert app.get("/health", Host="192.168.1.7:11435").status_code == 200
    assert app.get("/health", Host="evil.example").status_code == 403


def test_refused_keys_and_bodies_are_not_logged(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    guarded.http.post("/api/chat", json={"model": "m", "messages": TURN}, headers={"x-api-key": "ost_guess"})
    told = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("ostinatod"))
    assert "unauthorized client=127.0.0.1 path='/api/chat'" in told
    assert "ost_guess" not in told
    assert "hello" not in told


# -- pages, limits, images --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "body"), CHATS)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content-Encoding": "zstd"}, 415),
    ],
)
def test_no_page_reaches_a_handler_in_any_dialect(
    shared_app: RunningApp, path: str, body: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    content = json.dumps(body).encode()
    answer = shared_app.http.post(path, content=content, headers={"Content-Type": "application/json", **headers})
    assert answer.status_code == status
    assert answer.json()["error"]
    assert shared_app.status()["models"] == []


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions", "/v1/messages"])
def test_a_program_may_leave_the_content_type_out_but_a_browser_may_not(shared_app: RunningApp, path: str) -> None:
    # litellm does, for Ollama's dialect.
    content = json.dumps({"model": "nope", "messages": TURN, "max_tokens": 8}).encode()
    assert shared_app.http.post(path, content=content).status_code == 404
    for header in ({"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Mode": "no-cors"}):
        assert shared_app.http.post(path, content=content, headers=header).status_code == 415
    assert shared_app.http.post(path, content=content, headers={"Origin": "http://localhost"}).status_code == 403


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": TURN * 10_001},
        {"messages": TURN, "tools": [{"type": "function", "function": {"name": f"f{n}"}} for n in range(1025)]},
        {"messages": TURN, "stop": ["x"] * 257},
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
def test_a_request_beyond_the_limits_is_400_before_anything_is_loaded(
    shared_app: RunningApp, path: str, fields: dict[str, Any]
) -> None:
    if path == "/api/chat" and "stop" in fields:
        fields = {"messages": TURN, "options": {"stop": fields["stop"]}}
    answer = shared_app.http.post(path, json={"model": "m", **fields})
    assert answer.status_code == 400
    assert "expected at most" in json.dumps(answer.json())
    assert shared_app.status()["models"] == []


def test_a_schema_nested_too_deeply_is_400_in_both_forms(shared_app: RunningApp) -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(80):
        schema = {"properties": {"x": schema}}
    openai = {"type": "json_schema", "json_schema": {"schema": schema}}
    for path, fields in (("/v1/chat/completions", {"response_format": openai}), ("/api/chat", {"format": schema})):
        answer = shared_app.http.post(path, json={"model": "m", "messages": TURN, **fields})
        assert answer.status_code == 400
        assert "nested deeper" in json.dumps(answer.json())


@pytest.mark.parametrize("url", ["http://169.254.169.254/latest", "file:///etc/passwd", "https://example.com/a.png"])
def test_no_image_is_fetched_for_ollamas_clients_either(shared_app: RunningApp, url: str) -> None:
    as_parts = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    as_field = [{"role": "user", "content": "what?", "images": [url]}]
    for messages in (as_parts, as_field):
        answer = shared_app.http.post("/api/chat", json={"model": "m", "messages": messages})
        assert answer.status_code == 400
        assert "images" in answer.json()["error"]


@pytest.mark.parametrize(
    "fields",
    [
        b'"options":{"temperature":NaN}',
        b'"options":{"top_p":1e999}',
        b'"tools":[{"type":"function","function":{"name":"f","description":"\\ud800","parameters":{"x":NaN}}}]',
        b'"format":{"const":"\\ud800"}',
        b'"tool_choice":{"x":-Infinity},"tools":[{}]',
        b'"system":"\\ud800"',
    ],
)
def test_no_text_or_number_that_json_has_no_word_for_is_a_fault_of_ours(shared_app: RunningApp, fields: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    for start in (b'{"model":"m","messages":[{"role":"user","content":"x"}],', b'{"model":"m","prompt":"x",'):
        for path in ("/api/chat", "/api/generate"):
            answer = shared_app.http.post(path, content=start + b'"stream":false,' + fields + b"}", headers=headers)
            assert answer.status_code < 500, (path, answer.text[:300])


@pytest.mark.parametrize("path", ["/api/chat", "/api/show", "/api/pull", "/v1/chat/completions", "/v1/messages"])
def test_half_a_surrogate_in_a_name_is_no_fault_of_ours(shared_app: RunningApp, path: str) -> None:
    body = b'{"model":"\\ud800","messages":[{"role":"user","content":"x"}],"max_tokens":1}'
    answer = shared_app.http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text[:300]


def test_a_client_that_leaves_before_its_body_has_come_is_no_fault_of_ours(
    shared_app: RunningApp, caplog: pytest.LogCaptureFixture
) -> None:
    port = httpx.URL(shared_app.url).port or 0
    head = "HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    for path, _ in CHATS:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(f"POST {path} {head}".encode())
            time.sleep(0.1)
    time.sleep(0.2)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("body", [b"{", b"[" * 200_000, b'{"model":NaN}', b'"x"', b"\xff\xfe"])
def test_no_body_is_a_fault_of_ours(shared_app: RunningApp, body: bytes) -> None:
    for path, _ in CHATS:
        answer = shared_app.http.post(path, content=body, headers={"Content-Type": "application/json"})
        assert 400 <= answer.status_code < 500, (path, answer.text[:200])
