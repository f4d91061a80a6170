"""The decision behind the setting `gpu_experts`, as a pure function."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinatod.config import GPU_EXPERTS, Settings
from ostinatod.engine.gpu_experts import (
    RESERVE_BYTES,
    ExpertChoice,
    ModelNeeds,
    choose_by_memory,
    choose_unread,
    why_refused,
)

MIB = 1024**2
GIB = 1024**3


def up_to(most_gib: int) -> st.SearchStrategy[int]:
    """Sizes in steps of 1/4 GiB, coarse enough to meet each other."""
    return st.integers(0, 4 * most_gib).map(lambda quarters: quarters * GIB // 4)


needs = st.builds(ModelNeeds, experts_bytes=up_to(32), resident_bytes=up_to(8), compute_bytes=up_to(2))
memory = st.lists(up_to(24), min_size=1, max_size=4)


def rank(choice: ExpertChoice) -> int:
    """0 where not even the dense weights fit, 1 for a pool, 2 where everything fits."""
    if choice.chosen == "pool":
        return 1
    return 2 if "all layers are on the GPUs" in choice.reason else 0


@given(needs, memory, st.data())
def test_more_memory_on_a_gpu_never_goes_back_from_all_on_gpus_to_a_pool(
    model: ModelNeeds, free: list[int], data: st.DataObject
) -> None:
    more = [size + data.draw(up_to(8)) for size in free] + data.draw(st.lists(up_to(24), max_size=2))
    assert rank(choose_by_memory(model, free)) <= rank(choose_by_memory(model, more))


@given(needs, memory)
def test_a_pool_is_chosen_exactly_where_all_but_the_experts_fit(model: ModelNeeds, free: list[int]) -> None:
    room = sum(max(0, size - RESERVE_BYTES - model.compute_bytes) for size in free)
    has_pool = model.resident_bytes <= room < model.resident_bytes + model.experts_bytes
    assert (choose_by_memory(model, free).chosen == "pool") == has_pool


@given(needs, memory, st.text(min_size=1))
def test_an_unsupported_model_is_stock_whatever_the_memory(model: ModelNeeds, free: list[int], reason: str) -> None:
    unsupported = ModelNeeds(model.experts_bytes, model.resident_bytes, model.compute_bytes, reason)
    assert choose_by_memory(unsupported, free) == ExpertChoice("stock", reason)


@given(st.sampled_from(GPU_EXPERTS), st.integers(0, 512), st.lists(st.sampled_from(["-ngl", "9", "--mlock"])))
def test_a_cpu_backend_is_always_stock(setting: str, n_experts: int, arguments: list[str]) -> None:
    settings = Settings(gpu_experts=setting, engine_args=tuple(arguments))
    choice = choose_unread(settings, "cpu", n_experts)
    assert choice is not None
    assert choice.chosen == "stock"


@given(
    st.sampled_from(["stock", "pool"]),
    st.integers(1, 512),
    st.lists(st.sampled_from(["-ngl", "--lora", "--cpu-moe", "--mlock"])),
)
def test_an_explicit_setting_wins_on_gpus(setting: str, n_experts: int, arguments: list[str]) -> None:
    settings = Settings(gpu_experts=setting, engine_args=tuple(arguments))
    choice = choose_unread(settings, "cuda", n_experts)
    assert choice == ExpertChoice(setting, "the setting gpu_experts asks for it")  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", GPU_EXPERTS)
def test_a_dense_model_is_stock(setting: str) -> None:
    choice = choose_unread(Settings(gpu_experts=setting), "cuda", 0)
    assert choice == ExpertChoice("stock", "the model has no experts")


@pytest.mark.parametrize(
    ("argument", "decides"),
    [("-ngl", True), ("--tensor-split=1,1", True), ("--lora", True), ("--mlock", False), ("--n-cpu-moe-draft", False)],
)
def test_arguments_that_place_the_model_are_left_to_the_user(argument: str, decides: bool) -> None:
    choice = choose_unread(Settings(engine_args=("--mlock", argument)), "cuda", 8)
    assert (choice is not None) == decides
    if choice is not None:
        assert choice.chosen == "stock"
        assert argument.partition("=")[0] in choice.reason


@pytest.mark.parametrize(("free", "said"), [(None, "unknown"), ([], "no GPU")])
def test_unknown_memory_is_stock_and_said_so(free: list[int] | None, said: str) -> None:
    choice = choose_by_memory(ModelNeeds(100 * GIB, GIB, 0), free)
    assert choice.chosen == "stock"
    assert said in choice.reason


def test_the_reason_tells_small_models_from_small_gpus() -> None:
    # 2,048 MiB free - 1,536 reserve - 20 buffers = 492 MiB.
    needs = ModelNeeds(experts_bytes=450 * MIB, resident_bytes=50 * MIB, compute_bytes=20 * MIB)
    assert choose_by_memory(needs, [2048 * MIB]).reason == (
        "weights and KV cache (500 MiB) do not fit the 492 MiB that 1 GPU with 2.0 GiB free can hold beside buffers "
        "and reserve"
    )


def test_the_reason_tells_what_was_compared() -> None:
    # Each GPU holds 24 - 1.5 reserve - 0.5 buffers = 22 GiB.
    model = ModelNeeds(experts_bytes=60 * GIB, resident_bytes=4 * GIB, compute_bytes=GIB // 2)
    choice = choose_by_memory(model, [24 * GIB, 24 * GIB])
    assert choice.chosen == "pool"
    assert choice.reason == (
        "weights and KV cache (64.0 GiB) do not fit the 44.0 GiB that 2 GPUs with 48.0 GiB free can hold beside "
        "buffers and reserve"
    )
    assert choice.told == f"gpu_experts=pool reason={choice.reason!r}"


POOL = {"name": "CUDA0", "gpu": True, "pool_capacity": 5}
REFUSED = {"state": "refused", "reason": "layer 0: the CPU has no row kernel for the type of its expert weights"}


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (None, None),
        ({}, None),
        ({"devices": None}, None),
        ({"devices": [POOL], "residency": {"state": "applied", "reason": ""}}, None),
        # A set that was cut to what fits is told as a reason too, and the pool is there.
        ({"devices": [POOL], "residency": REFUSED}, None),
        ({"devices": [], "residency": REFUSED}, REFUSED["reason"]),
        (
            {
                "devices": [],
                "residency": {"state": "none", "reason": ""},
                "route_counting": {"reason": "layer 3 is on Vulkan0"},
            },
            "layer 3 is on Vulkan0",
        ),
        ({"devices": []}, "the engine does not say why"),
        ({"devices": [{**POOL, "gpu": False}]}, "none of its layers with experts is on a GPU"),
    ],
)
def test_an_engine_without_a_pool_on_a_gpu_has_refused_it(status: dict[str, Any] | None, reason: str | None) -> None:
    assert why_refused(status) == reason
