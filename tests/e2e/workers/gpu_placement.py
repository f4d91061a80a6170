"""gpu_placement.py LIBRARIES MODEL OUT.json: one model's logits on a GPU, by placement of its experts and upload path.

Compares every case with the stock nodes, all layers on the GPU, over passes of 1 to 512 tokens. OUT.json holds
`noise`, the NMSE of the stock nodes with all tokens in one pass, and a list of cases: mode, placement, nmse, same_token
(share of tokens with the same most likely successor), repeats (whether the next context gave the same bits, once the
engine has learned what uploads cost and decides as in the context before), and what was computed where.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinatod.bindings import NEVER, Bindings, PlacementOptions, load_bindings
from ostinatod.profiles.gguf_model import read_model
from ostinatod.verification import nmse
from tests.e2e.workers.architecture import placements
from tests.e2e.workers.placement import UBATCHES, Model

PASSES = (*UBATCHES, 2, 4, 7, 9, 64, 249, 1, 1, 512, 1)

MODES: dict[str, dict[str, Any]] = {
    "split": {"upload_tokens": NEVER, "link_percent": -1},
    "link": {"upload_tokens": NEVER, "link_percent": 50},
    "choice": {"upload_tokens": 32, "link_percent": -1, "borrow_percent": -1},
    "upload": {"upload_tokens": 9, "upload_all_tokens": 9, "link_percent": -1, "borrow_percent": -1},
    "threshold": {"upload_tokens": 128, "upload_all_tokens": 128, "link_percent": -1, "borrow_percent": -1},
    "borrowed": {"upload_tokens": 1024, "link_percent": -1},
}
"""The CPU branch alone; the same with a share for the GPU in steps of few tokens; a choice per expert between it and
uploads; uploads alone, as far as staging goes; these from a threshold on; and memory for uploads that no pass has,
lent to a fixed list of experts in steps of few tokens."""

MOST_EVALUATIONS = 20
"""After which nothing that decides where an expert is computed may change: costs of uploads and the link's head start
are those of the first layers of each size of passes, and staging memory has as much room as the passes ever used."""

ALL_HOT = ("split", "link")
"""Modes in which everything may be hot. In the others nothing would be left to upload, nor to lend."""
POOL_SHARE = 0.45
"""Of the experts, in the others; staging comes out of it."""
POOL_BYTES = 17 << 20
"""What a pool needs beside its experts."""

Logits = NDArray[np.float32]


def main(libraries: str, model_path: str, out: str) -> None:
    """Evaluates every case and stores the comparison."""
    bindings = load_bindings(Path(libraries))
    bindings.start()
    bindings.count_routes(True)
    path = Path(model_path)

    with Model(bindings, path, "gpu") as model:
        tokens = np.random.default_rng(3).integers(0, model.n_vocab, sum(PASSES)).tolist()
        stock = model.evaluate(tokens, PASSES, n_threads=1)
        noise = nmse(model.evaluate(tokens, (sum(PASSES),), n_threads=1), stock)
        shape = model.shape
    expert_bytes = sum(tensor.nbytes for tensor in read_model([path]).tensors() if "_exps." in tensor.name)
    cases = []
    for mode, options in MODES.items():
        pool_bytes = int(expert_bytes * (1.0 if mode in ALL_HOT else POOL_SHARE)) + POOL_BYTES
        for name, hot in placements(shape).items():
            bindings.configure(placement=PlacementOptions(timeout_ms=5000, pool_bytes=pool_bytes, **options))
            with Model(bindings, path, "gpu_host_experts") as model:
                model.place(hot)
                lent = 0
                if mode == "borrowed":
                    model.evaluate(tokens[:1], (1,), n_threads=1)  # a pool has its memory when a context has
                    lent = bindings.set_borrowed(model.handle, ~hot if (~hot).any() else hot)
                logits, again, is_settled = evaluated_twice(bindings, model, tokens)
                device = bindings.device_status(model.handle)[0]
            cases.append(
                {
                    "mode": mode,
                    "placement": name,
                    "nmse": nmse(logits, stock),
                    "same_token": float((logits.argmax(1) == stock.argmax(1)).mean()),
                    "repeats": is_settled and bool((logits == again).all()),
                    "cold_routes": device.cold_routes,
                    "cpu_routes": device.cpu_routes,
                    "uploaded_experts": device.uploaded,
                    "linked": device.linked,
                    "lent": lent,
                }
            )
            print(json.dumps(cases[-1]), flush=True)
    result = {"model": path.name, "noise": noise, "cases": cases}
    Path(out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def evaluated_twice(bindings: Bindings, model: Model, tokens: Sequence[int]) -> tuple[Logits, Logits, bool]:
    """Logits of two contexts, one after the other, in which as much was computed in each place; whether there were."""
    logits, decided = evaluated(bindings, model, tokens)
    for _ in range(MOST_EVALUATIONS):
        again, decided_again = evaluated(bindings, model, tokens)
        if decided_again == decided:
            return logits, again, True
        logits, decided = again, decided_again
    return logits, logits, False


def evaluated(bindings: Bindings, model: Model, tokens: Sequence[int]) -> tuple[Logits, tuple[int, ...]]:
    """Logits of a context, and how many experts and routes it had in each place."""

    def places() -> tuple[int, ...]:
        device = bindings.device_status(model.handle)[0]
        return (device.cpu_routes, device.uploaded, device.prefetched, device.foreseen)

    before = places()
    logits = model.evaluate(tokens, PASSES, n_threads=1)
    return logits, tuple(now - then for now, then in zip(places(), before, strict=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
