"""Which experts are hot and which layers are on the CPU, so that all settings have the same GPU memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ostinatod.bench.settings import cpu_layers_for
from ostinatod.profiles.experts import ModelExperts


def hottest(counts: NDArray[np.uint64], share: float) -> NDArray[np.bool_]:
    """(L, E): the `share` of all experts with the most routes."""
    flat = counts.reshape(-1)
    hot = np.zeros(flat.shape, bool)
    hot[np.argsort(-flat.astype(np.int64), kind="stable")[: round(share * flat.size)]] = True
    return hot.reshape(counts.shape)


def stock_layers(experts: ModelExperts, gpu_bytes: int) -> dict[str, tuple[int, ...]]:
    """By name: the layers that stock keeps on the CPU where as many layers' experts as fit are on the GPU."""
    count = cpu_layers_for(experts, gpu_bytes)
    on_cpu = sum(layer < count for layer in experts.layers)
    spread = np.linspace(0, len(experts.layers) - 1, on_cpu) if on_cpu else np.zeros(0)
    chosen = {
        "first": experts.layers[:on_cpu],
        "last": experts.layers[len(experts.layers) - on_cpu :],
        "spread": tuple(experts.layers[round(at)] for at in spread),
    }
    return {name: layers for name, layers in chosen.items() if layers}


def cold_bytes(experts: ModelExperts, layers: Sequence[int]) -> int:
    """Bytes that a token reads of the experts of these layers."""
    sizes = dict(zip(experts.layers, experts.expert_bytes, strict=True))
    return sum(experts.k * sizes[layer] for layer in layers)
