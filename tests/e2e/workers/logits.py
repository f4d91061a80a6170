"""logits.py LIBRARIES MODEL OUT.npy [count]: the logits of a prefill and of forced decode steps, with one build.

Writes (n_tokens, n_vocab) float32: 300 prompt tokens in micro-batches of 128, then 40 one-token steps. `count` counts
routes.
"""

from __future__ import annotations

import ctypes
import os
import sys

N_PROMPT, N_DECODE = 300, 40


def main(libraries: str, model: str, out: str, *flags: str) -> None:
    """Evaluates the fixed token sequence and stores every logit."""
    os.environ["LLAMA_CPP_LIB_PATH"] = libraries
    import llama_cpp
    import numpy as np
    from llama_cpp import llama_cpp as core

    if "count" in flags:
        core._lib.ostinato_set_count_routes(ctypes.c_bool(True))
    llama = llama_cpp.Llama(
        model, n_ctx=512, n_batch=512, n_ubatch=128, n_threads=2, n_threads_batch=2, logits_all=True, verbose=False
    )
    # A fixed pseudo-random sequence: every expert is selected somewhere.
    tokens = [(7919 * i + 104729) % llama.n_vocab() for i in range(N_PROMPT + N_DECODE)]
    llama.eval(tokens[:N_PROMPT])
    for token in tokens[N_PROMPT:]:
        llama.eval([token])
    np.save(out, llama.scores[: N_PROMPT + N_DECODE])


if __name__ == "__main__":
    main(*sys.argv[1:])
