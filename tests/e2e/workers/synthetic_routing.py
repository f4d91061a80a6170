"""synthetic_routing.py LIBRARIES MODEL OUT.npz: how a model's routing follows text, through the engine's own counters.

Reads the bundled sessions as tokens without a tokenizer. Writes "coverage": the share of the held-out sessions' routes
that the 44 % of experts most selected in development sessions take; "next": the share of experts that a token has in
common with the one before it; "chance": the same for tokens drawn independently from the session.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinatod.bench.placed_model import EngineLog, PlacedModel
from ostinatod.bench.settings import Setting
from ostinatod.bench.tokens import hashed_tokens
from ostinatod.bench.traces import SAMPLE, choose, read_traces, render_plainly
from ostinatod.bindings import load_bindings

SESSION_CHARACTERS = 4000
STEPS = 64
HOT_SHARE = 0.44


def main(libraries: str, file: str, out: str) -> None:
    """The program."""
    bindings = load_bindings(Path(libraries))
    core: Any = bindings.llama_cpp.llama_cpp
    log = EngineLog(core)
    core.llama_backend_init()
    setting = Setting("routing", "stock", threads=1)
    model = PlacedModel(bindings, Path(file), setting, n_ctx=4096, on_gpu=False, counted=True)
    totals: dict[str, NDArray[np.float64]] = {}
    following, chance = [], []
    for part, session in choose(read_traces(SAMPLE), 3, 2):
        # The end of a session: what is said, rather than the tools and rules that all of a kind share.
        text = render_plainly(session, session["messages"], False)[-SESSION_CHARACTERS:]
        tokens = hashed_tokens(text, model.n_vocab)
        before = bindings.route_counts(model.handle).prefill
        model.rewind(0)
        model.read(tokens[:-STEPS])
        read = (bindings.route_counts(model.handle).prefill - before).astype(np.float64)
        totals[part] = totals.get(part, np.zeros_like(read)) + read
        selected = np.stack([_selected(model, token) for token in tokens[-STEPS:]])
        k = selected[0, 0].sum()
        following.append((selected[:-1] & selected[1:]).sum(2).mean() / k)
        chance.append((selected.mean(0) ** 2).sum(1).mean() / k)
    # The last layer counts the last token of a prefill only.
    learned, tested = totals["development"][:-1], totals["held-out"][:-1]
    n_hot = round(HOT_SHARE * learned.shape[1])
    hot = np.argsort(-learned, axis=1)[:, :n_hot]
    coverage = np.take_along_axis(tested, hot, 1).sum() / tested.sum()
    np.savez(out, coverage=coverage, next=np.mean(following), chance=np.mean(chance))
    del log


def _selected(model: PlacedModel, token: int) -> NDArray[np.bool_]:
    """(L, E) the experts of one decode step."""
    before = model.bindings.route_counts(model.handle).decode
    model.decode([token])
    return model.bindings.route_counts(model.handle).decode > before


if __name__ == "__main__":
    main(*sys.argv[1:])
