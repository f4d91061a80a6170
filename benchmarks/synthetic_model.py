"""Write a random-weight MoE model of any shape in the qwen3moe layout, for timing what does not fit into a small GPU.

    python benchmarks/synthetic_model.py OUT.gguf --shape v4-flash --layers 8
    python benchmarks/synthetic_model.py OUT.gguf [--embd 4096 --ff 2048 --experts 256 --used 6 --type MXFP4 ...]

Its routing follows what it reads, as a trained model's does, in three ways whose strength can be set:

- *skew*: dimension 0 of every token embedding is a constant, so a router's first column is a bias per expert, normally
  distributed with --skew, beside token-dependent noise of unit variance. A token always brings the same noise, so text,
  where few tokens are frequent, adds skew of its own that is stable within a session and a kind of work.
- *topics*: tokens fall into clusters, each with a direction in a small subspace that routers read with --topic.
- *locality*: the first layer's attention looks back with weights that fall with distance as a power law (--recency),
  whatever the content, and adds the topics it finds to the token's own with --context: tokens that follow each other
  select the same experts more often than their frequencies alone would make them.

With the defaults, the hottest 44 % of 256 experts (top 6), learned from three of the bundled sessions, take 87 % of the
routes of two others; the paper measured 84 % on DeepSeek-V4-Flash. Consecutive tokens share 6 % more experts than
tokens drawn from the same stretch of text; in the bundled trained model it is 3 %. There is no tokenizer: feed token
ids. Needs the package `gguf`.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import gguf
import numpy as np
from numpy.typing import NDArray

BLOCKS = 1 << 20
"""Random blocks that are made; tensors repeat them from random places."""


CONSTANT = 8.0
"""What dimension 0 of every embedding holds."""

TOPIC_DIMENSIONS = 32
CLUSTERS = 64

WEIGHT_DEVIATION = 0.02
DOWN_DEVIATION = 0.0025
"""Experts write little to the residual stream: what routers read there must not drown in many layers' outputs."""

ROPE_BASE = 1e6


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a model; all layers hold experts."""

    embd: int
    ff: int
    experts: int
    used: int
    heads: int
    kv_heads: int
    head_dim: int
    type: str


SHAPES = {
    "v4-flash": Shape(4096, 2048, 256, 6, 32, 4, 128, "MXFP4"),
    "qwen3-235b": Shape(4096, 1536, 128, 8, 64, 4, 128, "Q4_K"),
    "qwen3-30b": Shape(2048, 768, 128, 8, 32, 4, 128, "Q4_K"),
    "gpt-oss-120b": Shape(2880, 2880, 128, 4, 64, 8, 64, "MXFP4"),
}
"""Expert shapes of real models. Attention is qwen3moe's in all of them, and shared experts are left out."""


@dataclass(frozen=True, slots=True)
class Routing:
    """How strongly routing follows a bias per expert, the token's topic, and the topics of the tokens before."""

    skew: float
    topic: float
    context: float
    recency: float


def random_blocks(rng: np.random.Generator, quantisation: Any, deviation: float) -> NDArray[np.uint8]:
    """(BLOCKS, bytes) of valid blocks, whose weights have about this standard deviation."""
    _, size = gguf.GGML_QUANT_SIZES[quantisation]
    blocks = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    if quantisation == gguf.GGMLQuantizationType.MXFP4:
        # The first byte is an exponent: 118 to 120 for 0.02.
        lowest = 118 + round(math.log2(deviation / 0.02))
        blocks[:, 0] = rng.integers(lowest, lowest + 3, BLOCKS)
    elif quantisation == gguf.GGMLQuantizationType.Q4_K:
        # 32 on average for scales and mins: d * 32 * std(0..15) = 0.02, and mins that centre the quants
        scale = 1.36e-4 * deviation / 0.02
        blocks[:, :4] = np.array([scale, 7.5 * scale], np.float16).view(np.uint8)
    elif quantisation in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0):
        step = deviation / (74 if quantisation == gguf.GGMLQuantizationType.Q8_0 else 4.6)
        blocks[:, :2] = np.array([step], np.float16).view(np.uint8)
    else:
        raise SystemExit(f"expected MXFP4, Q4_K, Q4_0 or Q8_0, found {quantisation.name}")
    return blocks.reshape(-1)


