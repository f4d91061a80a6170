"""Tiny random models of other architectures that can be talked to: a recipe with the bundled model's vocabulary."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

from ostinatod.profiles.gguf_header import read_header
from tests.e2e.conftest import MODEL
from tests.e2e.programs import ROOT
from tests.e2e.workers.tiny_recipes import Encoder, Recipe, make_model, read_pack

PACK = ROOT / "tests" / "data" / "architectures.tar.xz"
CONTEXT_TOKENS = 8192

_VOCABULARY = "tokenizer.ggml.model"
_N_FIELDS_AT = len(b"GGUF") + 4 + 8
"""Behind the version and the number of tensors."""


def make_chat_model(architecture: str, libraries: Path, out: Path) -> Path:
    """Writes a model of the architecture to `out`."""
    recipe = next(recipe for recipe in read_pack(PACK) if recipe.name == architecture)
    make_model(_with_vocabulary(recipe), "quantised", Encoder(libraries), out)
    return out


def _with_vocabulary(recipe: Recipe) -> Recipe:
    """The recipe with the vocabulary and template of the bundled model, whose last fields they are."""
    bundled = read_header(MODEL)
    n_tokens = bundled.integer("qwen3moe.vocab_size")
    head = MODEL.read_bytes()[: bundled.header_bytes]
    vocabulary = head[_place_of(head, _VOCABULARY) : _place_of(head, bundled.tensors[0].name)]
    keys = list(bundled.fields)
    n_added = len(keys) - keys.index(_VOCABULARY)

    data = recipe.metadata
    for key, value in (("vocab_size", n_tokens), ("context_length", CONTEXT_TOKENS)):
        data = _with_integer(data, f"{recipe.architecture}.{key}", value)
    begin, end = _own_vocabulary(data)
    (n_fields,) = struct.unpack_from("<Q", data, _N_FIELDS_AT)
    count = struct.pack("<Q", n_fields - 3 + n_added)
    data = data[:_N_FIELDS_AT] + count + data[_N_FIELDS_AT + 8 : begin] + data[end:] + vocabulary
    wide = ("token_embd.weight", "output.weight")
    tensors = (replace(t, shape=(t.shape[0], n_tokens)) if t.name in wide else t for t in recipe.tensors)
    return replace(recipe, metadata=data, tensors=tuple(tensors))


def _place_of(data: bytes, name: str) -> int:
    """Where an entry of that name begins."""
    return data.index(struct.pack("<Q", len(name)) + name.encode())


def _with_integer(data: bytes, key: str, value: int) -> bytes:
    at = _place_of(data, key) + 8 + len(key) + 4
    return data[:at] + struct.pack("<I", value) + data[at + 4 :]


def _own_vocabulary(data: bytes) -> tuple[int, int]:
    """Where the three fields of a recipe's own vocabulary begin and end; the last is an array of 32-bit floats."""
    last = "tokenizer.ggml.scores"
    at = _place_of(data, last) + 8 + len(last) + 4
    _, count = struct.unpack_from("<IQ", data, at)
    return _place_of(data, _VOCABULARY), at + 12 + 4 * count
