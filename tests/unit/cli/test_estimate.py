from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fakes.daemon import FakeDaemon
from tests.fakes.gguf import write_model, write_split
from tests.unit.cli.conftest import Invoke

NOBODY = {"OSTINATO_HOST": "127.0.0.1:1"}
KEYS = [
    "model",
    "context_tokens",
    "expert_weights_bytes",
    "dense_weights_bytes",
    "kv_cache_bytes",
    "compute_bytes",
    "n_moe_layers",
    "n_experts",
    "k",
    "expert_bytes",
    "notes",
    "total_bytes",
    "read_per_token_bytes",
    "available_bytes",
    "gpu_free_bytes",
    "gpu_experts",
]


def test_an_estimate_needs_no_daemon_and_loads_nothing(invoke: Invoke, daemon: FakeDaemon) -> None:
    result = invoke("load", "--estimate-only", "tiny", "--json", **NOBODY)
    told = json.loads(result.stdout)
    assert (result.exit_code, list(told)) == (0, KEYS)
    # The bundled model: 8 layers of 64 experts of 51 KiB.
    assert told["expert_weights_bytes"] == 8 * 64 * told["expert_bytes"] == 26_738_688
    parts = ("expert_weights_bytes", "dense_weights_bytes", "kv_cache_bytes", "compute_bytes")
    assert told["total_bytes"] == sum(told[part] for part in parts)
    assert invoke("load", "--estimate-only", "tiny").exit_code == 0
    assert daemon.requests == []


def test_the_context_is_the_settings_capped_by_the_models(invoke: Invoke) -> None:
    def context(setting: str) -> int:
        result = invoke("load", "--estimate-only", "tiny", "--json", OSTINATO_CONTEXT=setting)
        tokens: int = json.loads(result.stdout)["context_tokens"]
        return tokens

    assert (context("2048"), context("999999")) == (2048, 8192)


def test_files_and_directories_are_estimated_where_they_lie(invoke: Invoke, tmp_path: Path) -> None:
    file = write_model(tmp_path / "one" / "m.gguf")
    split = write_split(tmp_path / "two", "big", 2)
    for path in (file, file.parent, split[0], split[0].parent):
        assert invoke("load", "--estimate-only", str(path), **NOBODY).exit_code == 0, path


def test_the_table_says_what_is_known_and_what_is_estimated(invoke: Invoke) -> None:
    result = invoke("load", "--estimate-only", "tiny")
    lines = result.stdout.splitlines()
    assert lines[0].split("  ")[0] == "USE"
    rows = {line[:16].strip(): line[16:] for line in lines[1:7]}
    assert list(rows) == [
        "expert weights",
        "dense weights",
        "KV cache",
        "compute buffers",
        "together",
        "read per token",
    ]
    assert "exact" in rows["expert weights"]
    assert "estimate" in rows["compute buffers"]
    assert "fits in the" in lines[-1]
    assert result.stderr.startswith("note: ")


def test_an_unknown_model_and_a_damaged_file_are_errors(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("load", "--estimate-only", "tinny")
    assert (result.exit_code, "Did you mean tiny?" in result.stderr) == (4, True)
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(40))
    assert invoke("load", "--estimate-only", str(tmp_path / "bad.gguf")).exit_code == 1


@pytest.mark.parametrize(("backend", "said"), [("cpu", "the engine is built for the CPU"), ("cuda", "GPU")])
def test_it_tells_where_the_engine_would_have_the_experts(
    invoke: Invoke, scripted_engine_cache: Path, backend: str, said: str
) -> None:
    (note,) = scripted_engine_cache.glob("*/build.json")
    note.write_text(json.dumps({**json.loads(note.read_text()), "backend": backend}))
    built = {"OSTINATO_ENGINE_CACHE": str(scripted_engine_cache)}
    told = json.loads(invoke("load", "--estimate-only", "tiny", "--json", **built).stdout)["gpu_experts"]
    # A tiny model fits every GPU whole, and where there is none, nothing is known of its memory.
    assert (told["chosen"], said in told["reason"]) == ("stock", True)
    assert invoke("load", "--estimate-only", "tiny", **built).stdout.splitlines()[-1] == (
        f"experts: stock, as {told['reason']}"
    )
    pool = invoke("load", "--estimate-only", "tiny", "--json", **built, OSTINATO_GPU_EXPERTS="pool")
    assert json.loads(pool.stdout)["gpu_experts"]["chosen"] == ("pool" if backend == "cuda" else "stock")


def test_without_an_engine_it_does_not_guess_where_the_experts_would_be(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("load", "--estimate-only", "tiny", "--json", OSTINATO_ENGINE_CACHE=str(tmp_path / "none"))
    assert json.loads(result.stdout)["gpu_experts"] is None
