"""A model's MoE layers as planning sees them, from its GGUF headers: which there are, how many experts, how large."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import HeaderError
from .gguf_model import GgufModel
from .planner import ExpertPlaces

_EXPERTS = re.compile(r"blk\.(\d+)\.ffn_(?:gate|up|down|gate_up)_exps\.(?:weight|bias|scale)")


@dataclass(frozen=True, slots=True)
class ModelExperts:
    """The routed experts of one model. `layers` are the engine's indices; all fields are per MoE layer, in order."""

    layers: tuple[int, ...]
    expert_bytes: tuple[int, ...]
    n_experts: tuple[int, ...]
    k: int
    """Experts that a token selects per layer."""

    @property
    def width(self) -> int:
        """Experts of the layer with most: columns of counts."""
        return max(self.n_experts)

    def places(self, gpu: tuple[int, ...] | None = None) -> ExpertPlaces:
        """With the GPU of each layer; one place for all where that is not given.

        Raises CapacityError where it is given for another number of layers.
        """
        return ExpertPlaces((0,) * len(self.layers) if gpu is None else gpu, self.expert_bytes, self.n_experts)


def read_experts(model: GgufModel) -> ModelExperts | None:
    """The routed experts of a model, None for a dense one. Raises HeaderError for tensors that contradict each other.

    A tensor that holds all experts of a layer has them in its last dimension.
    """
    sizes: dict[int, int] = {}
    counts: dict[int, int] = {}
    for tensor in model.tensors():
        match = _EXPERTS.fullmatch(tensor.name)
        if match is None:
            continue
        layer, n_experts = int(match[1]), tensor.shape[-1]
        if counts.setdefault(layer, n_experts) != n_experts or not n_experts or tensor.nbytes % n_experts:
            expected = f"{counts[layer]} experts of one size, as in the layer's other tensors"
            raise HeaderError(model.parts[0].path, tensor.name, expected=expected, found=f"{tensor.shape}")
        sizes[layer] = sizes.get(layer, 0) + tensor.nbytes // n_experts
    if not sizes:
        return None
    layers = tuple(sorted(sizes))
    return ModelExperts(
        layers=layers,
        expert_bytes=tuple(sizes[layer] for layer in layers),
        n_experts=tuple(counts[layer] for layer in layers),
        k=model.expert_used_count,
    )
