"""Tiny random models that travel as recipes: a GGUF's metadata and its tensors' names, and noise that the names seed.

A pack is a tar archive (xz) of `manifest.json`, a list of recipes, and one file of metadata per recipe. Models of every
architecture fit into some hundred KiB that way, and get the same bytes wherever they are made.
"""

from __future__ import annotations

import ctypes
import io
import json
import struct
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ostinatod.profiles.ggml_types import GGML_TYPES
from ostinatod.profiles.gguf_header import read_header

ALIGNMENT = 32
DEVIATION = 0.1
"""Of all weights, as in llama.cpp's own test of all architectures."""

KINDS = {
    "quantised": ("Q4_K", "Q8_0", "Q6_K", "MXFP4", "Q5_K", "IQ4_NL"),
    "mixed": ("F16", "Q4_K", "F32", "Q8_0", "BF16"),
}
"""Types of expert weights, which they take by turns. The first kind is left out by the GPU's products, the other one
has zero slots too."""

_NUMBER_OF = {kind.name: number for number, kind in GGML_TYPES.items()}
_SIZES = {kind.name: (kind.block_elements, kind.block_bytes) for kind in GGML_TYPES.values()}
_SCALES = ("_exps.scale", "_exps.input_scale")
_TENSOR_COUNT_AT = 8
"""In a GGUF file: behind its magic number and version."""
_BASE_EXPERTS = 2
"""Experts that are encoded; the others have the same rows in another order, since encoding is slow."""


@dataclass(frozen=True)
class TensorRecipe:
    """A tensor; `shape` has the row length first."""

    name: str
    type_name: str
    shape: tuple[int, ...]

    @property
    def is_expert_weight(self) -> bool:
        return self.name.endswith("_exps.weight") and len(self.shape) > 2 and self.shape[2] > 1

    @property
    def nbytes(self) -> int:
        elements, size = _SIZES[self.type_name]
        return int(np.prod(self.shape)) // elements * size


@dataclass(frozen=True)
class Recipe:
    """A model to make, and what of it is compared."""

    name: str
    architecture: str
    output: str
    """As in placement.py."""
    stock_layers: int
    """Layers that keep the stock nodes in spite of a residency set."""
    metadata: bytes
    """The beginning of its GGUF, up to the tensors."""
    tensors: tuple[TensorRecipe, ...]

    @property
    def n_elements(self) -> int:
        """Of all its tensors."""
        return sum(int(np.prod(tensor.shape)) for tensor in self.tensors)


def read_recipe(path: Path, name: str, architecture: str, output: str, stock_layers: int) -> Recipe:
    """The recipe of an existing GGUF."""
    header = read_header(path)
    with path.open("rb") as file:
        head = file.read(header.header_bytes)
    first = header.tensors[0].name.encode()
    metadata = head[: head.index(struct.pack("<Q", len(first)) + first)]
    tensors = tuple(TensorRecipe(t.name, t.type_name, t.shape) for t in header.tensors)
    return Recipe(name, architecture, output, stock_layers, metadata, tensors)


def write_pack(recipes: Sequence[Recipe], out: Path) -> None:
    """One archive of all recipes."""
    entries = [{k: v for k, v in asdict(recipe).items() if k != "metadata"} for recipe in recipes]
    with tarfile.open(out, "w:xz") as tar:
        files = [("manifest.json", json.dumps(entries).encode())]
        files += [(f"{index}.metadata", recipe.metadata) for index, recipe in enumerate(recipes)]
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def read_pack(path: Path) -> list[Recipe]:
    """What `write_pack` wrote."""
    with tarfile.open(path) as tar:
        data = {member.name: file.read() for member in tar if (file := tar.extractfile(member))}
    recipes = []
    for index, entry in enumerate(json.loads(data["manifest.json"])):
        tensors = tuple(TensorRecipe(t["name"], t["type_name"], tuple(t["shape"])) for t in entry.pop("tensors"))
        recipes.append(Recipe(**entry, metadata=data[f"{index}.metadata"], tensors=tensors))
    return recipes


