"""Managing models over HTTP: what is told of them, loading and unloading, leftovers, downloads."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from ostinatod.config import Settings
from ostinatod.errors import DiskFull, PullError
from ostinatod.store.leftovers import Leftover, Leftovers
from ostinatod.store.records import PullProgress
from tests.conftest import RunningApp, ScriptedEngine, StartApp, eventually
from tests.fakes.memory_store import MemoryStore, record


def test_probes_of_ollama_clients_are_answered(shared_app: RunningApp) -> None:
    assert shared_app.http.get("/").text == "Ollama is running"
    assert shared_app.http.head("/").status_code == 200
    version = shared_app.http.get("/api/version").json()
    assert tuple(map(int, version["version"].split("."))) >= (0, 13, 4)
    assert version["ostinato"]


def test_the_chat_template_is_shown(start_app: StartApp, scripted_engine: ScriptedEngine) -> None:
    shown = start_app(scripted_engine).http.post("/api/show", json={"model": "m"}).json()
    assert shown["template"] == "{{ messages }} of m"


def test_the_loaded_context_is_told_under_every_name(start_app: StartApp, scripted_engine: ScriptedEngine) -> None:
    app = start_app(scripted_engine.scripted(n_ctx=2048))

    def told() -> set[int]:
        entry = app.http.get("/v1/models/m").json()
        shown = app.http.post("/api/show", json={"model": "m"}).json()
        return {
            *(entry["max_model_len"], entry["context_length"], entry["context_window"], entry["meta"]["n_ctx"]),
            *(shown["model_info"]["qwen3moe.context_length"], int(shown["parameters"].removeprefix("num_ctx "))),
            app.http.get("/props", params={"model": "m"}).json()["default_generation_settings"]["n_ctx"],
        }

    assert told() == {65536}
    app.chat("x")
    assert told() == {2048}
    assert app.http.get("/api/ps").json()["models"][0]["context_length"] == 2048
    assert app.http.get("/v1/models/m").json()["meta"]["n_ctx_train"] == 131072
    assert [entry["id"] for entry in app.http.get("/v1/models").json()["data"]] == ["m", "embedder"]


def test_props_tell_of_the_model_that_is_meant(start_app: StartApp, scripted_engine: ScriptedEngine) -> None:
    app = start_app(scripted_engine.scripted(n_ctx=2048), Settings(parallel=3))
    refused = app.http.get("/props")
    assert (refused.status_code, "m, embedder" in refused.text) == (400, True)
    assert app.http.get("/props", params={"model": "nothing"}).status_code == 404
    app.chat("x")
    told = app.http.get("/props").json()
    assert (told["model_alias"], told["total_slots"], told["chat_template"]) == ("m", 3, "{{ messages }} of m")
    assert told["default_generation_settings"] == {"n_ctx": 2048}


def test_load_tells_progress_and_unload_ends_the_engine(
    start_app: StartApp, scripted_engine: ScriptedEngine, tmp_path: Path
) -> None:
    loads = tmp_path / "loads"
    app = start_app(scripted_engine.scripted(load_until=str(loads)))
    lines = []
    with app.http.stream("POST", "/ostinato/load", json={"model": "m"}) as answer:
        for line in answer.iter_lines():
            lines.append(json.loads(line))
            if lines[-1]["progress"]:
                loads.touch()
    assert lines[-1] == {"status": "ready", "progress": 1.0}
    progress = [line["progress"] for line in lines if line["status"] == "loading" and line["progress"]]
    assert progress == sorted(progress)
    assert 0 < progress[0] < 1
    model = app.status()["models"][0]
    assert (model["state"], model["context_tokens"], model["slots"]) == ("ready", 4096, 4)
    assert model["rss_bytes"] > 0
    assert app.http.post("/ostinato/unload", json={"model": "m"}).json()["was_loaded"] is True
    assert app.status()["models"] == []
    assert app.http.post("/ostinato/unload", json={"model": "m"}).json()["was_loaded"] is False


def test_a_load_that_fails_ends_with_an_error_line_or_status(
    start_app: StartApp, scripted_engine: ScriptedEngine
) -> None:
    app = start_app(scripted_engine.scripted(load_s=0.6, exit_status=1, exit_words="out of memory"))
    answer = app.http.post("/ostinato/load", json={"model": "m"})
    last = json.loads(answer.text.splitlines()[-1])
    assert last["kind"] == "engine_load_error"
    assert "OSTINATO_CONTEXT" in last["hint"]


def test_keep_alive_unloads_an_idle_model_and_a_request_may_override_it(
    start_app: StartApp, scripted_engine: ScriptedEngine
) -> None:
    app = start_app(scripted_engine, Settings(keep_alive_s=0.2))
    app.chat("x", keep_alive="forever")
    time.sleep(0.4)
    assert app.http.get("/api/ps").json()["models"][0]["expires_at"] is None
    app.chat("x", keep_alive=60)
    assert app.http.get("/api/ps").json()["models"][0]["expires_at"]
    app.chat("x", keep_alive=0.3)
    eventually(lambda: app.status()["models"] == [], "the model is unloaded", 3)


def test_unload_waits_for_answers_in_flight_unless_forced(
    start_app: StartApp, scripted_engine: ScriptedEngine, tmp_path: Path
) -> None:
    app = start_app(scripted_engine)
    release = tmp_path / "release"
    with ThreadPoolExecutor(2) as pool:
        answering = pool.submit(app.chat, f"!hold {release}")
        eventually(lambda: len(scripted_engine.events("begin")) == 1, "the engine answers")
        unloading = pool.submit(app.http.post, "/ostinato/unload", json={"model": "m", "force": False})
        eventually(lambda: app.status()["models"][0]["state"] == "stopping", "the model is to leave")
        assert not unloading.done()
        release.touch()
        assert (answering.result().status_code, unloading.result().status_code) == (200, 200)
        assert app.status()["models"] == []

        answering = pool.submit(app.chat, "!slow 60")
        eventually(lambda: len(scripted_engine.events("begin")) == 2, "the next engine answers")
        app.http.post("/ostinato/unload", json={"model": "m", "force": True})
        assert answering.result().status_code == 502
    assert app.status()["models"] == []


def test_one_big_model_makes_room_for_the_next_after_its_answers(
    start_app: StartApp, scripted_engine: ScriptedEngine
) -> None:
    store = MemoryStore(record("m", size_bytes=900), record("n", size_bytes=900), record("small", size_bytes=10))
    app = start_app(scripted_engine, store=store, big_model_bytes=500)
    app.http.post("/ostinato/load", json={"model": "small"})
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(app.chat, "!slow 0.5")
        eventually(lambda: scripted_engine.events("begin"), "the first model answers")
        app.http.post("/ostinato/load", json={"model": "n"})
        assert first.result().status_code == 200
    assert {model["name"] for model in app.status()["models"]} == {"small", "n"}


def test_names_that_share_files_share_the_engine(app: RunningApp, scripted_engine: ScriptedEngine) -> None:
    assert app.http.post("/api/copy", json={"source": "m", "destination": "gpt-4"}).is_success
    app.chat("x")
    app.http.post("/v1/chat/completions", json={"model": "gpt-4", "messages": [{"role": "user", "content": "x"}]})
    assert len(scripted_engine.events("start")) == 1
    assert app.http.request("DELETE", "/api/delete", json={"model": "gpt-4"}).json()["freed_bytes"] == 1000
    assert len(app.status()["models"]) == 1
    app.http.request("DELETE", "/api/delete", json={"name": "m"})
    assert app.status()["models"] == []


def leftovers_of(app: RunningApp, **body: Any) -> tuple[bool, list[tuple[str, str, int]], int, list[str]]:
    told = app.http.post("/ostinato/prune", json=body).json()
    entries = [(entry["kind"], entry["path"], entry["size_bytes"]) for entry in told["entries"]]
    return told["deleted"], entries, told["total_bytes"], told["in_progress"]


@pytest.fixture
def left(app: RunningApp, tmp_path: Path) -> list[tuple[str, str, int]]:
    """A download in the store, saved prompts and a residency file of a model that is gone, and some of "m"."""
    download = Leftover("unfinished", "org/repo:q4", tmp_path / "blob.incomplete", 700)
    app.store.unneeded = Leftovers((download,), ("org/other:q4",))
    gone, known = "ab" * 32, app.store.resolve("m").digest
    residencies = tmp_path / "run" / "residency"
    residencies.mkdir(parents=True)
    for digest in (gone, known):
        folder = tmp_path / "prompts" / digest
        folder.mkdir(parents=True)
        (folder / "0.state").write_bytes(b"x" * 20)
        (residencies / f"{digest}.residency").write_bytes(b"x" * 3)
    return [
        ("unfinished", str(download.path), 700),
        ("prompts", str(tmp_path / "prompts" / gone), 20),
        ("residency", str(residencies / f"{gone}.residency"), 3),
    ]


def test_what_no_model_needs_is_listed_and_stays(app: RunningApp, left: list[tuple[str, str, int]]) -> None:
    assert leftovers_of(app, dry_run=True) == (False, left, 723, ["org/other:q4"])
    assert app.store.prunings == []
    assert all(Path(path).exists() for _, path, _ in left[1:])


def test_what_no_model_needs_is_deleted_and_the_rest_stays(
    app: RunningApp, left: list[tuple[str, str, int]], tmp_path: Path
) -> None:
    assert leftovers_of(app) == (True, left, 723, ["org/other:q4"])
    assert leftovers_of(app, dry_run=True) == (False, [], 0, ["org/other:q4"])
    known = app.store.resolve("m").digest
    assert not any(Path(path).exists() for _, path, _ in left)
    assert (tmp_path / "prompts" / known / "0.state").exists()
    assert (tmp_path / "run" / "residency" / f"{known}.residency").exists()


def test_only_those_paths_are_deleted_that_were_asked_for_and_that_no_model_needs(
    app: RunningApp, left: list[tuple[str, str, int]], tmp_path: Path
) -> None:
    needed = str(tmp_path / "prompts" / app.store.resolve("m").digest)
    assert leftovers_of(app, paths=[left[1][1], needed, str(tmp_path)])[1] == [left[1]]
    assert Path(left[2][1]).exists()
    assert Path(needed).exists()
    assert leftovers_of(app, paths=[])[1] == []


def test_files_of_a_model_in_memory_are_told_to_the_store_as_needed(app: RunningApp) -> None:
    app.chat("x")
    leftovers_of(app)
    assert app.store.prunings == [(None, [Path("/models/m.gguf")])]


def test_routes_are_passed_through_from_a_loaded_engine(app: RunningApp) -> None:
    assert app.http.get("/ostinato/routes", params={"model": "m"}).status_code == 400
    app.chat("x")
    assert app.http.get("/ostinato/routes", params={"model": "m"}).json() == {"layers": 2}


def test_shutdown_is_requested_once_told(app: RunningApp) -> None:
    assert app.http.post("/ostinato/shutdown", json={}).json() == {"status": "stopping"}
    assert app.shutdown_requests == [True]


# -- pulling ----------------------------------------------------------------------------------------------------------


# Watchers skip steps that they are too slow for. A script that asks the application for its status in between goes on
# when the step before has been seen: both are done by one thread, one after the other.


def steps(app: RunningApp, reference: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in app.http.post("/api/pull", json={"model": reference}).text.splitlines()]


def test_a_pull_tells_each_step_and_ends_with_success(shared_app: RunningApp) -> None:
    def script(_: str, on_progress: Any, __: threading.Event) -> None:
        on_progress(PullProgress("resolving"))
        shared_app.status()
        on_progress(PullProgress("downloading", "a.gguf", 5, 10, 5, 20))
        shared_app.status()
        on_progress(PullProgress("success"))

    shared_app.store.pull_script = script
    downloading = {"digest": "a.gguf", "file": "a.gguf", "total": 10, "completed": 5}
    assert steps(shared_app, "org/repo") == [
        {"status": "resolving"},
        {"status": "downloading", **downloading, "all_total": 20, "all_completed": 5},
        {"status": "success"},
    ]


def test_what_is_known_up_front_fails_with_a_status(shared_app: RunningApp) -> None:
    def script(_: str, on_progress: Any, __: threading.Event) -> None:
        on_progress(PullProgress("resolving"))
        shared_app.status()
        raise DiskFull("needs 9 GB, 1 GB is free", hint="Free some")

    shared_app.store.pull_script = script
    answer = shared_app.http.post("/api/pull", json={"model": "org/repo"})
    assert answer.status_code == 507
    assert answer.json() == {"error": "needs 9 GB, 1 GB is free", "kind": "disk_full", "hint": "Free some"}


def test_a_pull_that_fails_later_ends_with_an_error_line(shared_app: RunningApp) -> None:
    def script(_: str, on_progress: Any, __: threading.Event) -> None:
        on_progress(PullProgress("downloading", "a", 1, 2))
        shared_app.status()
        raise PullError("the connection broke", hint="Resume it")

    shared_app.store.pull_script = script
    assert steps(shared_app, "org/repo")[-1] == {
        "error": "the connection broke",
        "kind": "pull_error",
        "hint": "Resume it",
    }


def test_watchers_share_a_pull_and_the_last_to_leave_cancels_it(shared_app: RunningApp) -> None:
    cancelled, pulls_before = threading.Event(), shared_app.store.pulls

    def script(_: str, on_progress: Any, stop: threading.Event) -> None:
        on_progress(PullProgress("downloading", "a", 1, 2))
        if stop.wait(60):
            cancelled.set()

    shared_app.store.pull_script = script
    asking: Any = ("POST", f"{shared_app.url}/api/pull")
    with shared_app.http.stream(*asking, json={"model": "org/repo"}) as first:
        ours = first.iter_lines()
        assert next(ours)
        with httpx.stream(*asking, json={"model": "org/repo"}, trust_env=False) as second:
            theirs = second.iter_lines()
            assert next(theirs)
        assert not cancelled.wait(0.3)
    assert cancelled.wait(3)
    assert shared_app.store.pulls - pulls_before == 1
    shared_app.store.pull_script = lambda *_: None
    assert steps(shared_app, "org/repo") == [{"status": "success"}]


@pytest.mark.parametrize("path", ["/etc/passwd", "./m.gguf", "../m", "~/m.gguf", "file:///m.gguf", "C:\\m.gguf"])
def test_pull_takes_no_paths_but_add_does(shared_app: RunningApp, path: str) -> None:
    pulls_before = shared_app.store.pulls
    assert shared_app.http.post("/api/pull", json={"model": path}).status_code == 400
    assert shared_app.store.pulls == pulls_before
    added = shared_app.http.post("/ostinato/add", json={"path": "/models/new.gguf", "name": None})
    assert added.json()["name"] == "new"
    assert shared_app.http.post("/ostinato/add", json={"path": "new.gguf"}).status_code == 400
