"""The routes of the daemon's history, against the application on a real port with a scripted engine that counts."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ostinatod.api.recorder import HistoryFiles
from ostinatod.config import Settings
from ostinatod.routing_log import reader
from tests.conftest import RunningApp, ScriptedEngine, StartApp, eventually, make_scripted_engine, running_app
from tests.fakes.memory_store import record

TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
FINGERPRINT = record("m").digest


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningApp, HistoryFiles]]:
    """One application for the tests that neither break its engine nor start it in another way."""
    directory = tmp_path_factory.mktemp("history")
    files = HistoryFiles(directory / "routes.db", directory / "routes.key")
    with running_app(directory, make_scripted_engine(directory).scripted(counts=True), history_files=files) as app:
        yield app, files


@pytest.fixture
def app(shared: tuple[RunningApp, HistoryFiles]) -> RunningApp:
    """The shared application with nothing in its log."""
    running, _ = shared
    assert running.http.post("/ostinato/forget", json={}).status_code == 200
    return running


@pytest.fixture
def files(shared: tuple[RunningApp, HistoryFiles]) -> HistoryFiles:
    """Those of the shared application."""
    return shared[1]


@pytest.fixture
def own_files(tmp_path: Path) -> HistoryFiles:
    return HistoryFiles(tmp_path / "routes.db", tmp_path / "routes.key")


@pytest.fixture
def own_app(start_app: StartApp, scripted_engine: ScriptedEngine, own_files: HistoryFiles) -> RunningApp:
    """An application of the test's own."""
    return start_app(scripted_engine.scripted(counts=True), history_files=own_files)


def history(app: RunningApp, **query: Any) -> dict[str, Any]:
    answer: dict[str, Any] = app.http.get("/ostinato/requests", params=query).json()
    return answer


def logged(app: RunningApp, number: int, **query: Any) -> list[dict[str, Any]]:
    """The requests that have ended, once there are that many; the earliest first."""

    def enough() -> list[dict[str, Any]] | None:
        found: list[dict[str, Any]] = history(app, **query)["requests"]
        return found if len(found) >= number else None

    return list(reversed(eventually(enough, f"{number} requests are logged")))


def turn(app: RunningApp, *texts: str, session: str | None = "s1", **fields: Any) -> None:
    """A turn of a conversation in which user and assistant alternate."""
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    headers = {"X-Session-Id": session} if session else {}
    body = {"model": "m", "messages": messages, "tools": TOOLS, **fields}
    assert app.http.post("/v1/chat/completions", json=body, headers=headers).status_code == 200


# -- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_told_with_its_session_tokens_times_and_routes(app: RunningApp, stream: bool) -> None:
    before = time.time()
    turn(app, "Hello", stream=stream)
    (found,) = logged(app, 1)
    assert {name: found[name] for name in ("turn", "model", "dialect", "kind", "status")} == {
        "turn": 1,
        "model": "m",
        "dialect": "openai",
        "kind": "first",
        "status": "ok",
    }
    assert (found["new_tokens"], found["reused_tokens"], found["output_tokens"]) == (2, 1, 1)
    # 2 layers: 2 tokens read and 1 written, 2 routes each.
    assert found["routes"] == 2 * (2 + 1) * 2
    assert found["tpot_ms"] == 10.0
    assert 0 <= found["queue_ms"] < found["ttft_ms"] <= found["total_ms"] + 5.0
    assert before <= found["started_at"] <= time.time()
    assert (found["path"], found["uploaded_bytes"]) == ("stock", 0)
    unknown = ("prefix_break", "generation", "cold_routes", "coverage_prefill", "coverage_decode")
    assert {name: found[name] for name in unknown} == dict.fromkeys(unknown)


def test_the_counts_of_a_request_after_which_its_model_goes_are_kept(own_app: RunningApp) -> None:
    for number in range(1, 4):
        turn(own_app, "Hello", keep_alive=0)
        (*_, last) = logged(own_app, number)
        # 2 layers: 2 tokens read and 1 written, 2 routes each.
        assert last["routes"] == 2 * (2 + 1) * 2


