"""placement.py LIBRARIES MODEL OUT.npz: logits of one model under several placements of its experts, and without any.

Each placement evaluates the same passes in a context of its own. Writes (n_tokens, n_vocab) float32 arrays: "stock",
"all_hot", "all_cold", "half", "random", and "random_1_thread" with one CPU thread.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SESSION = Path(__file__).parents[2] / "data" / "tau2-retail-session.json"
"""What the model reads: the beginning of a recorded session."""

UBATCHES = (1, 3, 8, 33, 128)
"""Tokens of the successive forward passes: one row per expert, a few, and many."""


def main(libraries: str, model_path: str, out: str) -> None:
    """Evaluates every placement and stores the logits."""
    import numpy as np
    from numpy.typing import NDArray

    from ostinatod.bindings import load_bindings

    bindings = load_bindings(Path(libraries))
    core: Any = bindings.llama_cpp.llama_cpp
    core.llama_backend_init()
    bindings.count_routes(True)

    def text_tokens(vocab: Any) -> list[int]:
        text = json.loads(SESSION.read_text(encoding="utf-8"))["messages"][0]["content"].encode()
        tokens = (core.llama_token * 4096)()
        n_tokens = core.llama_tokenize(vocab, text, len(text), tokens, len(tokens), False, True)
        return list(tokens[:n_tokens])

    def logits(placement: str, n_threads: int = 2) -> NDArray[np.float32]:
        model_params = core.llama_model_default_params()
        model_params.use_extra_bufts = False  # repacked weights have no rows to copy or to multiply one by one
        model = core.llama_model_load_from_file(model_path.encode(), model_params)
        shape = bindings.route_counts(model).prefill.shape
        rng = np.random.default_rng(11)
        hot = {
            "all_hot": np.ones(shape, bool),
            "all_cold": np.zeros(shape, bool),
            "half": np.arange(shape[1])[None, :].repeat(shape[0], 0) % 2 == 0,
            "random": rng.random(shape) < rng.random((shape[0], 1)),
        }
        if placement != "stock":
            bindings.set_residency(model, hot[placement])
        params = core.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 512, 512, 512
        params.n_threads = params.n_threads_batch = n_threads
        context = core.llama_init_from_model(model, params)
        vocab = core.llama_model_get_vocab(model)
        n_vocab = core.llama_vocab_n_tokens(vocab)
        tokens = text_tokens(vocab)
        rows = []
        for i, n_tokens in enumerate(UBATCHES):
            batch = core.llama_batch_init(n_tokens, 0, 1)
            batch.n_tokens = n_tokens
            for t in range(n_tokens):
                position = sum(UBATCHES[:i]) + t
                batch.token[t], batch.pos[t] = tokens[position], position
                batch.n_seq_id[t], batch.seq_id[t][0], batch.logits[t] = 1, 0, 1
            if core.llama_decode(context, batch) != 0:
                raise RuntimeError("llama_decode failed")
            rows.append(np.ctypeslib.as_array(core.llama_get_logits(context), (n_tokens, n_vocab)).copy())
            core.llama_batch_free(batch)
        core.llama_free(context)
        core.llama_model_free(model)
        return np.concatenate(rows)

    placements = ("stock", "all_hot", "all_cold", "half", "random")
    np.savez(out, random_1_thread=logits("random", n_threads=1), **{name: logits(name) for name in placements})


if __name__ == "__main__":
    main(*sys.argv[1:])
