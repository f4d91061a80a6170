"""Learning with the real engine: sessions are logged, a plan is applied, the engine runs it, and it is undone.

A log that favours what nobody uses is the worst that can be learned from. It is made of real requests' neighbours: each
layer's least selected experts in recorded sessions.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinatod import locations
from ostinatod.installer.engine_build import EngineBuild
from ostinatod.routing_log.counts import RouteCounts
from ostinatod.routing_log.records import RequestRecord
from ostinatod.routing_log.writer import RoutingLog
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


@pytest.fixture
def learning_daemon(start_daemon: StartDaemon, engine_build: EngineBuild) -> StartDaemon:
    """A daemon that looks at its model as soon as that has been idle for a moment: `learning_daemon(**environment)`."""

    def start(**environment: str) -> RunningDaemon:
        return start_daemon(
            locations.engine_cache_dir(),
            OSTINATO_HOT_EXPERTS_FRACTION="0.44",
            OSTINATO_LEARN_IDLE="1",
            OSTINATO_CONTEXT="8192",
            **environment,
        )

    return start


def poison(daemon: RunningDaemon, sessions: int) -> None:
    """Log sessions of a million routes to each of the experts that recorded sessions use least."""
    recorded = np.load(Path(__file__).parents[1] / "data" / "tiny-routes.npz")
    used = recorded["prefill"].sum(axis=0) + recorded["decode"].sum(axis=0)
    unused = np.argsort(np.argsort(used, axis=1), axis=1) < used.shape[1] * HOT // N_EXPERTS
    counts = np.where(unused, 1_000_000, 0).astype(np.int64)
    (model,) = daemon.http.get("/ostinato/status").json()["models"]
    log = RoutingLog(daemon.home / "routes.db", 1 << 30)
    log.start()
    fields: dict[str, Any] = dict.fromkeys(RequestRecord.__dataclass_fields__)
    for number in range(sessions):
        fields |= {"id": f"poison-{number}", "session": f"poison-{number}", "source": "header", "turn": 1}
        fields |= {"fingerprint": model["digest"], "kind": "first", "dialect": "openai", "status": "ok"}
        fields |= {"started_at": time.time(), "total_ms": 1.0, "new_tokens": 10**6, "output_tokens": 10**6}
        log.put(RequestRecord(**{**fields, "counts": RouteCounts(tuple(recorded["layers"].tolist()), counts, counts)}))
    log.flush()
    assert log.status().written == sessions
    log.close()


def history(daemon: RunningDaemon) -> list[tuple[str, str]]:
    return [(item["source"], item["state"]) for item in plan(daemon)["history"]]


def talk(daemon: RunningDaemon, session: str, text: str) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        # Of fewer tokens a session is no ground to judge a set on.
        "max_tokens": 64,
        "ignore_eos": True,
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


def test_a_set_that_was_learned_from_a_poisoned_log_is_taken_back_by_itself(learning_daemon: StartDaemon) -> None:
    # A gain of all routes is never expected, so that nothing but going back can happen by itself.
    daemon = learning_daemon(OSTINATO_LEARN_MIN_GAIN="1.0")
    assert daemon.http.post("/api/generate", json={"model": "tiny"}, timeout=120).status_code == 200
    first = residency(daemon)
    poison(daemon, 3)
    eventually(lambda: history(daemon)[0] == ("learned", "active"), "the poisoned log is learned from")
    texts = [str(message["content"]) for message in SESSION["messages"] if message.get("content")]
    for number, text in enumerate(texts[:3]):
        talk(daemon, f"real-{number}", text[:300])
    eventually(lambda: history(daemon)[0] == ("undo", "active"), "it is taken back")
    assert history(daemon) == [("undo", "active"), ("learned", "rolled_back"), ("day0", "superseded")]
    assert residency(daemon)["layers"] == first["layers"]
    returned, poisoned, _ = plan(daemon)["history"]
    assert "would have covered" in returned["note"]
    assert poisoned["coverage_measured"] < 0.3


def test_real_sessions_overrule_a_poisoned_log(learning_daemon: StartDaemon) -> None:
    daemon = learning_daemon()
    assert daemon.http.post("/api/generate", json={"model": "tiny"}, timeout=120).status_code == 200
    poison(daemon, 1)
    eventually(lambda: history(daemon)[0] == ("learned", "active"), "the poisoned log is learned from")
    texts = [str(message["content"]) for message in SESSION["messages"] if message.get("content")]
    even = HOT / N_EXPERTS

    def covered(number: int) -> float:
        """What the set in use covers of a further session's decode."""
        talk(daemon, f"real-{number}", texts[number][:300])
        (last,) = eventually(
            lambda: [
                entry
                for entry in daemon.http.get("/ostinato/requests", params={"limit": 1}).json()["requests"]
                if daemon.http.get("/ostinato/stats").json()["requests"] == number + 2
            ],
            "the request is logged",
        )
        return float(last["coverage_decode"])

    assert covered(0) < even
    eventually(lambda: history(daemon)[0] == ("undo", "active"), "it is taken back")
    for number in range(1, 4):
        covered(number)
    eventually(lambda: history(daemon)[0] == ("learned", "active"), "the real sessions are learned from")
    assert covered(4) > 1.2 * even