def test_a_model_with_several_names_keeps_the_one_it_is_asked_by_or_in_memory_under(own_app: RunningApp) -> None:
    turn(own_app, "Hello")
    logged(own_app, 1)
    assert own_app.http.post("/api/copy", json={"source": "m", "destination": "mine"}).status_code == 200

    def told(**query: Any) -> set[str]:
        sessions = own_app.http.get("/ostinato/sessions", params=query).json()["sessions"]
        models = own_app.http.get("/ostinato/stats", params=query).json()["models"]
        return {entry["model"] for entry in [*history(own_app, **query)["requests"], *sessions, *models]}

    assert told() == {"m"}
    assert told(model="mine") == {"mine"}
    turn(own_app, "Hello", model="mine")
    logged(own_app, 2)
    own_app.http.post("/api/generate", json={"model": "m", "keep_alive": 0})
    eventually(lambda: told() == {"mine"}, "only that name is in memory")


def test_turns_are_told_latest_first_and_in_pages(app: RunningApp) -> None:
    for number in range(3):
        turn(app, *(["Hello", "Yes"] * number), "Go on")
    logged(app, 3)
    found = history(app)["requests"]
    assert [entry["turn"] for entry in found] == [3, 2, 1]
    assert [entry["kind"] for entry in found] == ["after_user", "after_user", "first"]
    assert [entry["turn"] for entry in history(app, limit=1)["requests"]] == [3]
    assert [entry["turn"] for entry in history(app, before=found[0]["id"])["requests"]] == [2, 1]
    assert history(app, session=found[0]["session"])["requests"] == found
    assert history(app, session="nothing")["requests"] == []
    assert history(app, model="embedder")["requests"] == []
    assert app.http.get("/ostinato/requests", params={"model": "unknown"}).status_code == 404
    assert app.http.get("/ostinato/requests", params={"limit": 0}).status_code == 400


def test_a_difference_that_costs_nothing_is_no_break(app: RunningApp) -> None:
    turn(app, "Hello")
    turn(app, "Hello", "Yes", "Go on", tools=[])
    # The scripted engine reuses 1 token of every prompt of 3: 2 tokens lost are no break.
    assert logged(app, 2)[1]["prefix_break"] is None


def test_a_side_request_is_told_as_one(app: RunningApp) -> None:
    turn(app, "Hello")
    title = {"json_schema": {"schema": {"properties": {"title": {}}}}, "type": "json_schema"}
    turn(app, "Name this", tools=[], response_format=title)
    main, side = logged(app, 2)
    assert (side["kind"], side["turn"], side["session"]) == ("side", None, main["session"])


def test_requests_in_flight_are_told_with_what_is_known(app: RunningApp, tmp_path: Path) -> None:
    release = tmp_path / "release"
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(turn, app, f"!hold {release}")
        running = eventually(
            lambda: [e for e in history(app)["in_flight"] if e["status"] == "running" and e["session"]], "it runs"
        )
        assert history(app, model="embedder")["in_flight"] == []
        release.touch()
        answer.result()
    (entry,) = running
    assert (entry["turn"], entry["kind"], entry["model"], entry["dialect"]) == (1, "first", "m", "openai")
    assert (entry["routes"], entry["output_tokens"]) == (None, None)
    (ended,) = logged(app, 1)
    assert set(ended) == set(entry)
    assert ended["id"] == entry["id"]
    assert history(app)["in_flight"] == []


def test_a_request_cancelled_by_its_id_is_logged_as_cancelled(app: RunningApp) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "!slow 20"}]}
    with ThreadPoolExecutor(1) as pool:
        pool.submit(app.http.post, "/v1/chat/completions", json=body)
        (entry,) = eventually(lambda: history(app)["in_flight"], "it is in flight")
        assert app.http.post("/ostinato/cancel", json={"id": entry["id"]}).json()["was_running"] is True
    (ended,) = logged(app, 1)
    assert (ended["id"], ended["status"]) == (entry["id"], "cancelled")
    assert app.http.post("/ostinato/cancel", json={"id": entry["id"]}).json()["was_running"] is False


