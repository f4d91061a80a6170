"""How GPU memory for experts is divided between hot ones and the staging buffer."""

from __future__ import annotations

from ostinatod.bench.memory import (
    hot_bytes_within,
    memory_for,
    pool_limit,
    pool_limit_with_staging,
    staging_experts_of_whole,
)
from ostinatod.profiles.experts import ModelExperts

EXPERTS = ModelExperts(layers=tuple(range(8)), expert_bytes=(13_369_344,) * 8, n_experts=(256,) * 8, k=6)
"""Eight layers of DeepSeek-V4-Flash's shape, which has 43."""


def test_hot_experts_and_staging_buffer_share_the_memory() -> None:
    all_bytes = EXPERTS.places().total_bytes
    assert abs(hot_bytes_within(memory_for(0.44 * all_bytes), all_bytes) - 0.44 * all_bytes) < 2
    assert hot_bytes_within(all_bytes, all_bytes) == all_bytes


def test_a_staging_buffer_of_its_own_leaves_the_hot_experts_what_they_had() -> None:
    hot = round(0.0684 * EXPERTS.places().total_bytes)
    limit = pool_limit_with_staging(memory_for(hot), EXPERTS, 100)
    assert hot + 100 * 13_369_344 < limit < 1.02 * hot + 104 * 13_369_344 + (32 << 20)
    # The engine's own choice is within the memory.
    assert limit > pool_limit(memory_for(hot))


def test_a_whole_model_stages_what_its_pool_leaves_and_a_layer_at_most() -> None:
    # One 24 GB card's share: an eighth of what 860 experts take, less a slot for each layer and three of rounding.
    assert staging_experts_of_whole(EXPERTS, 43, 0.0684) == 100
    assert staging_experts_of_whole(EXPERTS, 8, 0.0684) == 16
    assert staging_experts_of_whole(EXPERTS, 43, 0.44) == 256
    assert staging_experts_of_whole(EXPERTS, 43, 0.0) == 0
