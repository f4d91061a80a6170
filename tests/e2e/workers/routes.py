"""routes.py LIBRARIES MODEL OUT.npz: the engine's route counters beside an independent count.

The oracle is llama.cpp's own evaluation callback, which shows the ids that each layer's top-k selected. Writes the
counts of both by phase, each (n_layers, n_experts).
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

PROMPTS = (57, 130)
"""Tokens of the prefills; each is followed by `N_DECODE` one-token steps."""
N_DECODE = 25


class Tensor(ctypes.Structure):
    """The head of a ggml_tensor."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
    )


def main(libraries: str, model_path: str, out: str) -> None:
    """Decodes a few batches and stores both counts."""
    import numpy as np

    from ostinatod.bindings import load_bindings

    bindings = load_bindings(Path(libraries))
    core: Any = bindings.llama_cpp.llama_cpp
    base = ctypes.CDLL(str(next(Path(libraries).glob("libggml-base.*"))))
    base.ggml_get_name.restype = ctypes.c_char_p
    base.ggml_get_name.argtypes = [ctypes.c_void_p]
    base.ggml_backend_tensor_get.restype = None
    base.ggml_backend_tensor_get.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]

    core.llama_backend_init()
    bindings.count_routes(True)
    model = core.llama_model_load_from_file(model_path.encode(), core.llama_model_default_params())
    shape = bindings.route_counts(model).prefill.shape
    oracle = {"prefill": np.zeros(shape, np.uint64), "decode": np.zeros(shape, np.uint64)}
    phase = "prefill"

    def on_node(tensor: int, ask: bool, _: object) -> bool:
        name = base.ggml_get_name(tensor).decode()
        if not name.startswith("ffn_moe_topk-"):
            return not ask
        if not ask:
            head = Tensor.from_address(tensor)
            for t in range(head.ne[1]):
                ids = np.zeros(head.ne[0], np.int32)
                base.ggml_backend_tensor_get(tensor, ids.ctypes.data, t * head.nb[1], ids.nbytes)
                np.add.at(oracle[phase][int(name.rsplit("-", 1)[1])], ids, 1)
        return True

    callback = core.ggml_backend_sched_eval_callback(on_node)
    params = core.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads, params.n_threads_batch = 1024, 512, 64, 2, 2
    params.cb_eval = callback
    context = core.llama_init_from_model(model, params)
    n_vocab = core.llama_vocab_n_tokens(core.llama_model_get_vocab(model))

    def decode(tokens: list[int]) -> None:
        array = (core.llama_token * len(tokens))(*tokens)
        if core.llama_decode(context, core.llama_batch_get_one(array, len(tokens))) != 0:
            raise RuntimeError("llama_decode failed")

    position = 0
    for n_prompt in PROMPTS:
        phase = "prefill"
        decode([(7919 * (position + i) + 17) % n_vocab for i in range(n_prompt)])
        phase = "decode"
        for i in range(N_DECODE):
            decode([(104729 * (position + i) + 3) % n_vocab])
        position += n_prompt + N_DECODE

    counts = bindings.route_counts(model)
    np.savez(
        out,
        prefill=counts.prefill,
        decode=counts.decode,
        oracle_prefill=oracle["prefill"],
        oracle_decode=oracle["decode"],
    )
    core.llama_free(context)
    core.llama_model_free(model)


if __name__ == "__main__":
    main(*sys.argv[1:])