def test_failed_requests_are_logged_with_the_kind_of_their_error(own_app: RunningApp) -> None:
    own_app.chat("!overflow")
    own_app.chat("!die")
    own_app.chat("Hello")
    assert [entry["status"] for entry in logged(own_app, 3)] == ["context_length_exceeded", "engine_died", "ok"]
    # The engine that answered the last one is a new one and counts from zero.
    assert logged(own_app, 3)[2]["routes"] == 12


def test_two_at_once_share_what_was_counted(app: RunningApp) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: turn(app, f"!slow 0.{number}", session=f"s{number}"), range(2, 6)))
    found = logged(app, 4)
    assert sum(entry["routes"] for entry in found) == 4 * 12
    assert len({entry["session"] for entry in found}) == 4


# -- sessions and statistics ------------------------------------------------------------------------------------------


def test_sessions_are_told_with_their_sums_and_medians(app: RunningApp) -> None:
    turn(app, "Hello")
    turn(app, "Hello", "Yes", "Go on")
    turn(app, "Other", session=None)
    logged(app, 3)
    by_prefix, named = app.http.get("/ostinato/sessions").json()["sessions"]
    assert (by_prefix["source"], by_prefix["turns"]) == ("prefix", 1)
    assert (named["source"], named["turns"], named["model"]) == ("header", 2, "m")
    assert (named["new_tokens"], named["reused_tokens"], named["output_tokens"]) == (4, 2, 2)
    assert named["tpot_ms_p50"] == 10.0
    assert named["ttft_ms_p50"] > 0
    assert named["wait_after_tool_ms_p50"] is None
    assert named["started_at"] < named["last_at"]
    assert len(app.http.get("/ostinato/sessions", params={"limit": 1}).json()["sessions"]) == 1
    assert app.http.get("/ostinato/sessions", params={"model": "embedder"}).json()["sessions"] == []


def test_statistics_are_told_by_phase_and_kind(app: RunningApp, files: HistoryFiles) -> None:
    turn(app, "Hello")
    turn(app, "Hello", "Yes", "Go on")
    logged(app, 2)
    told = app.http.get("/ostinato/stats").json()
    (model,) = told["models"]
    assert (told["sessions"], told["requests"], model["model"], model["statuses"]) == (1, 2, "m", {"ok": 2})
    assert model["phases"] == {
        "prefill": {"tokens": 4, "routes": 16, "coverage": None},
        "decode": {"tokens": 2, "routes": 8, "coverage": None},
    }
    assert {kind: entry["requests"] for kind, entry in model["kinds"].items()} == {"first": 1, "after_user": 1}
    assert model["kinds"]["first"]["tpot_ms"] == {"p50": 10.0, "p90": 10.0, "p99": 10.0}
    assert told["database"]["file"] == str(files.database)
    assert 0 < told["database"]["used_bytes"] <= told["database"]["file_bytes"]
    assert (told["log"]["state"], told["log"]["dropped"]) == ("on", 0)
    assert told["log"]["written"] >= 2
    assert app.status()["routing_log"]["state"] == "on"


def test_the_log_outlives_the_name_of_its_model(app: RunningApp) -> None:
    turn(app, "Hello")
    logged(app, 1)
    removed = app.store.records.pop("m")
    try:
        (entry,) = history(app)["requests"]
        assert entry["model"] == FINGERPRINT[:12]
        assert app.http.post("/ostinato/forget", json={"model": entry["model"]}).json()["requests"] == 1
    finally:
        app.store.records["m"] = removed


# -- forgetting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        ({}, []),
        ({"model": None, "session": None, "before": None}, []),
        ({"session": "s1"}, ["prefix"]),
        ({"model": "embedder"}, ["prefix", "header"]),
        ({"before": 1000.0}, ["prefix", "header"]),
        ({"before": 1e12}, []),
    ],
)
def test_what_is_forgotten_is_gone(app: RunningApp, wanted: dict[str, Any], left: list[str]) -> None:
    turn(app, "Hello")
    turn(app, "Other", session=None)
    logged(app, 2)
    answer = app.http.post("/ostinato/forget", json=wanted).json()
    assert answer == {"sessions": 2 - len(left), "requests": 2 - len(left)}
    assert [entry["source"] for entry in app.http.get("/ostinato/sessions").json()["sessions"]] == left


def test_a_session_is_forgotten_by_the_name_that_it_is_told_with(app: RunningApp) -> None:
    turn(app, "Other", session=None)
    (entry,) = logged(app, 1)
    assert app.http.post("/ostinato/forget", json={"session": entry["session"]}).json()["sessions"] == 1
    turn(app, "Other", "Yes", "Go on", session=None)
    assert logged(app, 1)[0]["session"] != entry["session"]


@pytest.mark.parametrize("wanted", [{"sesion": "s1"}, {"model": "m", "older_than": 5}])
def test_a_condition_that_is_not_known_forgets_nothing(app: RunningApp, wanted: dict[str, Any]) -> None:
    turn(app, "Hello")
    logged(app, 1)
    refused = app.http.post("/ostinato/forget", json=wanted)
    assert refused.status_code == 400
    assert list(wanted)[-1] in refused.json()["error"]
    assert len(logged(app, 1)) == 1


def test_after_forgetting_all_the_same_session_has_another_name(app: RunningApp, files: HistoryFiles) -> None:
    turn(app, "Hello")
    (before,) = logged(app, 1)
    key = files.session_key.read_bytes()
    app.http.post("/ostinato/forget", json={})
    assert files.session_key.read_bytes() != key
    turn(app, "Hello", "Yes", "Go on")
    (after,) = logged(app, 1)
    assert (after["session"] != before["session"], after["turn"]) == (True, 1)


def test_sessions_keep_their_names_and_turns_when_the_daemon_restarts(
    start_app: StartApp, scripted_engine: ScriptedEngine, own_files: HistoryFiles
) -> None:
    first = start_app(scripted_engine.scripted(counts=True), history_files=own_files)
    turn(first, "Hello")
    logged(first, 1)
    second = start_app(scripted_engine.scripted(counts=True), history_files=own_files)
    turn(second, "Hello", "Yes", "Go on")
    one, two = logged(second, 2)
    assert (one["session"], one["turn"], two["turn"]) == (two["session"], 1, 2)


# -- a log that cannot be kept ----------------------------------------------------------------------------------------


def test_requests_go_on_without_a_log_and_the_status_says_why(
    start_app: StartApp, scripted_engine: ScriptedEngine, own_files: HistoryFiles
) -> None:
    own_files.database.write_bytes(b"not a database at all" * 100)
    app = start_app(scripted_engine, history_files=own_files)
    turn(app, "Hello")
    eventually(lambda: app.status()["routing_log"]["dropped"] == 1, "the loss is counted")
    reason = "the routing log is off because its database is damaged"
    assert app.status()["routing_log"]["reason"] == reason
    for path in ("requests", "sessions"):
        assert app.http.get(f"/ostinato/{path}").json()["reason"] == reason
    refused = app.http.get("/ostinato/stats")
    assert (refused.status_code, refused.json()["kind"]) == (503, "routing_log_unavailable")
    assert refused.json()["hint"] == "Begin a new log: ostinato forget --all"
    assert app.http.post("/ostinato/forget", json={}).status_code == 200
    turn(app, "Hello")
    logged(app, 1)


def test_a_log_of_size_0_is_never_made(
    start_app: StartApp, scripted_engine: ScriptedEngine, own_files: HistoryFiles
) -> None:
    app = start_app(scripted_engine, Settings(routing_log_bytes=0), history_files=own_files)
    turn(app, "Hello")
    assert history(app) == {"in_flight": [], "requests": [], "reason": None}
    assert app.http.get("/ostinato/stats").json()["log"]["state"] == "off"
    assert app.http.post("/ostinato/forget", json={}).json() == {"sessions": 0, "requests": 0}
    assert not own_files.database.exists()