@dataclass(frozen=True, slots=True)
class Repeated:
    """A tensor that repeats some bytes, as far as a writer asks an array: it is never in memory as a whole.

    start  of the bytes that come first
    """

    source: NDArray[np.uint8]
    start: int
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[np.uint8]:
        """Of its elements."""
        return self.source.dtype

    @property
    def nbytes(self) -> int:
        """Of all of it."""
        return math.prod(self.shape)

    def tofile(self, file: IO[bytes]) -> None:
        """Write it."""
        for part in self._parts():
            file.write(part.data)

    def _parts(self) -> Iterator[NDArray[np.uint8]]:
        at, left = self.start, self.nbytes
        while left:
            part = self.source[at : at + left]
            yield part
            at, left = 0, left - part.size


class Weights:
    """Random weights of a shape."""

    def __init__(self, shape: Shape, routing: Routing, vocab: int, seed: int) -> None:
        self._shape, self._routing, self._vocab = shape, routing, vocab
        self._rng = np.random.default_rng(seed)
        self.quantisation = gguf.GGMLQuantizationType[shape.type]
        self._blocks = {
            deviation: random_blocks(self._rng, self.quantisation, deviation)
            for deviation in (WEIGHT_DEVIATION, DOWN_DEVIATION)
        }
        # Of an embedding, which normalisation divides by.
        self._rms = math.sqrt((CONSTANT**2 + shape.embd - 1 - TOPIC_DIMENSIONS) / shape.embd)
        self._own = slice(1, 1 + TOPIC_DIMENSIONS)
        self._before = slice(1 + TOPIC_DIMENSIONS, 1 + 2 * TOPIC_DIMENSIONS)
        if shape.head_dim < TOPIC_DIMENSIONS or shape.embd <= 2 * TOPIC_DIMENSIONS + 1:
            raise SystemExit(f"expected heads of {TOPIC_DIMENSIONS} or more, and embeddings of twice that and more")

    def matrix(self, rows: int, columns: int, deviation: float) -> NDArray[np.float16]:
        """(rows, columns) of this standard deviation."""
        return (self._rng.standard_normal((rows, columns), dtype=np.float32) * deviation).astype(np.float16)

    def embeddings(self) -> NDArray[np.float16]:
        """(vocab, embd): the constant, the topic of the token's cluster, room for the topics before, and noise."""
        values = self.matrix(self._vocab, self._shape.embd, 1.0)
        values[:, 0] = CONSTANT
        topics = self.matrix(CLUSTERS, TOPIC_DIMENSIONS, 1.0)
        values[:, self._own] = topics[np.arange(self._vocab) % CLUSTERS]
        values[:, self._before] = 0
        return values

    def experts(self, columns: int, rows: int, deviation: float) -> Repeated:
        """All experts' matrices of one kind, from one list of blocks begun at a random place."""
        block, size = gguf.GGML_QUANT_SIZES[self.quantisation]
        start = int(self._rng.integers(0, BLOCKS)) * size
        return Repeated(self._blocks[deviation], start, (self._shape.experts, rows, columns // block * size))

    def router(self) -> NDArray[np.float32]:
        """(experts, embd): bias, topics of the token and before it, and noise of unit variance."""
        shape, routing = self._shape, self._routing
        noise = shape.embd - 1 - 2 * TOPIC_DIMENSIONS
        rows = self._rng.standard_normal((shape.experts, shape.embd), dtype=np.float32) / np.float32(math.sqrt(noise))
        affinities = self._rng.standard_normal((shape.experts, TOPIC_DIMENSIONS)) / math.sqrt(TOPIC_DIMENSIONS)
        rows[:, 0] = self._rng.normal(0, routing.skew, shape.experts) / CONSTANT
        rows[:, self._own] = rows[:, self._before] = routing.topic * affinities
        values: NDArray[np.float32] = (rows * self._rms).astype(np.float32)
        return values

    def attention(self, *, looks_back: bool) -> dict[str, NDArray[Any]]:
        """The tensors of a layer's attention; one that looks back sees positions only and carries topics forward."""
        shape, dims = self._shape, TOPIC_DIMENSIONS
        tensors: dict[str, NDArray[Any]] = {
            "attn_q": self.matrix(shape.heads * shape.head_dim, shape.embd, WEIGHT_DEVIATION),
            "attn_k": self.matrix(shape.kv_heads * shape.head_dim, shape.embd, WEIGHT_DEVIATION),
            "attn_v": self.matrix(shape.kv_heads * shape.head_dim, shape.embd, WEIGHT_DEVIATION),
            "attn_output": self.matrix(shape.embd, shape.heads * shape.head_dim, WEIGHT_DEVIATION / 10),
            "attn_q_norm": np.ones(shape.head_dim, np.float32),
            "attn_k_norm": np.ones(shape.head_dim, np.float32),
        }
        if not looks_back:
            return tensors
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors[name][:] = 0
        # Queries and keys are the same vector of ones at every position: what rotates by position alone leaves the mean
        # cosine over all frequencies, which falls with the logarithm of the distance, and so weights as a power of it.
        tensors["attn_q"][:, 0] = tensors["attn_k"][:, 0] = 1
        tensors["attn_k_norm"][:] = self._routing.recency * math.log(ROPE_BASE) / math.sqrt(shape.head_dim)
        tensors["attn_v"][range(dims), range(1, 1 + dims)] = 1
        rows = range(1 + dims, 1 + 2 * dims)
        tensors["attn_output"][rows, range(dims)] = self._routing.context * self._rms
        return tensors


def write_model(file: str, shape: Shape, layers: int, routing: Routing, vocab: int, seed: int) -> None:
    """Write a model of this shape, all of whose layers hold experts."""
    weights = Weights(shape, routing, vocab, seed)
    writer = gguf.GGUFWriter(file, "qwen3moe")
    writer.add_name("synthetic-moe")
    writer.add_block_count(layers)
    writer.add_context_length(131072)
    writer.add_embedding_length(shape.embd)
    writer.add_feed_forward_length(shape.ff)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.used)
    writer.add_expert_feed_forward_length(shape.ff)
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("none")

    writer.add_tensor("token_embd.weight", weights.embeddings())
    writer.add_tensor("output_norm.weight", np.ones(shape.embd, np.float32))
    writer.add_tensor("output.weight", weights.matrix(vocab, shape.embd, WEIGHT_DEVIATION))
    for layer in range(layers):
        name = f"blk.{layer}."
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{name}{norm}.weight", np.ones(shape.embd, np.float32))
        for tensor, values in weights.attention(looks_back=layer == 0).items():
            writer.add_tensor(f"{name}{tensor}.weight", values)
        writer.add_tensor(f"{name}ffn_gate_inp.weight", weights.router())
        for tensor, columns, rows, deviation in (
            ("gate", shape.embd, shape.ff, WEIGHT_DEVIATION),
            ("up", shape.embd, shape.ff, WEIGHT_DEVIATION),
            ("down", shape.ff, shape.embd, DOWN_DEVIATION),
        ):
            repeated: Any = weights.experts(columns, rows, deviation)
            writer.add_tensor(f"{name}ffn_{tensor}_exps.weight", repeated, raw_dtype=weights.quantisation)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=False)
    writer.close()


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="v4-flash", help="what the other options change")
    parser.add_argument("--layers", type=int, default=8, help="the whole models have 36 to 94")
    for name in ("embd", "ff", "experts", "used", "heads", "kv-heads", "head-dim"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--type", help="of the experts: MXFP4, Q4_K, Q4_0 or Q8_0")
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--skew", type=float, default=0.5)
    parser.add_argument("--topic", type=float, default=0.7)
    parser.add_argument("--context", type=float, default=1.5)
    parser.add_argument("--recency", type=float, default=1.6)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    named = {name: value for name, value in vars(arguments).items() if name in Shape.__slots__ and value is not None}
    shape = dataclasses.replace(SHAPES[arguments.shape], **named)
    routing = Routing(arguments.skew, arguments.topic, arguments.context, arguments.recency)
    write_model(arguments.out, shape, arguments.layers, routing, arguments.vocab, arguments.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
