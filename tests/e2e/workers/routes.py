"""routes.py LIBRARIES MODEL OUT.npz [HOT_SHARE [cpu|gpu [UPLOAD_TOKENS]]]: the engine's counters beside another count.

The oracle is llama.cpp's own evaluation callback, which shows the ids that each layer's top-k selected. Writes the
counts of both by phase, each (n_layers, n_experts). With a HOT_SHARE, that share of the experts is hot, and on a GPU
`cold` holds the cold routes that were published, computed by the CPU branch and selected. Run as a module.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from ostinatod.bindings import NEVER, PlacementOptions, load_bindings
from tests.e2e.workers.nodes import Graph
from tests.e2e.workers.placement import Model

PROMPTS = (57, 130)
"""Tokens of the prefills; each is followed by `N_DECODE` one-token steps."""
N_DECODE = 25

UBATCH = 64


def main(
    libraries: str, model_path: str, out: str, hot_share: str = "", device: str = "cpu", upload_tokens: str = ""
) -> None:
    """Decodes a few batches and stores both counts."""
    bindings = load_bindings(Path(libraries))
    graph = Graph(Path(libraries))
    core: Any = bindings.llama_cpp.llama_cpp
    core.llama_backend_init()
    bindings.count_routes(True)
    if device == "gpu":
        bindings.configure(placement=PlacementOptions(upload_tokens=int(upload_tokens or NEVER), timeout_ms=10_000))
    with Model(bindings, Path(model_path), "gpu_host_experts" if device == "gpu" else "cpu") as model:
        rng = np.random.default_rng(19)
        order = rng.permuted(np.arange(model.shape[1])[None, :].repeat(model.shape[0], 0), axis=1)
        is_hot = order < float(hot_share or 1) * model.shape[1]
        if hot_share:
            model.place(is_hot)
        oracle = {phase: np.zeros(model.shape, np.uint64) for phase in ("prefill", "decode")}
        phase = "prefill"

        def on_node(node: int, ask: bool, _: object) -> bool:
            name = graph.name(node)
            if not name.startswith("ffn_moe_topk-"):
                return not ask
            if not ask:
                layer = bindings.route_counts(model.handle).layers.tolist().index(int(name.rsplit("-", 1)[1]))
                for ids in graph.ids(node):
                    np.add.at(oracle[phase][layer], ids, 1)
            return True

        callback = core.ggml_backend_sched_eval_callback(on_node)
        params = core.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads, params.n_threads_batch = (
            1024,
            512,
            UBATCH,
            1,
            1,
        )
        params.cb_eval = callback
        context = core.llama_init_from_model(model.handle, params)

        def decode(tokens: list[int]) -> None:
            array = (core.llama_token * len(tokens))(*tokens)
            if core.llama_decode(context, core.llama_batch_get_one(array, len(tokens))) != 0:
                raise RuntimeError("llama_decode failed")

        position = 0
        for n_prompt in PROMPTS:
            phase = "prefill"
            decode([(7919 * (position + i) + 17) % model.n_vocab for i in range(n_prompt)])
            phase = "decode"
            for i in range(N_DECODE):
                decode([(104729 * (position + i) + 3) % model.n_vocab])
            position += n_prompt + N_DECODE

        core.llama_synchronize(context)
        counts = bindings.route_counts(model.handle)
        devices = bindings.device_status(model.handle)
        selected_cold = int(((oracle["prefill"] + oracle["decode"]) * ~is_hot).sum())
        published = sum(device.cold_routes for device in devices)
        np.savez(
            out,
            prefill=counts.prefill,
            decode=counts.decode,
            oracle_prefill=oracle["prefill"],
            oracle_decode=oracle["decode"],
            cold=[published, sum(device.cpu_routes for device in devices), selected_cold],
            placed=bindings.residency_status(model.handle).state == "applied",
        )
        core.llama_free(context)


if __name__ == "__main__":
    main(*sys.argv[1:])
