"""GPU memory for experts: what of it are hot ones, so that no setting gets more than another.

Hot experts and the engine's staging buffer together take what stock may have for whole layers' experts; the room in
which stock uploads comes on top of its own.
"""

from __future__ import annotations

from ostinatod.profiles.experts import ModelExperts

STAGING_SHARE = 0.125
"""Of what a GPU may use for experts, the engine takes so much for its staging buffer (`staging_share`)."""

ROUNDING = 1.01
"""Slots are aligned, and kernels read past the end of a tensor."""
ROUNDING_BYTES = 32 << 20

STAGING_ROUNDING = 3
"""Experts for which the engine adds room to a staging buffer of so many: some of it cannot be used."""


def memory_for(hot_bytes: float) -> int:
    """Bytes that hot experts of so many bytes take on GPUs, with the staging buffer."""
    return round(hot_bytes / (1 - STAGING_SHARE))


def hot_bytes_within(gpu_bytes: int, all_bytes: int) -> int:
    """Bytes of hot experts that fit so many bytes, with the staging buffer; none is needed where all are hot."""
    return all_bytes if gpu_bytes >= all_bytes else int(gpu_bytes * (1 - STAGING_SHARE))


def pool_limit(gpu_bytes: int) -> int:
    """`pool_bytes` of a setting that may use so many bytes."""
    return round(gpu_bytes * ROUNDING) + ROUNDING_BYTES


def pool_limit_with_staging(gpu_bytes: int, experts: ModelExperts, staging_experts: int) -> int:
    """The same where the staging buffer has memory of its own, for so many experts: hot experts have no more then."""
    all_bytes = experts.places().total_bytes
    return pool_limit(hot_bytes_within(gpu_bytes, all_bytes)) + _staging_bytes(experts, staging_experts)


def staging_experts_of_whole(experts: ModelExperts, layers: int, hot_share: float) -> int:
    """How many experts to ask for, that the staging buffer is as large as in a model of so many such layers, of whose
    experts this share is hot.

    What the engine takes grows with all layers, and is shared by them: a model that was cut to a few layers has less
    than the one that it stands for.
    """
    largest = max(experts.expert_bytes)
    all_bytes = experts.places().total_bytes * layers / len(experts.layers)
    available = pool_limit(memory_for(hot_share * all_bytes))
    # Every layer has a slot even where nothing is hot.
    share = STAGING_SHARE * (available - layers * largest)
    most = max(experts.n_experts)
    return max(0, min(most, int(share // largest) - STAGING_ROUNDING))


def _staging_bytes(experts: ModelExperts, count: int) -> int:
    """Of so many of the largest experts; they begin at a multiple of their size, and kernels read past the last one."""
    return (count + STAGING_ROUNDING) * max(experts.expert_bytes)
