"""How much memory a model takes once it is loaded, by use, from its GGUF headers alone.

Weights are exact. The KV cache is exact where every layer that attends keeps the whole context, and an upper bound
where some keep a window of it. Compute buffers are an estimate: what one micro-batch keeps at once in the widest layer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .gguf_header import TensorInfo
from .gguf_model import GgufModel

UBATCH_TOKENS = 512
"""Tokens of one micro-batch, the engine's default."""

_KV_ELEMENT_BYTES = 2
"""F16, the engine's default for the cache."""
_MASK_ELEMENT_BYTES = 2
_ACTIVATION_BYTES = 4

_EXPERTS = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down|gate_up)_exps\.")
_CACHED = re.compile(r"blk\.(\d+)\.(attn_k|attn_v|attn_kv_a_mqa|attn_kv|attn_qkv)\.weight")
_FURTHER = re.compile(r"blk\.\d+\.(indexer|attn_compressor)")
_RECURRENT = re.compile(r"blk\.(\d+)\.(ssm_|time_mix_|shortconv)")


@dataclass(frozen=True, slots=True)
class LoadEstimate:
    """Bytes by use. `notes` say what is not exact, one sentence each."""

    context_tokens: int
    expert_weights_bytes: int
    dense_weights_bytes: int
    kv_cache_bytes: int
    compute_bytes: int
    n_moe_layers: int
    n_experts: int
    k: int
    expert_bytes: int
    """One expert of one layer, the largest where layers differ; 0 for a dense model."""
    notes: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """All uses together."""
        return self.expert_weights_bytes + self.dense_weights_bytes + self.kv_cache_bytes + self.compute_bytes

    @property
    def read_per_token_bytes(self) -> int:
        """Weights that one token of decode reads: everything dense, and k experts in each MoE layer."""
        return self.dense_weights_bytes + self.n_moe_layers * self.k * self.expert_bytes


def estimate_load(model: GgufModel, context_tokens: int) -> LoadEstimate:
    """What loading `model` with that context takes. Raises HeaderError where the header is inconsistent."""
    experts: dict[int, int] = {}
    cached: dict[int, dict[str, TensorInfo]] = {}
    recurrent: set[int] = set()
    weights = 0
    for tensor in model.tensors():
        weights += tensor.nbytes
        if match := _EXPERTS.match(tensor.name):
            experts[int(match[1])] = experts.get(int(match[1]), 0) + tensor.nbytes
        elif match := _CACHED.fullmatch(tensor.name):
            cached.setdefault(int(match[1]), {})[match[2]] = tensor
        elif match := _RECURRENT.match(tensor.name):
            recurrent.add(int(match[1]))
    attending = {layer: tensors for layer, tensors in cached.items() if layer not in recurrent or "attn_k" in tensors}
    n_experts = model.expert_count
    kv_elements = sum(_kv_width(model, tensors) for tensors in attending.values())
    return LoadEstimate(
        context_tokens=context_tokens,
        expert_weights_bytes=sum(experts.values()),
        dense_weights_bytes=weights - sum(experts.values()),
        kv_cache_bytes=kv_elements * _KV_ELEMENT_BYTES * context_tokens,
        compute_bytes=_compute_bytes(model, context_tokens),
        n_moe_layers=len(experts),
        n_experts=n_experts,
        k=model.expert_used_count,
        expert_bytes=max(experts.values(), default=0) // n_experts if n_experts else 0,
        notes=_notes(model, attending, recurrent),
    )


def _kv_width(model: GgufModel, tensors: dict[str, TensorInfo]) -> int:
    """Elements that a layer keeps of each token; multi-head latent attention keeps one latent and no values."""
    if latent := tensors.get("attn_kv_a_mqa") or tensors.get("attn_kv"):
        return latent.shape[1]
    if (keys := tensors.get("attn_k")) and (values := tensors.get("attn_v")):
        return keys.shape[1] + values.shape[1]
    if keys := tensors.get("attn_k"):
        return 2 * keys.shape[1]
    heads = _number(model, "attention.head_count_kv") or _number(model, "attention.head_count")
    width = model.embedding_length // max(_number(model, "attention.head_count"), 1)
    key, value = (_number(model, f"attention.{kind}_length") or width for kind in ("key", "value"))
    return heads * (key + value)


def _compute_bytes(model: GgufModel, context_tokens: int) -> int:
    """Hidden states, and the inputs, intermediate and output rows of the selected experts, beside the causal mask."""
    k = max(model.expert_used_count, 1)
    width = _number(model, "expert_feed_forward_length") if model.expert_count else 0
    width = width or _number(model, "feed_forward_length")
    elements = 2 * model.embedding_length + k * (model.embedding_length + 2 * width)
    return UBATCH_TOKENS * (elements * _ACTIVATION_BYTES + context_tokens * _MASK_ELEMENT_BYTES)


def _notes(model: GgufModel, attending: dict[int, dict[str, TensorInfo]], recurrent: set[int]) -> tuple[str, ...]:
    notes = [
        f"compute buffers are an estimate for micro-batches of {UBATCH_TOKENS} tokens",
        "the KV cache is for F16 elements",
    ]
    if _number(model, "attention.sliding_window"):
        notes.append("some layers keep only a window of the context: the KV cache is an upper bound")
    if any(_FURTHER.match(tensor.name) for tensor in model.tensors()):
        notes.append("this architecture compresses its cache and keeps an index of it: the KV cache is an estimate")
    if recurrent:
        notes.append(
            f"the state of {len(recurrent)} recurrent layers, which does not grow with the context, is left out"
        )
    if not attending and not recurrent:
        notes.append("no attention tensor is known by its name: the KV cache is left out")
    return tuple(notes)


def _number(model: GgufModel, key: str) -> int:
    return model.parts[0].integer(f"{model.architecture}.{key}")