class Encoder:
    """Encodes rows of f32 in ggml's types, by the engine's own library."""

    def __init__(self, libraries: Path) -> None:
        base = ctypes.CDLL(str(next(libraries.glob("libggml-base.so*"))))
        self._quantise = base.ggml_quantize_chunk
        self._quantise.restype = ctypes.c_size_t
        sizes = [ctypes.c_int64] * 3
        self._quantise.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *sizes, ctypes.c_void_p]

    def __call__(self, type_name: str, values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """(rows, bytes) of `values` (rows, columns)."""
        if type_name == "F32":
            return values.view(np.uint8)
        elements, size = _SIZES[type_name]
        rows, columns = values.shape
        out = np.zeros((rows, columns // elements * size), np.uint8)
        self._quantise(_NUMBER_OF[type_name], values.ctypes.data, out.ctypes.data, 0, rows, columns, None)
        return out


def make_model(
    recipe: Recipe,
    kind: str,
    encoder: Encoder,
    out: Path,
    *,
    without_odd_experts: bool = False,
    without_scales: bool = False,
) -> int:
    """Writes the model with the expert weights of KINDS[kind], and returns their bytes.

    Without every second expert, whose down projection is zero then: what a branch that is left out would look like.
    Without the experts' scales, which files of few weight types have and which bar the upload path.
    """
    kept = [t for t in recipe.tensors if not (without_scales and t.name.endswith(_SCALES))]
    tensors = tuple(_with_types(kept, KINDS[kind]))
    head = bytearray(recipe.metadata)
    struct.pack_into("<Q", head, _TENSOR_COUNT_AT, len(tensors))
    offset = 0
    for tensor in tensors:
        name = tensor.name.encode()
        head += struct.pack("<Q", len(name)) + name
        head += struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        head += struct.pack("<IQ", _NUMBER_OF[tensor.type_name], offset)
        offset += _padded(tensor.nbytes)
    with out.open("wb") as file:
        file.write(head + bytes(_padded(len(head)) - len(head)))
        for tensor in tensors:
            data = _data(tensor, encoder)
            if without_odd_experts and tensor.is_expert_weight and tensor.name.endswith("ffn_down_exps.weight"):
                data.reshape(tensor.shape[2], -1)[1::2] = 0
            file.write(data.tobytes() + bytes(_padded(tensor.nbytes) - tensor.nbytes))
    return sum(tensor.nbytes for tensor in tensors if tensor.is_expert_weight)


def _with_types(tensors: Sequence[TensorRecipe], types: Sequence[str]) -> Iterator[TensorRecipe]:
    n_weights = 0
    for tensor in tensors:
        if not tensor.is_expert_weight:
            yield tensor
            continue
        wanted = (types[n_weights % len(types)], "Q8_0", "F32")
        fitting = next(name for name in wanted if tensor.shape[0] % _SIZES[name][0] == 0)
        yield TensorRecipe(tensor.name, fitting, tensor.shape)
        n_weights += 1


def _data(tensor: TensorRecipe, encoder: Encoder) -> NDArray[np.uint8]:
    rng = np.random.default_rng(zlib.crc32(tensor.name.encode()))
    columns = tensor.shape[0]
    n_rows = int(np.prod(tensor.shape[1:]))
    if tensor.type_name == "I32":  # maps tokens to experts, distinct ones
        token, position = np.divmod(np.arange(n_rows * columns), columns)
        ids: NDArray[np.int32] = ((5 * token + 3 * position) % 8).astype(np.int32)
        return ids.view(np.uint8)
    n_drawn = _BASE_EXPERTS * tensor.shape[1] if tensor.is_expert_weight else n_rows
    values = DEVIATION * rng.standard_normal((n_drawn, columns), np.float32)
    if "ssm_a" in tensor.name:  # a decay
        values = -np.abs(values)
    if tensor.name.endswith("_exps.scale"):  # near zero they would silence the experts
        values += 1
    rows = encoder(tensor.type_name, values)
    if not tensor.is_expert_weight:
        return rows
    base = rows.reshape(_BASE_EXPERTS, tensor.shape[1], -1)
    experts = range(tensor.shape[2])
    return np.stack([np.roll(base[e % _BASE_EXPERTS], 37 * (e // _BASE_EXPERTS), axis=0) for e in experts])


def _padded(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT
