"""The routing log of the daemon as a process: with the real engine's counts, and through kills."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinatod import locations
from ostinatod.installer.engine_build import EngineBuild
from ostinatod.profiles.route_log import total_counts
from ostinatod.routing_log import reader, schema
from tests.conftest import RunningDaemon, StartDaemon, eventually

SESSION = json.loads((Path(__file__).parents[1] / "data" / "tau2-retail-session.json").read_text())
TOOLS = SESSION["tools"][:2]
_OWN_WORDS = Path(schema.__file__).read_bytes()


def ask(daemon: RunningDaemon, *texts: str, session: str = "s1", model: str = "tiny", **fields: Any) -> Any:
    """One turn of a conversation in which user and assistant alternate behind a system prompt."""
    roles = ("user", "assistant")
    system = fields.pop("system", "You help customers of a shop with their orders, politely and in few words. " * 4)
    turns = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    body = {"model": model, "messages": [{"role": "system", "content": system}, *turns], "max_tokens": 8, **fields}
    answer = daemon.http.post("/v1/chat/completions", json=body, headers={"X-Session-Id": session})
    assert answer.status_code == 200, answer.text
    return answer.json()


def logged(daemon: RunningDaemon, number: int) -> list[dict[str, Any]]:
    """The requests that have ended, once there are that many; the earliest first."""

    def enough() -> list[dict[str, Any]] | None:
        found: list[dict[str, Any]] = daemon.http.get("/ostinato/requests").json()["requests"]
        return found if len(found) >= number else None

    return list(reversed(eventually(enough, f"{number} requests are logged")))


@pytest.fixture
def daemon(engine_build: EngineBuild, start_daemon: StartDaemon) -> RunningDaemon:
    return start_daemon(locations.engine_cache_dir())


@pytest.mark.engine
def test_what_is_logged_adds_up_to_what_the_engine_counted_and_holds_no_word(daemon: RunningDaemon) -> None:
    answer = ask(daemon, "Where is my order?", tools=TOOLS)
    ask(daemon, "Where is my order?", "On its way.", "And when?", tools=TOOLS, stream=False)
    ask(daemon, "I want my money back.", session="s2", tools=TOOLS)
    found = logged(daemon, 3)
    engine = daemon.http.get("/ostinato/routes", params={"model": "tiny"}).json()
    fingerprint = daemon.http.get("/ostinato/status").json()["models"][0]["digest"]
    sessions = reader.sessions(fingerprint, daemon.home / "routes.db")
    assert [session.requests for session in sessions] == [2, 1]
    prefill, decode = total_counts(sessions)
    assert np.array_equal(prefill, engine["prefill"])
    assert np.array_equal(decode, engine["decode"])
    assert sum(entry["routes"] for entry in found) == int(prefill.sum() + decode.sum())
    usage = answer["usage"]
    assert found[0]["new_tokens"] + found[0]["reused_tokens"] == usage["prompt_tokens"]
    assert found[0]["output_tokens"] == usage["completion_tokens"]
    assert found[1]["reused_tokens"] > 0
    assert found[0]["tpot_ms"] > 0
    assert 0 < found[0]["ttft_ms"] < found[0]["total_ms"]
    held = b"".join(path.read_bytes() for path in daemon.home.glob("routes*"))
    told = {word.encode() for word in json.dumps(TOOLS).split() if len(word) > 6 and word.isalpha()}
    assert len(told) > 20
    # Words of our own schema may be those of a tool too.
    assert [word for word in told if word in held and word not in _OWN_WORDS] == []


@pytest.mark.engine
def test_a_changed_system_prompt_is_told_as_the_break_it_is(daemon: RunningDaemon) -> None:
    ask(daemon, "Where is my order?")
    ask(daemon, "Where is my order?", "On its way.", "And when?")
    ask(daemon, "Where is my order?", "On its way.", "And when?", "Soon.", "Thanks", system="Answer briefly.")
    first, second, third = logged(daemon, 3)
    assert (first["prefix_break"], second["prefix_break"]) == (None, None)
    prompt_tokens = second["new_tokens"] + second["reused_tokens"]
    assert third["prefix_break"] == {
        "reason": "system",
        "detail": "the system prompt changed",
        "lost_tokens": prompt_tokens - third["reused_tokens"],
    }
    assert third["prefix_break"]["lost_tokens"] > 16


@pytest.mark.engine
def test_a_model_that_is_unloaded_at_once_keeps_the_counts_of_its_last_request(daemon: RunningDaemon) -> None:
    for number in (1, 2):
        ask(daemon, "Where is my order?", keep_alive=0)
        (*_, last) = logged(daemon, number)
        # Eight layers of eight routes for every token that was read or written, but for the last layer of the prompt.
        assert last["routes"] > 7 * 8 * (last["new_tokens"] + last["output_tokens"])
        assert last["path"] == "stock"


def test_a_killed_daemon_loses_at_most_the_request_that_ended_last(
    start_daemon: StartDaemon, scripted_engine_cache: Path
) -> None:
    script = json.dumps({"counts": True})
    daemon = start_daemon(scripted_engine_cache, OSTINATO_SCRIPTED_ENGINE=script)
    number = 6
    for turn in range(number):
        ask(daemon, *(["Go on", "Yes"] * turn), "!slow 0.1")
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait()
    file = daemon.home / "routes.db"
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    found = reader.latest_requests(file)
    assert [entry.turn for entry in found] == list(range(len(found), 0, -1))
    assert len(found) >= number - 1
    (session,) = reader.latest_sessions(file)
    # Each request counts 12 routes.
    (routes,) = reader.sessions(session.fingerprint, file)
    assert (session.requests, routes.routes) == (len(found), len(found) * 12)

    again = start_daemon(scripted_engine_cache, OSTINATO_SCRIPTED_ENGINE=script, OSTINATO_HOME=str(daemon.home))
    ask(again, *(["Go on", "Yes"] * number), "Hello")
    assert logged(again, len(found) + 1)[-1]["turn"] == len(found) + 1
