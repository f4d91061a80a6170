"""Whether a model computes the same wherever its experts are: `ostinato verify`, on the user's machine.

Runs as a program of its own, since it loads a model into its process: `python -m ostinatod.verification LIBRARIES MODEL
BACKEND`. Evaluates the same tokens with llama.cpp's own nodes and under several placements, and prints JSON objects,
one a line: {"step": text} while it works, then {"noise", "cases": [{"placement", "nmse", "same_token", "repeats"}]}, or
{"error", "hint"} where the engine refuses.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinatod.bindings import Bindings, PlacementOptions, load_bindings
from ostinatod.errors import EngineError

PASSES = (1, 3, 8, 33, 128, 1, 1)
"""Tokens of the successive forward passes: one row per expert, a few, and many."""

CONTEXT_TOKENS = 512


class _LoadedModel:
    """A model in this process; its experts are in host memory as the file has them, so that they can be placed."""

    def __init__(self, bindings: Bindings, path: Path, *, on_gpu: bool) -> None:
        self._core: Any = bindings.llama_cpp.llama_cpp
        params = self._core.llama_model_default_params()
        params.use_extra_bufts = False
        params.n_gpu_layers = 99 if on_gpu else 0
        if on_gpu:
            self._overrides = bindings.keep_in_host_memory(params)
        self.handle = self._core.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            raise RuntimeError(f"{path} cannot be loaded")
        self.n_vocab = self._core.llama_vocab_n_tokens(self._core.llama_model_get_vocab(self.handle))

    def logits(self, tokens: Sequence[int], passes: Sequence[int] = PASSES) -> NDArray[np.float32]:
        """(tokens, vocabulary) of one sequence, `passes` tokens at a time, in a context of its own."""
        core = self._core
        params = core.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT_TOKENS
        context = core.llama_init_from_model(self.handle, params)
        if not context:
            raise RuntimeError("no context can be made of this model")
        batch = core.llama_batch_ext_init(context)
        rows = []
        position = 0
        for n_tokens in passes:
            core.llama_batch_ext_clear(batch)
            for i in range(n_tokens):
                core.llama_batch_ext_add_token(batch, 0, tokens[position])
                core.llama_batch_ext_set_pos(batch, i, (core.llama_pos * 4)(position, position, position, 0))
                core.llama_batch_ext_set_output_logits(batch, i, True)
                position += 1
            if core.llama_process(context, core.LLAMA_PROCESS_TYPE_DECODE, batch) != 0:
                raise RuntimeError(f"a pass of {n_tokens} tokens failed")
            row = core.llama_get_logits(context)
            rows.append(np.ctypeslib.as_array(row, (n_tokens, self.n_vocab)).copy())
        core.llama_batch_ext_free(batch)
        core.llama_free(context)
        return np.concatenate(rows)

    def free(self) -> None:
        """Unload it."""
        self._core.llama_model_free(self.handle)


def placements(shape: tuple[int, int]) -> Mapping[str, NDArray[np.bool_]]:
    """The hot experts (layers, experts) of each placement that is tried."""
    rng = np.random.default_rng(11)
    return {
        "all hot": np.ones(shape, bool),
        "all cold": np.zeros(shape, bool),
        "every second hot": np.arange(shape[1])[None, :].repeat(shape[0], 0) % 2 == 0,
        "random": rng.random(shape) < rng.random((shape[0], 1)),
    }


def nmse(values: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    """Squared error over squared reference."""
    exact = reference.astype(np.float64)
    return float(((values - exact) ** 2).sum() / (exact**2).sum())


def compare(bindings: Bindings, path: Path, *, on_gpu: bool) -> dict[str, Any]:
    """The stock nodes against every placement. Raises EngineError where the model cannot be placed."""
    rng = np.random.default_rng(3)
    _tell("the stock nodes")
    stock = _LoadedModel(bindings, path, on_gpu=on_gpu)
    tokens = rng.integers(0, stock.n_vocab, sum(PASSES)).tolist()
    reference = stock.logits(tokens)
    noise = nmse(stock.logits(tokens, (sum(PASSES),)), reference)
    n_layers, n_experts = bindings.route_counts(stock.handle).prefill.shape
    stock.free()
    cases = []
    for name, hot in placements((n_layers, n_experts)).items():
        _tell(name)
        model = _LoadedModel(bindings, path, on_gpu=on_gpu)
        bindings.set_residency(model.handle, hot)
        values = model.logits(tokens)
        cases.append(
            {
                "placement": name,
                "nmse": nmse(values, reference),
                "same_token": float((values.argmax(1) == reference.argmax(1)).mean()),
                "repeats": bool((model.logits(tokens) == values).all()),
            }
        )
        model.free()
    return {"noise": noise, "cases": cases}


def _tell(step: str) -> None:
    print(json.dumps({"step": step}), flush=True)


def main(libraries: str, model: str, backend: str) -> int:
    """The program; its exit code."""
    try:
        bindings = load_bindings(Path(libraries))
        bindings.start()
        bindings.count_routes(True)
        # What is borrowed depends on time: the same tokens may round differently with it, wherever experts are.
        bindings.configure(placement=PlacementOptions(borrow_percent=-1))
        print(json.dumps(compare(bindings, Path(model), on_gpu=backend == "cuda")), flush=True)
    except EngineError as error:
        print(json.dumps({"error": error.message, "hint": error.hint}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
