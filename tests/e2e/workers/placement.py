"""placement.py LIBRARIES MODEL OUT.npz: logits of one model under several placements of its experts, and without any.

Each placement evaluates the same passes in a context of its own. Writes (n_tokens, n_vocab) float32 arrays: "stock",
"all_hot", "all_cold", "half", "random", and "random_2_threads". The others have one thread: on a machine that is busy
with something else, several would wait for each other, spinning.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ostinatod.bindings import Bindings, load_bindings

SESSION = Path(__file__).parents[2] / "data" / "tau2-retail-session.json"
"""What the model reads: the beginning of a recorded session."""

UBATCHES = (1, 3, 8, 33, 128)
"""Tokens of the successive forward passes: one row per expert, a few, and many."""

CONTEXT_TYPE_MTP = 1
"""LLAMA_CONTEXT_TYPE_MTP"""

Device = Literal["cpu", "gpu", "gpu_host_experts"]
"""Where a model's layers are; in the last case their experts stay in host memory, as a placement wants them."""

Output = Literal["logits", "embeddings", "draft"]
"""What is compared: logits, the embeddings of a model that has no others, or the logits of its draft layer."""


class Model:
    """One loaded model and what it computes. Use it as a context manager.

    Weights stay as the file has them: repacked ones have no rows to copy or to multiply one by one.
    """

    def __init__(self, bindings: Bindings, path: Path, device: Device = "cpu") -> None:
        self._bindings = bindings
        self._core: Any = bindings.llama_cpp.llama_cpp
        params = self._core.llama_model_default_params()
        params.use_extra_bufts = False
        params.load_mtp = True
        params.n_gpu_layers = 0 if device == "cpu" else 99
        self._is_on_cpu = device == "cpu"
        if device == "gpu_host_experts":
            self._overrides = bindings.keep_in_host_memory(params)
        self.handle = self._core.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            raise RuntimeError(f"{path} cannot be loaded")
        self.vocab = self._core.llama_model_get_vocab(self.handle)
        self.n_vocab = self._core.llama_vocab_n_tokens(self.vocab)
        self.shape = bindings.route_counts(self.handle).prefill.shape

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self._core.llama_model_free(self.handle)

    def place(self, hot: NDArray[np.bool_]) -> None:
        """Makes exactly the experts of `hot` (layers, experts) hot."""
        self._bindings.set_residency(self.handle, hot)

    def n_routes(self) -> NDArray[np.uint64]:
        """Routes of each MoE layer since the model was loaded."""
        counts = self._bindings.route_counts(self.handle)
        routes: NDArray[np.uint64] = (counts.prefill + counts.decode).sum(axis=1)
        return routes

    def evaluate(
        self, tokens: Sequence[int], passes: Sequence[int] = UBATCHES, output: Output = "logits", n_threads: int = 2
    ) -> NDArray[np.float32]:
        """(sum of passes, outputs) of one sequence, `passes` tokens at a time, in a context of its own."""
        n_ubatch = max(512, -(-sum(passes) // 256) * 256)
        return np.concatenate(list(self.each_pass(tokens, passes, output, n_threads, n_ubatch=n_ubatch)))

    def each_pass(
        self,
        tokens: Sequence[int],
        passes: Sequence[int],
        output: Output = "logits",
        n_threads: int = 2,
        *,
        n_ubatch: int,
        on_node: Any = None,
    ) -> Iterator[NDArray[np.float32]]:
        """The outputs (n_tokens, outputs) of one pass after the other; `on_node` is an evaluation callback."""
        core = self._core
        params = core.llama_context_default_params()
        params.n_ctx = max(512, -(-sum(passes) // 256) * 256)
        params.n_batch = params.n_ubatch = n_ubatch
        params.n_threads = params.n_threads_batch = n_threads
        params.embeddings = output == "embeddings"
        params.pooling_type = core.LLAMA_POOLING_TYPE_NONE
        params.ctx_type = CONTEXT_TYPE_MTP if output == "draft" else 0
        # llama.cpp would give large passes of a model on the CPU to a GPU
        params.op_offload = params.offload_kqv = not self._is_on_cpu
        if on_node is not None:
            params.cb_eval = on_node
        context = core.llama_init_from_model(self.handle, params)
        if not context:
            raise RuntimeError("no context can be made of this model")
        batch = core.llama_batch_ext_init(context)
        try:
            n_embd = core.llama_model_n_embd(self.handle)
            states = np.random.default_rng(5).standard_normal((sum(passes), n_embd)).astype(np.float32)
            position = 0
            for n_tokens in passes:
                core.llama_batch_ext_clear(batch)
                for i in range(n_tokens):
                    core.llama_batch_ext_add_token(batch, 0, tokens[position])
                    core.llama_batch_ext_set_pos(batch, i, (core.llama_pos * 4)(position, position, position, 0))
                    core.llama_batch_ext_set_output_logits(batch, i, True)
                    if output == "draft":
                        state = states[position].ctypes.data_as(ctypes.POINTER(ctypes.c_float))
                        core.llama_batch_ext_set_embd_token(batch, i, core.llama_embd(state, 1, n_embd))
                    position += 1
                if core.llama_process(context, core.LLAMA_PROCESS_TYPE_DECODE, batch) != 0:
                    raise RuntimeError(f"a pass of {n_tokens} tokens failed")
                if output == "embeddings":
                    row, width = core.llama_get_embeddings(context), n_embd
                else:
                    row, width = core.llama_get_logits(context), self.n_vocab
                yield np.ctypeslib.as_array(row, (n_tokens, width)).copy()
        finally:
            core.llama_batch_ext_free(batch)
            core.llama_free(context)


def text_tokens(core: Any, vocab: Any) -> list[int]:
    """Tokens of the recorded session's first message."""
    text = json.loads(SESSION.read_text(encoding="utf-8"))["messages"][0]["content"].encode()
    tokens = (core.llama_token * 4096)()
    n_tokens = core.llama_tokenize(vocab, text, len(text), tokens, len(tokens), False, True)
    return list(tokens[:n_tokens])


def main(libraries: str, model_path: str, out: str) -> None:
    """Evaluates every placement and stores the logits."""
    bindings = load_bindings(Path(libraries))
    core: Any = bindings.llama_cpp.llama_cpp
    core.llama_backend_init()
    bindings.count_routes(True)

    def logits(placement: str, n_threads: int = 1) -> NDArray[np.float32]:
        with Model(bindings, Path(model_path)) as model:
            rng = np.random.default_rng(11)
            hot = {
                "all_hot": np.ones(model.shape, bool),
                "all_cold": np.zeros(model.shape, bool),
                "half": np.arange(model.shape[1])[None, :].repeat(model.shape[0], 0) % 2 == 0,
                "random": rng.random(model.shape) < rng.random((model.shape[0], 1)),
            }
            if placement != "stock":
                model.place(hot[placement])
            return model.evaluate(text_tokens(core, model.vocab), n_threads=n_threads)

    results: dict[str, Any] = {name: logits(name) for name in ("stock", "all_hot", "all_cold", "half", "random")}
    np.savez(out, random_2_threads=logits("random", n_threads=2), **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
