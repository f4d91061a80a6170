"""Learning with the real engine: sessions are logged, a plan is applied, the engine runs it, and it is undone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostinatod import locations
from ostinatod.installer.engine_build import EngineBuild
from tests.conftest import RunningDaemon, StartDaemon, eventually

pytestmark = pytest.mark.engine

SESSION = json.loads((Path(__file__).parents[1] / "data" / "tau2-retail-session.json").read_text(encoding="utf-8"))
N_EXPERTS = 8 * 64
HOT = 225
"""44 % of the experts of 8 layers of 64."""


@pytest.fixture
def daemon(start_daemon: StartDaemon, engine_build: EngineBuild) -> RunningDaemon:
    """A daemon that keeps 44 % of the experts hot and leaves learning to the test."""
    return start_daemon(
        locations.engine_cache_dir(),
        OSTINATO_HOT_EXPERTS_FRACTION="0.44",
        OSTINATO_LEARN_IDLE="never",
        OSTINATO_CONTEXT="8192",
    )


def talk(daemon: RunningDaemon, session: str, text: str) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 16,
        "temperature": 0,
    }
    answer = daemon.http.post("/v1/chat/completions", json=body, headers={"X-Session-Id": session}, timeout=120)
    assert answer.status_code == 200, answer.text


def plan(daemon: RunningDaemon) -> dict[str, Any]:
    return dict(daemon.http.get("/ostinato/plan", params={"model": "tiny"}).json())


def residency(daemon: RunningDaemon) -> dict[str, Any]:
    return dict(daemon.http.get("/ostinato/residency", params={"model": "tiny"}).json())


def change(daemon: RunningDaemon, action: str) -> dict[str, Any]:
    answer = daemon.http.post("/ostinato/plan", json={"model": "tiny", "action": action}, timeout=120)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_sessions_make_a_plan_that_the_engine_runs_until_it_is_undone(daemon: RunningDaemon) -> None:
    texts = [str(message["content"]) for message in SESSION["messages"] if message.get("content")]
    talk(daemon, "one", texts[0][:700])
    first = residency(daemon)
    assert first["generation"] == 1
    assert sum(len(layer["hot"]) for layer in first["layers"]) == HOT
    assert {layer["experts"] for layer in first["layers"]} == {64}
    assert first["pool_bytes"] > 0

    talk(daemon, "two", texts[1][:700])
    told = eventually(lambda: (p := plan(daemon))["sessions"] == 2 and p, "both sessions are logged")
    proposal = told["proposal"]
    assert proposal["generation"] == 2
    assert proposal["hot_experts"] == HOT
    assert proposal["coverage_uniform"] == pytest.approx(HOT / N_EXPERTS)
    assert proposal["coverage_uniform"] < proposal["coverage_held_out"] <= proposal["coverage_hindsight"]
    assert told["skew"]["useful"]

    applied = change(daemon, "apply")
    assert (applied["status"], applied["generation"]) == ("success", 2)
    assert applied["moved"] == proposal["moved"]
    now = residency(daemon)
    assert now["generation"] == 2
    assert now["layers"] != first["layers"]
    assert not plan(daemon)["proposal"]

    talk(daemon, "three", texts[0][:400])
    assert change(daemon, "undo")["generation"] == 3
    assert residency(daemon)["layers"] == first["layers"]
    assert [(item["source"], item["state"]) for item in plan(daemon)["history"]] == [
        ("undo", "active"),
        ("learned", "rolled_back"),
        ("day0", "superseded"),
    ]
    again = daemon.http.post("/ostinato/plan", json={"model": "tiny", "action": "undo"})
    assert again.status_code == 409
    assert again.json()["kind"] == "plan_unavailable"
