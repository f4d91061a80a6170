"""Where an engine on GPUs has the experts of a model: the decision behind the setting `gpu_experts`. Pure.

By memory, from less to more, "auto" goes through at most three choices, and never back:
1. What every token needs (dense weights, KV cache) does not fit the GPUs: "stock", since an expert pool wants all of it
   there, and llama.cpp's own placement also loads with less.
2. That fits, and the experts do not: "pool".
3. Everything fits: "stock", since llama.cpp then has all layers on the GPUs, and nothing is faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ostinatod.config import Settings

ExpertPlace = Literal["stock", "pool"]
Backend = Literal["cpu", "cuda"]

RESERVE_BYTES = 3 * 1024**3 // 2
"""Of each GPU: 1 GiB that llama.cpp and the expert pool leave alone, and half of one for what a CUDA process takes for
itself (context, kernels, workspaces), which the driver does not count before it runs."""

STOCK_HINT = (
    'Every expert is on the CPU now, which is slower than llama.cpp\'s own placement: set gpu_experts = "stock" '
    "(OSTINATO_GPU_EXPERTS=stock), then end this daemon: ostinato stop --daemon"
)

_PLACING_ARGUMENTS = frozenset(
    {
        *("-ngl", "--gpu-layers", "--n-gpu-layers", "-ot", "--override-tensor", "-cmoe", "--cpu-moe"),
        *("-ncmoe", "--n-cpu-moe", "-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu"),
        *("-dev", "--device", "-fit", "--fit", "-nkvo", "--no-kv-offload"),
    }
)
_ADAPTER_ARGUMENTS = frozenset({"--lora", "--lora-scaled"})
_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """GPU memory that a model asks for, as its header tells."""

    experts_bytes: int
    resident_bytes: int
    """Dense weights and the KV cache of the context."""
    compute_bytes: int
    """On every GPU that computes layers."""
    no_pool_reason: str | None = None
    """Why the engine would not divide the experts; None where nothing is known against it."""


@dataclass(frozen=True, slots=True)
class ExpertChoice:
    """What an engine is started with, and why."""

    chosen: ExpertPlace
    reason: str
    refused: str | None = None
    """Why the engine runs on the stock nodes although a pool was asked for; None where it has one, or is not loaded."""
    hint: str | None = None
    """What to do about that."""

    @property
    def told(self) -> str:
        """As a log line holds it."""
        return f"gpu_experts={self.chosen} reason={self.reason!r}"

    def as_json(self) -> dict[str, Any]:
        """The fields, by name."""
        return asdict(self)


def choose_unread(settings: Settings, backend: Backend, n_experts: int) -> ExpertChoice | None:
    """The choice where neither the model's header nor the GPUs' memory is needed for one, else None."""
    if backend != "cuda":
        return ExpertChoice("stock", "the engine is built for the CPU")
    if not n_experts:
        return ExpertChoice("stock", "the model has no experts")
    if settings.gpu_experts == "pool":
        return ExpertChoice("pool", "the setting gpu_experts asks for it")
    if settings.gpu_experts == "stock":
        return ExpertChoice("stock", "the setting gpu_experts asks for it")
    given = [argument.partition("=")[0] for argument in settings.engine_args]
    if placing := next((argument for argument in given if argument in _PLACING_ARGUMENTS), None):
        return ExpertChoice("stock", f"engine_args place the model ({placing})")
    if adapter := next((argument for argument in given if argument in _ADAPTER_ARGUMENTS), None):
        return ExpertChoice("stock", f"engine_args load an adapter ({adapter}), and its experts keep the stock nodes")
    return None


def choose_by_memory(needs: ModelNeeds, free_bytes: Sequence[int] | None) -> ExpertChoice:
    """The choice for a MoE model on CUDA under "auto"; see the module's text.

    free_bytes  of each GPU that the engine will see; None where it is unknown
    """
    if needs.no_pool_reason is not None:
        return ExpertChoice("stock", needs.no_pool_reason)
    if free_bytes is None:
        return ExpertChoice("stock", "how much memory the GPUs have free is unknown: the driver (NVML) does not tell")
    if not free_bytes:
        return ExpertChoice("stock", "the engine sees no GPU")
    room = sum(max(0, free - RESERVE_BYTES - needs.compute_bytes) for free in free_bytes)
    n_gpus = f"{len(free_bytes)} GPU{'s' if len(free_bytes) > 1 else ''}"
    place = f"the {_size(room)} that {n_gpus} with {_size(sum(free_bytes))} free can hold beside buffers and reserve"
    if needs.resident_bytes > room:
        return ExpertChoice("stock", f"dense weights and KV cache ({_size(needs.resident_bytes)}) do not fit {place}")
    whole = needs.experts_bytes + needs.resident_bytes
    if whole > room:
        return ExpertChoice("pool", f"weights and KV cache ({_size(whole)}) do not fit {place}")
    return ExpertChoice("stock", f"weights and KV cache ({_size(whole)}) fit {place}: all layers are on the GPUs")


def why_refused(status: Mapping[str, Any] | None) -> str | None:
    """Why a loaded engine that was asked for an expert pool has none on a GPU; None where it has, or does not tell."""
    devices = None if status is None else status.get("devices")
    if status is None or not isinstance(devices, list):
        return None
    if any(isinstance(device, Mapping) and device.get("gpu") is True for device in devices):
        return None
    for part in ("residency", "route_counting"):
        told = status.get(part)
        if isinstance(told, Mapping) and isinstance(reason := told.get("reason"), str) and reason:
            return reason
    return "none of its layers with experts is on a GPU" if devices else "the engine does not say why"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.1f} GiB" if size_bytes >= _GIB else f"{size_bytes / 1024**2:.0f} MiB"
