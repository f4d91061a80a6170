"""Memory for hot experts, as an engine tells it or as the setting asks for it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ostinatod.profiles.experts import ModelExperts

FROM_SETTING = "hot_experts_fraction"
FROM_ENGINE = "capacity test"


@dataclass(frozen=True, slots=True)
class Capacity:
    """Memory for hot experts of each GPU, and which GPU computes each layer."""

    pool_bytes: tuple[int, ...]
    gpu: tuple[int, ...]
    source: str
    unlearned_bytes: tuple[int, ...] | None = None
    """What of `pool_bytes` a set should take that nobody has learned, since the engine lends the rest to what a session
    uses; None for all of it."""

    @property
    def first_bytes(self) -> tuple[int, ...]:
        """Memory for the experts of such a set, of each GPU."""
        return self.pool_bytes if self.unlearned_bytes is None else self.unlearned_bytes


def capacity_from_setting(fraction: float, experts: ModelExperts) -> Capacity | None:
    """The asked share of all experts, in one pool; None where the setting is 0."""
    if fraction <= 0:
        return None
    places = experts.places()
    return Capacity((int(fraction * places.total_bytes),), places.gpu, FROM_SETTING)


def capacity_from_engine(status: Mapping[str, Any] | None, experts: ModelExperts) -> Capacity | None:
    """What a loaded engine tells: `pool_bytes` or `slots` for hot experts, one number or one for each GPU, and with
    several GPUs `gpu_of_layer`, the place of its GPU for each MoE layer; and `unlearned_bytes`, numbers like those of
    `pool_bytes`. None where it tells nothing that fits the model.
    """
    if status is None:
        return None
    sizes = _numbers(status.get("pool_bytes"))
    if sizes is None and (slots := _numbers(status.get("slots"))) is not None:
        # A slot holds an expert of any layer, so it is as large as the largest.
        sizes = tuple(count * max(experts.expert_bytes) for count in slots)
    gpu = _numbers(status.get("gpu_of_layer"))
    if gpu is None and sizes and len(sizes) == 1:
        gpu = (0,) * len(experts.layers)
    if not sizes or gpu is None or len(gpu) != len(experts.layers) or max(gpu) >= len(sizes):
        return None
    unlearned = _numbers(status.get("unlearned_bytes"))
    if unlearned is not None and (len(unlearned) != len(sizes) or any(map(int.__gt__, unlearned, sizes))):
        unlearned = None
    return Capacity(sizes, gpu, FROM_ENGINE, None if unlearned == sizes else unlearned)


def _numbers(value: object) -> tuple[int, ...] | None:
    """One count or a list of them; None for anything else."""
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in items):
        return None
    return tuple(items)
