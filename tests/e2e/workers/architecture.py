"""architecture.py LIBRARIES DIRECTORY OUT.npz OUTPUT: what tiny models of one architecture compute, by placement.

DIRECTORY holds f32.gguf, mixed.gguf and missing.gguf of ostinato-tiny-models. Writes (n_tokens, outputs) float32
arrays, named FILE-PLACEMENT: "stock", "one_pass" (stock nodes, all tokens in one pass), "all_hot", "all_cold", "half"
and "random" of f32 and mixed, and "missing-stock"; `routes`, the routes of each MoE layer in one evaluation; and
`refused`, the engine's words where layers kept the stock nodes. Run as a module, for what it shares with placement.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ostinatod.bindings import load_bindings
from tests.e2e.workers.placement import UBATCHES, Model, Output


def placements(shape: tuple[int, ...]) -> dict[str, NDArray[np.bool_]]:
    """The hot experts (layers, experts) of each placement; a random one has hot and cold experts in every layer."""
    n_layers, n_experts = shape
    rng = np.random.default_rng(11)
    n_hot = rng.integers(1, n_experts, (n_layers, 1))
    return {
        "all_hot": np.ones(shape, bool),
        "all_cold": np.zeros(shape, bool),
        "half": np.arange(n_experts)[None, :].repeat(n_layers, 0) % 2 == 0,
        "random": rng.permuted(np.arange(n_experts)[None, :].repeat(n_layers, 0), axis=1) < n_hot,
    }


def main(libraries: str, directory: str, out: str, output_name: str) -> None:
    """Evaluates every file and placement, and stores the outputs."""
    output = cast(Output, output_name)
    bindings = load_bindings(Path(libraries))
    refused: list[str] = []

    def takes(text: str) -> bool:
        is_refusal = "keeps the stock nodes" in text
        if is_refusal:
            refused.append(text.strip())
        return is_refusal

    bindings.start(takes)
    bindings.count_routes(True)

    results: dict[str, Any] = {}
    for file in ("f32", "mixed"):
        path = Path(directory, f"{file}.gguf")
        with Model(bindings, path) as model:
            tokens = np.random.default_rng(3).integers(0, model.n_vocab, sum(UBATCHES)).tolist()
            results[f"{file}-stock"] = model.evaluate(tokens, output=output, n_threads=1)
            results["routes"] = model.n_routes()
            results[f"{file}-one_pass"] = model.evaluate(tokens, (sum(UBATCHES),), output, n_threads=1)
            shape = model.shape
        for name, hot in placements(shape).items():
            with Model(bindings, path) as model:
                model.place(hot)
                results[f"{file}-{name}"] = model.evaluate(tokens, output=output, n_threads=1)
    with Model(bindings, Path(directory, "missing.gguf")) as model:
        results["missing-stock"] = model.evaluate(tokens, output=output, n_threads=1)
    np.savez(out, refused=np.array(refused, dtype=str), **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
