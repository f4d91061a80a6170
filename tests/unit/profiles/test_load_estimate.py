from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ostinatod.profiles.gguf_model import read_model
from ostinatod.profiles.load_estimate import LoadEstimate, estimate_load
from tests.fakes.gguf import Tensor, model_metadata, write

CONTEXT = 1000


def estimate(directory: Path, tensors: list[Tensor], **changes: Any) -> LoadEstimate:
    fields = {key.replace("__", "."): value for key, value in changes.items() if "__" in key}
    options = {key: value for key, value in changes.items() if "__" not in key}
    path = write(directory / "m.gguf", {**model_metadata(**options), **fields}, tensors)
    return estimate_load(read_model([path]), CONTEXT)


def attention(layer: int, *, k: int = 16, v: int = 8) -> list[Tensor]:
    return [
        Tensor(f"blk.{layer}.attn_k.weight", (64, k), "F16"),
        Tensor(f"blk.{layer}.attn_v.weight", (64, v), "F16"),
    ]


def experts(layer: int) -> list[Tensor]:
    """4 experts of 64 x 32 up and 32 x 64 down in MXFP4, 17 bytes for 32 elements: 4 x (1088 + 1088) bytes."""
    return [
        Tensor(f"blk.{layer}.ffn_up_exps.weight", (64, 32, 4), "MXFP4"),
        Tensor(f"blk.{layer}.ffn_down_exps.weight", (32, 64, 4), "MXFP4"),
    ]


def test_experts_and_dense_weights_are_told_apart_to_the_byte(tmp_path: Path) -> None:
    shared = Tensor("blk.1.ffn_up_shexp.weight", (64, 32), "F16")
    found = estimate(tmp_path, [*attention(0), *experts(0), *attention(1), *experts(1), shared])
    assert found.expert_weights_bytes == 2 * 4 * 2176
    assert found.dense_weights_bytes == 2 * 64 * (16 + 8) * 2 + 64 * 32 * 2
    assert (found.n_moe_layers, found.n_experts, found.k, found.expert_bytes) == (2, 4, 2, 2176)
    # Everything dense, and 2 of 4 experts in each of 2 layers.
    assert found.read_per_token_bytes == found.dense_weights_bytes + 2 * 2 * 2176


def test_the_cache_holds_keys_and_values_of_every_attending_layer(tmp_path: Path) -> None:
    found = estimate(tmp_path, [*attention(0), *attention(1, k=32, v=32)])
    assert found.kv_cache_bytes == (16 + 8 + 32 + 32) * 2 * CONTEXT


@pytest.mark.parametrize("name", ["attn_kv_a_mqa", "attn_kv"])
def test_latent_attention_caches_one_latent_and_no_values(tmp_path: Path, name: str) -> None:
    latent = Tensor(f"blk.0.{name}.weight", (64, 36), "F16")
    assert estimate(tmp_path, [latent]).kv_cache_bytes == 36 * 2 * CONTEXT


def test_a_compressed_cache_is_said_to_be_an_estimate(tmp_path: Path) -> None:
    indexed = estimate(tmp_path, [*attention(0), Tensor("blk.0.indexer.attn_k.weight", (64, 4), "F16")])
    assert any("keeps an index" in note for note in indexed.notes)
    assert not any("keeps an index" in note for note in estimate(tmp_path, attention(0)).notes)


def test_a_fused_projection_is_sized_by_its_heads(tmp_path: Path) -> None:
    fused = Tensor("blk.0.attn_qkv.weight", (64, 128), "F16")
    heads = {"qwen3moe__attention__head_count": 8, "qwen3moe__attention__head_count_kv": 2}
    # 2 heads of 64 / 8 elements, keys and values.
    assert estimate(tmp_path, [fused], **heads).kv_cache_bytes == 2 * (8 + 8) * 2 * CONTEXT
    lengths = {"qwen3moe__attention__key_length": 12, "qwen3moe__attention__value_length": 4}
    assert estimate(tmp_path, [fused], **heads, **lengths).kv_cache_bytes == 2 * (12 + 4) * 2 * CONTEXT


def test_recurrent_layers_cache_nothing_and_that_is_said(tmp_path: Path) -> None:
    recurrent = [Tensor("blk.0.ssm_conv1d.weight", (4, 64), "F32"), Tensor("blk.0.attn_qkv.weight", (64, 64), "F16")]
    found = estimate(tmp_path, [*recurrent, *attention(1)])
    assert found.kv_cache_bytes == (16 + 8) * 2 * CONTEXT
    assert any("1 recurrent layers" in note for note in found.notes)


def test_a_window_makes_the_cache_an_upper_bound_and_that_is_said(tmp_path: Path) -> None:
    windowed = estimate(tmp_path, attention(0), qwen3moe__attention__sliding_window=128)
    assert any("upper bound" in note for note in windowed.notes)
    assert not any("upper bound" in note for note in estimate(tmp_path, attention(0)).notes)


def test_unknown_attention_is_said_instead_of_guessed(tmp_path: Path) -> None:
    found = estimate(tmp_path, [Tensor("token_embd.weight", (64, 3), "F32")])
    assert found.kv_cache_bytes == 0
    assert any("left out" in note for note in found.notes)


@pytest.mark.parametrize("n_experts", [0, 4])
def test_compute_buffers_grow_with_the_context_by_the_masks_rows(tmp_path: Path, n_experts: int) -> None:
    path = write(tmp_path / "m.gguf", model_metadata(n_experts=n_experts), attention(0))
    model = read_model([path])
    # 512 tokens of a micro-batch, 2 bytes for each token of the context.
    assert estimate_load(model, 3000).compute_bytes - estimate_load(model, 1000).compute_bytes == 512 * 2 * 2000
    assert estimate_load(model, 3000).expert_bytes == 0
