"""Per-expert counts of an importance matrix: what is known of a model's routing before its first session.

`llama-imatrix` counts the activations of every expert and stores them as tensors `NAME.counts` of a GGUF. Its older
`.dat` format keeps one count per tensor, not per expert, and therefore tells nothing of routing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import HeaderError
from .gguf_header import GgufHeader, TensorInfo, read_header

_COUNTS = re.compile(r"blk\.(\d+)\.ffn_(?:up|gate|gate_up|down)_exps\.weight\.counts")


def imatrix_files(model_file: Path) -> tuple[Path, ...]:
    """Sidecars beside a model: `*imatrix*.gguf`, those that share the start of its name first, then by name."""
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", model_file.stem)
    found = [path for path in model_file.parent.glob("*imatrix*.gguf") if path != model_file and path.is_file()]
    return tuple(sorted(found, key=lambda path: (-_common(stem, path.stem), path.name)))


def expert_counts(header: GgufHeader, layers: Sequence[int], n_experts: int) -> NDArray[np.float64] | None:
    """(L, E) activations of each expert in the given layers; None where the file has none for some layer.

    Raises HeaderError for counts of another number of experts, or that are negative or not numbers; OSError.
    """
    by_layer = {int(match[1]): info for info in header.tensors if (match := _COUNTS.fullmatch(info.name))}
    if not all(layer in by_layer for layer in layers):
        return None
    rows = [_read_counts(header, by_layer[layer], n_experts) for layer in layers]
    return np.stack(rows) if rows else None


def read_expert_counts(path: Path, layers: Sequence[int], n_experts: int) -> NDArray[np.float64] | None:
    """The same of a file. Raises HeaderError for one that is not a GGUF, OSError."""
    return expert_counts(read_header(path), layers, n_experts)


def _read_counts(header: GgufHeader, info: TensorInfo, n_experts: int) -> NDArray[np.float64]:
    if info.type_name != "F32" or info.n_elements != n_experts:
        raise HeaderError(
            header.path, info.name, expected=f"{n_experts} numbers of type F32", found=f"{info.shape} {info.type_name}"
        )
    with header.path.open("rb") as file:
        file.seek(info.offset)
        data = file.read(info.nbytes)
    if len(data) != info.nbytes:
        raise HeaderError(header.path, info.name, expected=f"{info.nbytes} bytes", found=str(len(data)))
    counts = np.frombuffer(data, "<f4").astype(np.float64)
    if not (np.isfinite(counts).all() and (counts >= 0).all()):
        raise HeaderError(header.path, info.name, expected="counts of 0 or more", found="others")
    return counts


def _common(first: str, second: str) -> int:
    length = 0
    for a, b in zip(first.lower(), second.lower(), strict=False):
        if a != b:
            break
        length += 1
    return length