# -- no text ----------------------------------------------------------------------------------------------------------


def test_no_text_of_a_request_is_in_any_file_of_the_log(
    own_app: RunningApp, own_files: HistoryFiles, tmp_path: Path
) -> None:
    """Canaries in everything that a client can put text into; the log must hold none of them, nor a part of one."""
    names = iter(range(1000))

    def canary() -> str:
        return f"CANARY{next(names):03d}tail"

    call = {"id": canary(), "type": "function", "function": {"name": canary(), "arguments": json.dumps({canary(): 1})}}
    parameters = {"type": "object", "properties": {canary(): {"type": "string", "description": canary()}}}
    body = {
        "model": "m",
        "messages": [
            {"role": "system", "content": canary()},
            {"role": "user", "name": canary(), "content": [{"type": "text", "text": canary()}]},
            {"role": "assistant", "content": canary(), "reasoning_content": canary(), "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": f"/home/{canary()}/{canary()}.py"},
        ],
        "tools": [{"type": "function", "function": {"name": canary(), "parameters": parameters}}],
        "user": canary(),
        "metadata": {"user_id": f"user_{canary()}_account__session_{canary()}", canary(): canary()},
        "prompt_cache_key": canary(),
        canary(): canary(),
        "stop": [canary()],
    }
    headers = {"X-Session-Id": canary(), "User-Agent": canary(), "Authorization": f"Bearer {canary()}"}
    for stream in (False, True):
        for content in (canary(), "!die", "!overflow"):
            messages = [*body["messages"], {"role": "user", "content": content}]
            answer = own_app.http.post(
                "/v1/chat/completions", json={**body, "messages": messages, "stream": stream}, headers=headers
            )
            assert answer.content
    own_app.http.post("/v1/completions", json={"model": "m", "prompt": canary(), "suffix": canary()}, headers=headers)
    del headers["X-Session-Id"]
    own_app.http.post("/v1/chat/completions", json={**body, "prompt_cache_key": None}, headers=headers)
    own_app.http.post("/v1/chat/completions", json={**body, "model": canary()}, headers=headers)
    logged(own_app, 8)
    held = {path.name: path.read_bytes() for path in tmp_path.glob("routes*")}
    assert set(held) >= {"routes.db", "routes.key"}
    assert [name for name, content in held.items() if b"canary" in content.lower()] == []
    _assert_only_known_words(own_files.database)


def _assert_only_known_words(database: Path) -> None:
    """Every text in every row is a word of a fixed list, an id that the daemon made, or a hash."""
    words = {"first", "after_tool", "after_user", "side", "other", "openai", "ok", "cancelled", "header", "body"}
    words |= {"prefix", "engine_died", "engine_busy", "context_length_exceeded", "message", "system", "tools"}
    words |= {"template", "rendering", "evicted", "stock"}
    connection = sqlite3.connect(database)
    for table in ("models", "sessions", "requests", "request_counts"):
        for row in connection.execute(f"select * from {table}"):
            for value in row:
                is_hash = isinstance(value, str) and all(letter in "0123456789abcdef" for letter in value)
                is_id = isinstance(value, str) and value.startswith("req-")
                assert not isinstance(value, str) or value in words or is_hash or is_id, value
    connection.close()


def test_other_users_cannot_read_what_is_kept(app: RunningApp, files: HistoryFiles) -> None:
    turn(app, "Hello")
    logged(app, 1)
    for path in files.database.parent.glob("routes*"):
        assert path.stat().st_mode & 0o077 == 0, path


# -- logs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def log_lines(tmp_path: Path) -> list[str]:
    lines = [f"line {number}" for number in range(10)]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "ostinatod.log").write_text("\n".join(lines) + "\n")
    return lines


