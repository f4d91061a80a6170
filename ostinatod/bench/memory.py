"""GPU memory for experts: what of it are hot ones, so that no setting gets more than another.

Hot experts and the engine's staging buffer together take what stock may have for whole layers' experts; the room in
which stock uploads comes on top of its own.
"""

from __future__ import annotations

STAGING_SHARE = 0.125
"""Of what a GPU may use for experts, the engine takes so much for its staging buffer (`staging_share`)."""

ROUNDING = 1.01
"""Slots are aligned, and kernels read past the end of a tensor."""
ROUNDING_BYTES = 32 << 20


def memory_for(hot_bytes: float) -> int:
    """Bytes that hot experts of so many bytes take on GPUs, with the staging buffer."""
    return round(hot_bytes / (1 - STAGING_SHARE))


def hot_bytes_within(gpu_bytes: int, all_bytes: int) -> int:
    """Bytes of hot experts that fit so many bytes, with the staging buffer; none is needed where all are hot."""
    return all_bytes if gpu_bytes >= all_bytes else int(gpu_bytes * (1 - STAGING_SHARE))


def pool_limit(gpu_bytes: int) -> int:
    """`pool_bytes` of a setting that may use so many bytes."""
    return round(gpu_bytes * ROUNDING) + ROUNDING_BYTES
