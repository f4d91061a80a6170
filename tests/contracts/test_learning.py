"""Plan, residency and profile over HTTP, with a scripted engine: shapes, and errors in plain words."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ostinatod.config import Settings
from tests.conftest import RunningApp, ScriptedEngine, StartApp
from tests.fakes.gguf import write_model
from tests.fakes.memory_store import MemoryStore, record


@pytest.fixture
def app(start_app: StartApp, scripted_engine: ScriptedEngine, tmp_path: Path) -> RunningApp:
    """One MoE model of 2 layers of 4 experts, half of them to be hot."""
    model = record("m", path=write_model(tmp_path / "m.gguf"))
    model = dataclasses.replace(model, shape=dataclasses.replace(model.shape, n_experts=4))
    return start_app(scripted_engine, Settings(hot_experts_fraction=0.5), MemoryStore(model))


def test_a_plan_without_sessions_says_so(app: RunningApp) -> None:
    assert app.http.get("/ostinato/plan", params={"model": "m"}).json() == {
        "model": "m",
        "sessions": 0,
        "skew": {
            "gain": 0.0,
            "useful": False,
            "sentence": "No routes have been counted yet, so there is nothing to learn from.",
        },
        "in_use": None,
        "proposal": None,
        "reasons": [
            "No routes have been counted yet, so there is nothing to learn from.",
            "Until there is a session, the experts are spread evenly.",
        ],
        "timing": {
            "requests": 0,
            "cold_route_ms": None,
            "cold_route_ms_error": None,
            "checked_requests": 0,
            "median_error": None,
            "bias": None,
            "calibration": None,
        },
        "history": [],
    }


@pytest.mark.parametrize(("action", "words"), [("apply", "No routes have been counted"), ("undo", "no set before")])
def test_there_may_be_nothing_to_do(app: RunningApp, action: str, words: str) -> None:
    answer = app.http.post("/ostinato/plan", json={"model": "m", "action": action})
    assert answer.status_code == 409
    assert words in answer.json()["error"]
    assert answer.json()["hint"].count("ostinato plan m")


def test_what_is_no_action_and_no_model_is_refused(app: RunningApp) -> None:
    assert app.http.post("/ostinato/plan", json={"model": "m", "action": "improve"}).status_code == 400
    assert app.http.get("/ostinato/plan", params={"model": "x"}).status_code == 404


def test_the_set_in_use_is_told_once_it_is(app: RunningApp) -> None:
    before = app.http.get("/ostinato/residency", params={"model": "m"}).json()
    layers = [{"layer": layer, "experts": 4, "k": 2, "hot": []} for layer in (0, 1)]
    assert before == {"generation": None, "layers": layers, "pool_bytes": None, "reason": "m is not loaded"}
    assert app.chat("hello").status_code == 200
    (first,) = app.http.get("/ostinato/plan", params={"model": "m"}).json()["history"]
    assert {key: first[key] for key in ("generation", "source", "state", "hot_experts", "moved", "note")} == {
        "generation": 1,
        "source": "day0",
        "state": "active",
        "hot_experts": 4,
        "moved": 4,
        "note": "",
    }


def test_the_profile_has_every_part(app: RunningApp) -> None:
    told = app.http.get("/ostinato/profile").json()
    assert {"fingerprint", "measured_at", "gpus", "cpus", "memory", "usable_cores"} <= set(told)
    assert app.http.get("/ostinato/profile").json() == told


def test_the_profile_is_told_though_what_was_learned_is_damaged(
    start_app: StartApp, scripted_engine: ScriptedEngine, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "run" / "learning.db").write_bytes(b"no database at all, but long enough to be looked at" * 20)
    app = start_app(scripted_engine, store=MemoryStore(record("m", path=write_model(tmp_path / "m.gguf"))))
    told = app.http.get("/ostinato/profile").json()
    assert told["memory"]["total_bytes"] > 0
    assert told["calibrations"] == []
    assert "cannot be read or written" in told["calibrations_reason"]
    plan = app.http.get("/ostinato/plan", params={"model": "m"})
    assert plan.status_code == 409
    assert plan.json()["hint"].startswith("Delete ")