def test_the_last_lines_of_the_logs_are_told(log_lines: list[str], own_app: RunningApp) -> None:
    assert own_app.http.get("/ostinato/logs", params={"lines": 3}).json() == {"lines": log_lines[-3:]}
    assert own_app.http.get("/ostinato/logs", params={"source": "m"}).json() == {"lines": []}
    own_app.chat("Hello")
    assert "scripted engine" in own_app.http.get("/ostinato/logs", params={"source": "m"}).text
    assert own_app.http.get("/ostinato/logs", params={"source": "../../etc/passwd"}).status_code == 404
    assert own_app.http.get("/ostinato/logs", params={"lines": 10**9}).status_code == 400


def test_the_planner_reads_what_was_logged(app: RunningApp, files: HistoryFiles) -> None:
    turn(app, "Hello")
    logged(app, 1)
    (session,) = reader.sessions(FINGERPRINT, files.database)
    assert session.prefill.tolist() == [[2, 2, 0, 0, 0, 0, 0, 0]] * 2
    assert session.decode.tolist() == [[0, 1, 1, 0, 0, 0, 0, 0]] * 2


# -- dialects ---------------------------------------------------------------------------------------------------------

CLAUDE_USER = "user_0a1b_account_77-88_session_1f2e3d4c-5b6a"


def test_a_session_of_claude_code_is_told_apart_from_its_titles(app: RunningApp) -> None:
    headers = {"x-claude-code-session-id": "1f2e3d4c-5b6a"}
    tools = [{"name": "Read", "input_schema": {"type": "object"}}]
    call = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": "x"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "text"}
    question = {"role": "user", "content": "Fix it"}
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}

    def send(messages: list[dict[str, Any]], number: int, **fields: Any) -> None:
        billing = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.{number}; cch={number};"}
        system = [billing, {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}}]
        metadata = {"user_id": CLAUDE_USER}
        body = {"model": "m", "max_tokens": 100, "system": system, "messages": messages, "metadata": metadata, **fields}
        answer = app.http.post("/v1/messages", json=body, headers=headers)
        assert answer.status_code == 200, answer.text

    send([question], 1, tools=tools)
    send([question], 2, output_config={"format": {"type": "json_schema", "schema": schema}})
    send([question, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}], 3, tools=tools)
    found = logged(app, 3)
    assert [entry["kind"] for entry in found] == ["first", "side", "after_tool"]
    assert [entry["turn"] for entry in found] == [1, None, 2]
    assert len({entry["session"] for entry in found}) == 1
    assert {entry["dialect"] for entry in found} == {"anthropic"}
    assert [entry["prefix_break"] for entry in found] == [None, None, None]


def test_a_session_of_codex_is_known_by_its_cache_key(app: RunningApp) -> None:
    question = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it"}]}
    call = {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "done"}
    tools = [{"type": "function", "name": "shell", "parameters": {"type": "object"}}]
    for items in ([question], [question, call, output]):
        body = {"model": "m", "input": items, "tools": tools, "prompt_cache_key": "s", "store": False}
        answer = app.http.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
    found = logged(app, 2)
    assert [(entry["kind"], entry["turn"], entry["dialect"]) for entry in found] == [
        ("first", 1, "responses"),
        ("after_tool", 2, "responses"),
    ]
    assert len({entry["session"] for entry in found}) == 1


def test_a_conversation_in_ollamas_words_is_known_by_its_prefix(app: RunningApp) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Fix it"}]
    for _ in range(2):
        answer = app.http.post("/api/chat", json={"model": "m", "messages": messages, "stream": False})
        assert answer.status_code == 200, answer.text
        messages += [{"role": "assistant", "content": "Done"}, {"role": "user", "content": "More"}]
    found = logged(app, 2)
    assert [(entry["kind"], entry["turn"], entry["dialect"]) for entry in found] == [
        ("first", 1, "ollama"),
        ("after_user", 2, "ollama"),
    ]
    assert len({entry["session"] for entry in found}) == 1
