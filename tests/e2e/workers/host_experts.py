"""host_experts.py LIBRARIES MODEL OUT.npz: loads a model whose experts are kept in host memory, and counts its routes.

Writes `n_layers`, what the model has of MoE layers, and `overridden`, whether the parameters carried the override.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from ostinatod.bindings import load_bindings


def main(libraries: str, model: str, out: str) -> None:
    """Loads it once."""
    bindings = load_bindings(Path(libraries))
    core: Any = bindings.llama_cpp.llama_cpp
    core.llama_backend_init()
    bindings.count_routes(True)
    params = core.llama_model_default_params()
    kept = bindings.keep_in_host_memory(params)
    handle = core.llama_model_load_from_file(model.encode(), params)
    n_layers = len(bindings.route_counts(handle).layers)
    np.savez(out, n_layers=n_layers, overridden=bool(params.tensor_buft_overrides) and kept is not None)


if __name__ == "__main__":
    main(*sys.argv[1:])
