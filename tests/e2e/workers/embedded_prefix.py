"""embedded_prefix.py LIBRARIES MODEL OUT.npz [gpu]: a prefix of vectors, as a projector makes of an image, then text.

No token ids stand behind such a prefix. Passes of many rows and of few read it, one reads text behind it, and single
tokens follow. Writes (n_tokens, n_vocab) float32 logits: "stock", "half" (every second expert hot) and "all_cold", with
the routes of each MoE layer ("half_routes", "all_cold_routes"), and "without", the stock nodes' for the text alone.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinatod.bindings import load_bindings
from tests.e2e.workers.placement import Device, Model

PREFIX = (40, 3)
"""Vectors of the passes that read them."""
TEXT = (20, 1, 1)
"""Tokens of the passes behind them."""
DEVIATION = 0.07
"""Of the vectors, as of the bundled model's embeddings of tokens."""
CONTEXT = 512


def evaluate(
    core: Any, model: Model, prefix: Sequence[int], text: Sequence[int], *, on_gpu: bool
) -> NDArray[np.float32]:
    """(sum of both, n_vocab) logits of passes over made-up vectors, then made-up tokens, in a context of its own."""
    params = core.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT
    params.n_threads = params.n_threads_batch = 1
    params.op_offload = params.offload_kqv = on_gpu
    context = core.llama_init_from_model(model.handle, params)
    if not context:
        raise RuntimeError("no context can be made of this model")
    rng = np.random.default_rng(31)
    n_embd = core.llama_model_n_embd(model.handle)
    vectors = (DEVIATION * rng.standard_normal((sum(PREFIX), n_embd))).astype(np.float32)
    tokens = rng.integers(0, model.n_vocab, sum(TEXT)).tolist()
    batch = core.llama_batch_ext_init(context)
    rows = []
    position = 0
    try:
        for is_text, sizes in ((False, prefix), (True, text)):
            item = 0
            for n in sizes:
                core.llama_batch_ext_clear(batch)
                for i in range(n):
                    if is_text:
                        core.llama_batch_ext_add_token(batch, 0, tokens[item])
                    else:
                        row = vectors[item].ctypes.data_as(ctypes.POINTER(ctypes.c_float))
                        core.llama_batch_ext_add_embd(batch, 0, core.llama_embd(row, 1, n_embd))
                    core.llama_batch_ext_set_pos(batch, i, (core.llama_pos * 4)(position, position, position, 0))
                    core.llama_batch_ext_set_output_logits(batch, i, True)
                    item += 1
                    position += 1
                if core.llama_process(context, core.LLAMA_PROCESS_TYPE_DECODE, batch) != 0:
                    raise RuntimeError(f"a pass of {n} failed")
                rows.append(np.ctypeslib.as_array(core.llama_get_logits(context), (n, model.n_vocab)).copy())
    finally:
        core.llama_batch_ext_free(batch)
        core.llama_free(context)
    return np.concatenate(rows)


def main(libraries: str, model_path: str, out: str, device: str = "cpu") -> None:
    """Evaluates every case and stores its logits."""
    bindings = load_bindings(Path(libraries))
    core: Any = bindings.llama_cpp.llama_cpp
    core.llama_backend_init()
    bindings.count_routes(True)
    path = Path(model_path)
    on_gpu = device == "gpu"
    results: dict[str, Any] = {}
    with Model(bindings, path, "gpu" if on_gpu else "cpu") as model:
        results["stock"] = evaluate(core, model, PREFIX, TEXT, on_gpu=on_gpu)
        results["without"] = evaluate(core, model, (), TEXT, on_gpu=on_gpu)
        shape = model.shape
    placed: Device = "gpu_host_experts" if on_gpu else "cpu"
    every_second = np.arange(shape[1])[None, :].repeat(shape[0], 0) % 2 == 0
    for name, hot in (("half", every_second), ("all_cold", np.zeros(shape, bool))):
        with Model(bindings, path, placed) as model:
            model.place(hot)
            results[name] = evaluate(core, model, PREFIX, TEXT, on_gpu=on_gpu)
            counts = bindings.route_counts(model.handle)
            results[f"{name}_routes"] = (counts.prefill + counts.decode).sum(axis=1)
    np.savez(out, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
