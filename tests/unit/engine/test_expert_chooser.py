"""The decision of `gpu_experts` for real headers and GPUs that a test makes up, through to what the daemon tells."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ostinatod.config import Settings
from ostinatod.engine.expert_chooser import ExpertChooser, free_bytes_seen
from ostinatod.engine.gpu_experts import STOCK_HINT
from ostinatod.loaded import LoadedModel, LoadedModels, Places
from ostinatod.machine.gpus import Gpu, PcieLink
from ostinatod.profiles.pool_support import STOCK_ARCHITECTURES
from ostinatod.store.records import ModelRecord
from tests.conftest import ScriptedEngine, eventually
from tests.fakes.gguf import Tensor, model_metadata, write
from tests.fakes.memory_store import record

GIB = 1024**3


def gpu(index: int, free_bytes: int) -> Gpu:
    return Gpu(index, "gpu", f"GPU-{index}{index}", 100 * GIB, free_bytes, "575.1", "9.0", 0, PcieLink(5, 16, 5, 16))


def moe(directory: Path, *, type_name: str = "MXFP4", **metadata: Any) -> ModelRecord:
    """4 experts of 17,408 bytes in each of 2 layers: 136 KiB of experts, and an embedding of 768 bytes."""
    experts = [Tensor(f"blk.{layer}.ffn_up_exps.weight", (256, 128, 4), type_name) for layer in (0, 1)]
    path = write(
        directory / "m.gguf", model_metadata(**metadata), [Tensor("token_embd.weight", (64, 3), "F32"), *experts]
    )
    made = record("m", path=path)
    return dataclasses.replace(made, shape=dataclasses.replace(made.shape, context_tokens=4096))


def chooser(*gpus: Gpu, visible: str | None = None, **settings: Any) -> ExpertChooser:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return ExpertChooser(Settings(**settings), environment, lambda: gpus)


# 1.5 GiB of reserve, and compute buffers of 512 tokens: 4 KiB of hidden states and selected experts, 8 KiB of mask.
BUFFERS_BYTES = 3 * GIB // 2 + 512 * ((2 * 64 + 2 * 64) * 4 + 4096 * 2)
EXPERTS_BYTES = 2 * 4 * 64 * 512 * 17 // 32


@pytest.mark.parametrize(
    ("spare_bytes", "chosen"),
    [(-1, "stock"), (768, "pool"), (768 + EXPERTS_BYTES - 1, "pool"), (768 + EXPERTS_BYTES, "stock")],
)
def test_a_pool_is_for_a_model_that_does_not_fit_whole(tmp_path: Path, spare_bytes: int, chosen: str) -> None:
    choice = chooser(gpu(0, BUFFERS_BYTES + spare_bytes)).choose(moe(tmp_path), "cuda")
    assert (choice.chosen, choice.refused) == (chosen, None)


def test_without_a_driver_the_memory_is_unknown_and_the_placement_llama_cpps(tmp_path: Path) -> None:
    choice = chooser().choose(moe(tmp_path), "cuda")
    assert choice.chosen == "stock"
    assert "unknown" in choice.reason


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architecture": "refact"}, "refact: its graph does not compute its experts"),
        ({"architecture": "dflash"}, "dflash: the placement of its experts has not been evaluated"),
        ({"type_name": "TQ2_0"}, "blk.0.ffn_up_exps.weight is TQ2_0"),
    ],
)
def test_a_model_that_the_branches_cannot_divide_is_left_to_llama_cpp(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    choice = chooser(gpu(0, BUFFERS_BYTES + 768)).choose(moe(tmp_path, **changes), "cuda")
    assert choice.chosen == "stock"
    assert choice.reason.startswith(said)


def test_what_is_left_to_llama_cpp_by_name_is_what_the_page_lists() -> None:
    page = (Path(__file__).parents[3] / "docs" / "placement-invariance.md").read_text(encoding="utf-8")
    evaluated = {line.split("|")[1].split(",")[0].strip() for line in page.splitlines() if line.startswith("| ")}
    assert {"qwen3moe", "deepseek4"} <= evaluated
    assert evaluated.isdisjoint(STOCK_ARCHITECTURES)
    not_evaluated = page.partition("Not evaluated:")[2].partition("## Measured")[0]
    assert all(f"*{name}*" in not_evaluated for name in STOCK_ARCHITECTURES)


def test_biases_that_are_not_f32_are_left_to_llama_cpp(tmp_path: Path) -> None:
    made = moe(tmp_path)
    tensors = [Tensor("blk.0.ffn_up_exps.weight", (256, 128, 4), "MXFP4")]
    write(made.parts[0], model_metadata(), [*tensors, Tensor("blk.0.ffn_up_exps.bias", (128, 4), "F16")])
    choice = chooser(gpu(0, BUFFERS_BYTES)).choose(made, "cuda")
    assert (choice.chosen, "biases and scales as F32 only" in choice.reason) == ("stock", True)


def test_a_file_that_cannot_be_read_is_left_to_llama_cpp(tmp_path: Path) -> None:
    damaged = record("m", path=tmp_path / "m.gguf")
    damaged.parts[0].write_bytes(b"GGUF" + bytes(40))
    gone = record("gone", path=tmp_path / "gone.gguf")
    for item in (damaged, gone):
        choice = chooser(gpu(0, GIB)).choose(item, "cuda")
        assert (choice.chosen, "header cannot be read" in choice.reason) == ("stock", True)


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, (10, 11, 12)),
        ("1", (11,)),
        ("2, 0", (12, 10)),
        ("GPU-11", (11,)),
        ("GPU-2", (12,)),
        ("0,7,1", (10,)),
        ("0,0", (10,)),
        ("-1", ()),
        ("", ()),
        ("GPU-", ()),
        ("MIG-3", None),
    ],
)
def test_only_memory_counts_that_the_engine_will_see(visible: str | None, seen: tuple[int, ...] | None) -> None:
    gpus = [gpu(index, 10 + index) for index in range(3)]
    assert free_bytes_seen(gpus, visible) == seen
    assert free_bytes_seen([], visible) is None


def loaded_models(engine: ScriptedEngine, gpus: Callable[[], Sequence[Gpu]], directory: Path) -> LoadedModels:
    """Models that this engine runs, on these GPUs."""
    sockets = directory / "run"
    sockets.mkdir(mode=0o700)
    environment = {key: text for key, text in engine.environment().items() if key != "CUDA_VISIBLE_DEVICES"}
    places = Places(sockets=sockets, logs=directory / "logs", environment=environment)
    return LoadedModels(lambda: engine, Settings(), places, gpus=gpus)


async def load_once(engine: ScriptedEngine, model: ModelRecord, gpus: Sequence[Gpu], directory: Path) -> LoadedModel:
    """The model as displayed after it was loaded."""
    models = loaded_models(engine, lambda: gpus, directory)
    try:
        await models.load(model, lambda _: None)
        (shown,) = models.snapshot()
        return shown
    finally:
        await models.close()


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_refused_pool_is_told_with_the_next_command(
    tmp_path: Path, scripted_engine: ScriptedEngine, caplog: pytest.LogCaptureFixture, is_refused: bool
) -> None:
    caplog.set_level("INFO")
    devices = [] if is_refused else [{"name": "CUDA0", "gpu": True}]
    told = {"devices": devices, "residency": {"state": "none", "reason": "no row kernel" if is_refused else ""}}
    engine = dataclasses.replace(scripted_engine.scripted(told=told), backend="cuda")
    gpus = [gpu(0, BUFFERS_BYTES + 768)]
    shown = asyncio.run(load_once(engine, moe(tmp_path), gpus, tmp_path))
    assert shown.experts.chosen == "pool"
    refusal = ("no row kernel", STOCK_HINT) if is_refused else (None, None)
    assert (shown.experts.refused, shown.experts.hint) == refusal
    assert f"engine_started model=m pid={shown.pid}" in caplog.text
    assert "gpu_experts=pool reason='weights and KV cache" in caplog.text
    assert ("expert_pool_refused model=m reason='no row kernel'" in caplog.text) == is_refused


def test_after_a_crash_the_placement_is_chosen_by_what_is_free_then(
    tmp_path: Path, scripted_engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    engine = dataclasses.replace(
        scripted_engine.scripted(told={"devices": [{"name": "CUDA0", "gpu": True}]}), backend="cuda"
    )
    gpus: list[Gpu] = []

    async def body() -> list[str]:
        models, model = loaded_models(engine, lambda: gpus, tmp_path), moe(tmp_path)
        chosen = []
        try:
            for free_bytes in (BUFFERS_BYTES + 768, 100 * GIB):
                gpus[:] = [gpu(0, free_bytes)]
                await models.load(model, lambda _: None)
                (shown,) = models.snapshot()
                chosen.append(shown.experts.chosen)
                assert shown.pid is not None
                os.kill(shown.pid, signal.SIGKILL)
                await asyncio.to_thread(eventually, lambda: models.engine_client(model) is None, "its end to be seen")
        finally:
            await models.close()
        return chosen

    assert asyncio.run(body()) == ["pool", "stock"]
    starts = [record.getMessage() for record in caplog.records if record.getMessage().startswith("engine_started")]
    assert ["gpu_experts=pool" in starts[0], "gpu_experts=stock" in starts[1]] == [True, True]
