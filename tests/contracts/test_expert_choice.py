"""The daemon tells of each model where its experts are, and why."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from ostinatod.config import Settings
from tests.conftest import ScriptedEngine, running_app


def test_status_and_ps_tell_where_the_experts_are_and_why(tmp_path: Path, scripted_engine: ScriptedEngine) -> None:
    with running_app(tmp_path, scripted_engine) as app:
        app.chat("hello")
        (told,) = app.status()["models"]
        (listed,) = app.http.get("/api/ps").json()["models"]
    expected = {"chosen": "stock", "reason": "the engine is built for the CPU", "refused": None, "hint": None}
    assert told["gpu_experts"] == listed["gpu_experts"] == expected


def test_a_refused_pool_is_told_with_what_to_do(tmp_path: Path, scripted_engine: ScriptedEngine) -> None:
    told = {"devices": [], "residency": {"state": "refused", "reason": "layer 0: no row kernel"}}
    engine = dataclasses.replace(scripted_engine.scripted(told=told), backend="cuda")
    with running_app(tmp_path, engine, Settings(gpu_experts="pool")) as app:
        app.chat("hello")
        experts = app.status()["models"][0]["gpu_experts"]
    assert (experts["chosen"], experts["refused"]) == ("pool", "layer 0: no row kernel")
    assert 'gpu_experts = "stock"' in experts["hint"]


def test_ps_tells_what_lies_in_the_memory_of_gpus_and_nothing_that_is_not_known(
    tmp_path: Path, scripted_engine: ScriptedEngine
) -> None:
    def listed(backend: Literal["cpu", "cuda"], **told: Any) -> Any:
        engine = dataclasses.replace(scripted_engine.scripted(told=told), backend=backend)
        with running_app(tmp_path, engine, Settings(gpu_experts="stock")) as app:
            app.chat("hello")
            return app.http.get("/api/ps").json()["models"][0]["size_vram"]

    gpu = {"name": "CUDA0", "total_bytes": 900, "free_bytes": 800, "dense_bytes": 10, "kv_bytes": 20}
    more = {"compute_bytes": 3, "pool_bytes": 4, "staging_bytes": 5}
    memory = {"devices": [{**gpu, **more}, gpu], "host": {"weights_bytes": 700}}
    assert listed("cuda", memory=memory) == 10 + 20 + 3 + 4 + 5 + 10 + 20
    assert listed("cuda") is None
    assert listed("cpu") == 0
