"""What `bindings` takes and gives, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

ResidencyState = Literal["none", "applied", "refused"]


@dataclass(frozen=True, slots=True)
class ResidencyStatus:
    """What a loaded model does with its experts."""

    state: ResidencyState
    reason: str
    """Of the last refusal, empty where there was none."""
    generation: int
    """Of the set applied, 0 for one without a file; as the other numbers, 0 where none is applied."""
    n_hot: int
    pool_bytes: int


NEVER = 2**32 - 1
"""As `upload_tokens`: no pass uploads."""


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """How models loaded from now on divide their experts. Zero stands for the engine's own choice.

    two_branches     divide them also without a residency set; none is hot at first
    pool_bytes       most memory of each GPU for hot experts
    margin_bytes     memory of each GPU that stays free
    pin_bytes        most host memory to page-lock for cold experts; else what the system can spare
    n_threads        of the CPU branch of layers on GPUs; the first model of a process decides
    timeout_ms       the longest wait of a GPU for the CPU branch
    upload_tokens    passes of so many tokens may upload cold experts; NEVER for none
    upload_all_tokens  in passes of so many, the CPU branch gets only what cannot be uploaded
    link_percent     of a cold expert's hidden columns, which the GPU reads in place in steps of few tokens; -1 for none
    borrow_percent   of the memory in which prefill stages uploads, lent to cold experts in decode; -1 for none
    prefetch_us      of the link, for a layer's uploads before its router has run; -1 for no prefetch
    staging_experts  least room of the memory in which prefill stages uploads
    copy_blocks      of the kernel that uploads, and half of them of the one that copies ahead
    """

    two_branches: bool = False
    pool_bytes: int = 0
    margin_bytes: int = 0
    pin_bytes: int = 0
    n_threads: int = 0
    timeout_ms: int = 0
    upload_tokens: int = 0
    upload_all_tokens: int = 0
    link_percent: int = 0
    borrow_percent: int = 0
    prefetch_us: int = 0
    staging_experts: int = 0
    copy_blocks: int = 0


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """One device with layers of a model. Counted since the model was loaded: steps of layers with cold routes, cold
    routes, and the time the GPU waited for the CPU branch; 0 on a CPU."""

    name: str
    is_gpu: bool
    pool_capacity: int
    """bytes"""
    pool_used: int
    """bytes"""
    published: int
    cold_routes: int
    waited_ns: int
    cpu_routes: int
    cpu_busy_ns: int
    uploaded: int
    uploaded_bytes: int
    staging_bytes: int
    cpu_row_bytes_per_s: float
    """measured, as the other speeds, with the kind of experts that takes most bytes"""
    cpu_rows_bytes_per_s: float
    link_bytes_per_s: float
    linked: int
    """cold routes that the GPU computed a share of in place"""
    link_columns: int
    hidden_columns: int
    borrowed_bytes: int
    """of staging memory, with cold experts that it serves now"""
    borrowed_uploads: int
    """experts copied there"""
    graph_captures: int
    """CUDA graphs captured on the device by this process"""
    graph_replays: int
    """passes that replayed one"""
    direct_passes: int
    """passes submitted operator by operator"""
    prefetched: int
    """experts copied before their layer's router had run"""
    foreseen: int
    """of these, those that the router chose"""
    decode_waited_ns: int
    """of waited_ns, in steps of one token"""
    decode_busy_ns: int
    """of cpu_busy_ns, likewise"""
    pool_room: int
    """bytes of experts, as the model's file has them, that fit the pool whatever their layers"""
    in_place_bytes_per_s: float
    """measured speed at which the GPU computes its share in place beside the CPU branch; 0 where it has none"""
    pool_unlearned: int
    """of pool_room, what a set should take that nobody has learned: the rest serves better lent"""


@dataclass(frozen=True, slots=True)
class UploadCosts:
    """What the choice of uploads of one device counts with, in passes of `n_tokens` and less than twice as many.
    Learned in the first layers that had such passes."""

    n_tokens: int
    link_bytes_per_s: float
    """of uploads, beside the CPU branch"""
    hot_s: float
    """of the GPU for a layer's hot experts, beside both"""
    chain_s: float
    """and for those uploaded, after both hot experts and the last upload"""
    cpu: float
    """the CPU branch's time over what its speeds say, beside uploads"""
    cpu_alone: float
    """and without; 1 where that is not known"""


@dataclass(frozen=True, slots=True)
class RouteCounts:
    """Routes of one model since it was loaded.

    layers            (L,) the model's index of each MoE layer
    prefill, decode   (L, E) selections of each expert, by phase of the forward pass
    """

    layers: NDArray[np.int32]
    prefill: NDArray[np.uint64]
    decode: NDArray[np.uint64]
