"""The engine's command line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ostinatod.config import Settings
from ostinatod.engine.arguments import context_tokens, engine_arguments, engine_environment
from tests.fakes.memory_store import record

SOCKET = Path("/run/e.sock")


def value_of(arguments: tuple[str, ...], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


def test_context_is_the_setting_capped_by_the_training() -> None:
    model = record("m")
    assert context_tokens(Settings(context_tokens=65536), model) == 65536
    assert context_tokens(Settings(context_tokens=200_000), model) == 131072
    unknown = dataclasses.replace(model, shape=dataclasses.replace(model.shape, context_tokens=0))
    assert context_tokens(Settings(context_tokens=200_000), unknown) == 200_000


def test_conversations_share_one_cache_of_the_whole_context() -> None:
    arguments = engine_arguments(Settings(parallel=3, context_tokens=4096), record("m"), SOCKET)
    assert (value_of(arguments, "--parallel"), value_of(arguments, "--ctx-size")) == ("3", "4096")
    assert {"--kv-unified", "--jinja", "--no-ui", "--no-context-shift", "--offline"} <= set(arguments)
    assert value_of(arguments, "--cors-origins") == "null"
    assert value_of(arguments, "--host") == "/run/e.sock"


def test_embedding_models_take_a_whole_input_in_one_batch() -> None:
    arguments = engine_arguments(Settings(context_tokens=512), record("e", is_embedding=True), SOCKET)
    assert "--embeddings" in arguments
    assert value_of(arguments, "--ubatch-size") == value_of(arguments, "--batch-size") == "512"
    assert "--jinja" not in arguments


def test_routes_are_counted_where_there_are_experts() -> None:
    model = record("m")
    dense = dataclasses.replace(model, shape=dataclasses.replace(model.shape, n_experts=0))
    assert "--ostinato-count-routes" in engine_arguments(Settings(), model, SOCKET)
    assert "--ostinato-count-routes" not in engine_arguments(Settings(), dense, SOCKET)


def test_a_residency_file_comes_with_what_it_needs() -> None:
    model = record("m")
    plain = engine_arguments(Settings(), model, SOCKET)
    assert value_of(plain, "--ostinato-fingerprint") == model.digest
    assert {"--ostinato-residency", "--no-repack"}.isdisjoint(plain)
    hot = engine_arguments(Settings(), model, SOCKET, Path("/data/m.residency"))
    assert value_of(hot, "--ostinato-residency") == "/data/m.residency"
    # Rearranged weights could neither be copied into the pool nor be multiplied row by row.
    assert "--no-repack" in hot
    dense = dataclasses.replace(model, shape=dataclasses.replace(model.shape, n_experts=0))
    assert "--ostinato-residency" not in engine_arguments(Settings(), dense, SOCKET, Path("/data/m.residency"))


def test_the_users_own_arguments_come_last() -> None:
    settings = Settings(threads=7, engine_args=("--ctx-size", "1"))
    arguments = engine_arguments(settings, record("m"), SOCKET)
    assert arguments[-2:] == ("--ctx-size", "1")
    assert value_of(arguments, "--threads") == "7"


def test_the_environment_cannot_change_the_engines_settings() -> None:
    given = {
        "PATH": "/bin",
        "LLAMA_ARG_CTX_SIZE": "1",
        "AIP_MODE": "PREDICTION",
        "HF_TOKEN": "s",
        "LD_LIBRARY_PATH": "/a",
    }
    assert engine_environment(given, Path("/lib/o")) == {"PATH": "/bin", "LD_LIBRARY_PATH": "/lib/o:/a"}


def test_an_expert_pool_on_gpus_is_asked_for_by_the_choice_and_by_nothing_else() -> None:
    model = record("m")
    file = Path("/data/m.residency")
    plain = engine_arguments(Settings(gpu_experts="pool"), model, SOCKET, file, "cuda", experts="stock")
    assert {"--ostinato-branches", "--gpu-layers", "--cpu-moe", "--fit"}.isdisjoint(plain)
    assert "--ostinato-residency" not in plain
    pool = engine_arguments(Settings(), model, SOCKET, file, "cuda", experts="pool")
    assert {"--ostinato-branches", "--cpu-moe", "--no-repack", "--no-warmup"} <= set(pool)
    assert pool[pool.index("--threads") + 1] == "1"
    assert pool[pool.index("--ostinato-residency") + 1] == str(file)
    cpu = engine_arguments(Settings(), model, SOCKET, None, "cpu", experts="pool")
    assert "--ostinato-branches" not in cpu
    dense = dataclasses.replace(model, shape=dataclasses.replace(model.shape, n_experts=0))
    assert "--ostinato-branches" not in engine_arguments(Settings(), dense, SOCKET, None, "cuda", experts="pool")
