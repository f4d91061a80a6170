"""gpu_placement.py LIBRARIES MODEL OUT.json: one model's logits on a GPU, by placement of its experts and upload path.

Compares every case with the stock nodes, all layers on the GPU, over passes of 1 to 512 tokens. OUT.json holds
`noise`, the NMSE of the stock nodes with all tokens in one pass, and a list of cases: mode, placement, nmse, same_token
(share of tokens with the same most likely successor), repeats (whether a second context gave the same bits), and what
was computed where.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ostinatod.bindings import NEVER, PlacementOptions, load_bindings
from ostinatod.verification import nmse
from tests.e2e.workers.architecture import placements
from tests.e2e.workers.placement import UBATCHES, Model

PASSES = (*UBATCHES, 2, 4, 7, 9, 64, 249, 1, 1, 512, 1)

MODES: dict[str, dict[str, Any]] = {
    "split": {"upload_tokens": NEVER, "link_percent": -1},
    "link": {"upload_tokens": NEVER, "link_percent": 50},
    "choice": {"upload_tokens": 32},
    "upload": {"upload_tokens": 9, "upload_all_tokens": 9},
}
"""The CPU branch alone; the same with a share for the GPU in steps of few tokens; a choice per expert between it and
uploads; uploads alone, as far as staging goes."""

POOL_SHARE = {"split": 1.0, "link": 1.0, "choice": 0.75, "upload": 0.75}
"""Of the size of the file: with uploads not everything may be hot."""


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
    cases = []
    for mode, options in MODES.items():
        pool_bytes = int(path.stat().st_size * POOL_SHARE[mode]) + (64 << 20 if POOL_SHARE[mode] == 1.0 else 0)
        for name, hot in placements(shape).items():
            bindings.configure(placement=PlacementOptions(timeout_ms=5000, pool_bytes=pool_bytes, **options))
            with Model(bindings, path, "gpu_host_experts") as model:
                model.place(hot)
                logits = model.evaluate(tokens, PASSES, n_threads=1)
                again = model.evaluate(tokens, PASSES, n_threads=1)
                device = bindings.device_status(model.handle)[0]
            cases.append(
                {
                    "mode": mode,
                    "placement": name,
                    "nmse": nmse(logits, stock),
                    "same_token": float((logits.argmax(1) == stock.argmax(1)).mean()),
                    "repeats": bool((logits == again).all()),
                    "cold_routes": device.cold_routes,
                    "cpu_routes": device.cpu_routes,
                    "uploaded_experts": device.uploaded,
                }
            )
            print(json.dumps(cases[-1]), flush=True)
    result = {"model": path.name, "noise": noise, "cases": cases}
    Path(out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
