"""Write a random-weight MoE model of any shape in the qwen3moe layout, for timing what does not fit into a small GPU.

    python benchmarks/synthetic_model.py OUT.gguf [--layers 8 --embd 4096 --ff 2048 --experts 256 --used 6 --type MXFP4]

Its routing is skewed and stable, as an agent's is: dimension 0 of every token embedding is a constant, so the router's
first column is a bias per expert, normally distributed with --skew, beside token-dependent noise of unit variance. 0.5
gives the hottest 44 % of 256 experts about 84 % of the routes (top 6). There is no tokenizer: feed token ids. Needs the
package `gguf`. The defaults have the expert shape of DeepSeek-V4-Flash; Qwen3-235B has --ff 1536 --experts 128 --used 8
--type Q4_K.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

BLOCKS = 1 << 20
"""Random blocks that are made; tensors repeat them from random places."""


def random_blocks(rng: np.random.Generator, quantisation: Any) -> NDArray[np.uint8]:
    """(BLOCKS, bytes) of valid blocks, whose weights have a standard deviation of about 0.02."""
    _, size = gguf.GGML_QUANT_SIZES[quantisation]
    blocks = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    if quantisation == gguf.GGMLQuantizationType.MXFP4:
        blocks[:, 0] = rng.integers(118, 121, BLOCKS)
    elif quantisation == gguf.GGMLQuantizationType.Q4_K:
        # 32 on average for scales and mins: d * 32 * std(0..15) = 0.02, and mins that centre the quants
        blocks[:, :4] = np.array([1.36e-4, 7.5 * 1.36e-4], np.float16).view(np.uint8)
    elif quantisation in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0):
        step = 0.02 / (74 if quantisation == gguf.GGMLQuantizationType.Q8_0 else 4.6)
        blocks[:, :2] = np.array([step], np.float16).view(np.uint8)
    else:
        raise SystemExit(f"expected MXFP4, Q4_K, Q4_0 or Q8_0, found {quantisation.name}")
    return blocks.reshape(-1)


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--embd", type=int, default=4096)
    parser.add_argument("--ff", type=int, default=2048)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--used", type=int, default=6)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--skew", type=float, default=0.5)
    parser.add_argument("--type", default="MXFP4")
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()

    rng = np.random.default_rng(a.seed)
    quantisation = gguf.GGMLQuantizationType[a.type]
    block, size = gguf.GGML_QUANT_SIZES[quantisation]
    blocks = random_blocks(rng, quantisation)

    def experts(columns: int, rows: int) -> NDArray[np.uint8]:
        n_bytes = columns // block * size * rows * a.experts
        start = int(rng.integers(0, BLOCKS)) * size
        tiled = np.resize(np.roll(blocks, -start), n_bytes)
        return tiled.reshape(a.experts, rows, columns // block * size)

    def matrix(rows: int, columns: int, deviation: float) -> NDArray[np.float16]:
        return (rng.standard_normal((rows, columns), dtype=np.float32) * deviation).astype(np.float16)

    writer = gguf.GGUFWriter(a.out, "qwen3moe")
    writer.add_name("synthetic-moe")
    writer.add_block_count(a.layers)
    writer.add_context_length(131072)
    writer.add_embedding_length(a.embd)
    writer.add_feed_forward_length(a.ff)
    writer.add_head_count(a.heads)
    writer.add_head_count_kv(a.kv_heads)
    writer.add_key_length(a.head_dim)
    writer.add_value_length(a.head_dim)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(a.experts)
    writer.add_expert_used_count(a.used)
    writer.add_expert_feed_forward_length(a.ff)
    writer.add_vocab_size(a.vocab)
    writer.add_tokenizer_model("none")

    embedding = matrix(a.vocab, a.embd, 1.0)
    embedding[:, 0] = 8.0
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", np.ones(a.embd, np.float32))
    writer.add_tensor("output.weight", matrix(a.vocab, a.embd, 0.02))
    for layer in range(a.layers):
        name = f"blk.{layer}."
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{name}{norm}.weight", np.ones(a.embd, np.float32))
        for norm in ("attn_q_norm", "attn_k_norm"):
            writer.add_tensor(f"{name}{norm}.weight", np.ones(a.head_dim, np.float32))
        writer.add_tensor(f"{name}attn_q.weight", matrix(a.heads * a.head_dim, a.embd, 0.02))
        writer.add_tensor(f"{name}attn_k.weight", matrix(a.kv_heads * a.head_dim, a.embd, 0.02))
        writer.add_tensor(f"{name}attn_v.weight", matrix(a.kv_heads * a.head_dim, a.embd, 0.02))
        writer.add_tensor(f"{name}attn_output.weight", matrix(a.embd, a.heads * a.head_dim, 0.002))
        router = rng.standard_normal((a.experts, a.embd), dtype=np.float32) / np.float32(np.sqrt(a.embd))
        router[:, 0] = rng.normal(0, a.skew, a.experts) / 7.9
        writer.add_tensor(f"{name}ffn_gate_inp.weight", router.astype(np.float32))
        writer.add_tensor(f"{name}ffn_gate_exps.weight", experts(a.embd, a.ff), raw_dtype=quantisation)
        writer.add_tensor(f"{name}ffn_up_exps.weight", experts(a.embd, a.ff), raw_dtype=quantisation)
        writer.add_tensor(f"{name}ffn_down_exps.weight", experts(a.ff, a.embd), raw_dtype=quantisation)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=False)
    writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
