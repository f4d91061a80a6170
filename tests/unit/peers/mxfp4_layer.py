"""A model file with one layer of MXFP4 experts whose weights are of ordinary size."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.peers.cpu_experts import read_layer
from tests.fakes import gguf


def write_layer(folder: Path, n_in: int = 64, n_ff: int = 32, experts: int = 12, used: int = 3) -> Path:
    """Write it. Exponents are 120 to 122: weights of up to 0.19."""
    tensors = [
        gguf.Tensor("blk.0.ffn_gate_exps.weight", (n_in, n_ff, experts), "MXFP4"),
        gguf.Tensor("blk.0.ffn_up_exps.weight", (n_in, n_ff, experts), "MXFP4"),
        gguf.Tensor("blk.0.ffn_down_exps.weight", (n_ff, n_in, experts), "MXFP4"),
    ]
    fields = {"general.architecture": "qwen3moe", "qwen3moe.expert_used_count": used}
    file = gguf.write(folder / "layer.gguf", fields, tensors)
    layer = read_layer(file, 0)
    rng = np.random.default_rng(3)
    for number in range(3):
        mapped = layer.tensor(number)
        blocks = np.memmap(file, np.uint8, "r+", layer.offsets[number], mapped.shape)
        blocks[...] = rng.integers(0, 256, blocks.shape)
        blocks[..., 0] = rng.integers(120, 123, blocks.shape[:-1])
        blocks.flush()
    return file
