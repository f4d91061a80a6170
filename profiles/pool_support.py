"""Whether a model's hot experts can lie in an expert pool and the CPU branch compute the cold ones, from its headers.

The engine decides when it has loaded (`overlay/ostinato/cpu-branch.cpp`, `ostinato_cold_supported`, and
`branches.cpp`, `describe`). By then every expert is in host memory, where the stock nodes are slow; what is known
before is told here.
"""

from __future__ import annotations

import re
from types import MappingProxyType

from .gguf_model import GgufModel

POOL_TYPES = frozenset(
    {
        *("F32", "F16", "BF16", "MXFP4", "NVFP4"),
        *("Q1_0", "Q2_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
        *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
    }
)
"""Types that both branches multiply: the CPU by rows, CUDA by expert ids, in the pinned engine."""

STOCK_ARCHITECTURES = MappingProxyType(
    {
        "dflash": "the placement of its experts has not been evaluated",
        "refact": "its graph does not compute its experts",
    }
)
"""Architectures whose experts keep the stock nodes, and why."""

_EXPERTS = re.compile(r"blk\.\d+\.ffn_(?:gate|up|down|gate_up)_exps\.(weight|bias|scale)")


def why_no_pool(model: GgufModel) -> str | None:
    """Why the engine would keep the stock nodes for the model's experts; None where nothing is known against a pool."""
    if reason := STOCK_ARCHITECTURES.get(model.architecture):
        return f"{model.architecture}: {reason}"
    for tensor in model.tensors():
        match = _EXPERTS.fullmatch(tensor.name)
        if match is None:
            continue
        if match[1] == "weight" and tensor.type_name not in POOL_TYPES:
            return f"{tensor.name} is {tensor.type_name}, which the two branches do not both multiply"
        if match[1] != "weight" and tensor.type_name != "F32":
            return f"{tensor.name} is {tensor.type_name}, and the CPU branch takes biases and scales as F32 only"
    return None
