"""The residency set of one model, and the file that carries it to the engine (paper 3.1 step 3).

The format and its reasons are in docs/residency-file.md. The engine's reader is residency.cpp in kernels_patch/overlay;
both refuse the same files with the same words.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import tempfile
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ResidencyError, ResidencyMismatch

MAGIC = b"OSTRESID"
VERSION = 1
MAX_FILE_BYTES = 16 << 20
MAX_PROVENANCE_BYTES = 1 << 20
MAX_LAYERS = 1 << 12
MAX_EXPERTS = 1 << 16

_HEADER = struct.Struct("<8sIIQ32sQQIIII")
_LAYER = struct.Struct("<II")
_CHECKSUM = struct.Struct("<I")
_INT64_MAX = (1 << 63) - 1
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """What a residency set depends on in its model. Raises ResidencyError where it could not be a model's."""

    fingerprint: str
    """`gguf_model.fingerprint` of the model."""
    layers: tuple[int, ...]
    """The engine's index of each MoE layer, ascending; those of its route counts."""
    n_experts: int
    """Per layer, the largest where layers differ."""

    def __post_init__(self) -> None:
        if not _FINGERPRINT.fullmatch(self.fingerprint):
            raise ResidencyError("fingerprint", expected="64 lowercase hex digits", found=repr(self.fingerprint))
        _check_number("layers", 1, MAX_LAYERS, len(self.layers))
        _check_number("experts", 1, MAX_EXPERTS, self.n_experts)
        for index, il in enumerate(self.layers):
            if not 0 <= il < MAX_LAYERS:
                raise ResidencyError(f"layer entry {index}", expected=f"a layer below {MAX_LAYERS}", found=str(il))
        for index, (last, il) in enumerate(pairwise(self.layers), 1):
            if il <= last:
                raise ResidencyError(f"layer entry {index}", expected=f"a layer above {last}", found=str(il))


@dataclass(frozen=True, slots=True)
class Residency:
    """Which experts of a model are hot. Raises ResidencyError where a value is out of range or experts are unsorted."""

    layout: ExpertLayout
    generation: int
    """Counts the sets of a model from 1."""
    created_at_s: int
    """Unix time."""
    provenance: Mapping[str, Any]
    """What JSON can hold, for people and for later planning: the sessions, the method, the expected coverage."""
    hot: tuple[tuple[int, ...], ...]
    """Per layer of the layout, ascending experts."""

    def __post_init__(self) -> None:
        _check_number("generation", 1, _INT64_MAX, self.generation)
        _check_number("created_at", 0, _INT64_MAX, self.created_at_s)
        if len(self.hot) != len(self.layout.layers):
            raise ResidencyError("layers", expected=str(len(self.layout.layers)), found=str(len(self.hot)))
        for il, experts in zip(self.layout.layers, self.hot, strict=True):
            _check_experts(il, experts, self.layout.n_experts)

    @property
    def n_hot(self) -> int:
        """Hot experts of all layers."""
        return sum(map(len, self.hot))

    def mask(self) -> NDArray[np.bool_]:
        """(L, E) True where the expert is hot."""
        mask = np.zeros((len(self.hot), self.layout.n_experts), np.bool_)
        for row, experts in zip(mask, self.hot, strict=True):
            row[list(experts)] = True
        return mask

    def require_layout(self, layout: ExpertLayout) -> None:
        """Raises ResidencyMismatch unless the set was made for the model that has `layout`."""
        own = self.layout
        if own.fingerprint != layout.fingerprint:
            raise ResidencyMismatch("fingerprint", expected=layout.fingerprint, found=own.fingerprint)
        if len(own.layers) != len(layout.layers):
            raise ResidencyMismatch("layers", expected=str(len(layout.layers)), found=str(len(own.layers)))
        if own.n_experts != layout.n_experts:
            raise ResidencyMismatch("experts", expected=str(layout.n_experts), found=str(own.n_experts))
        for index, (expected, found) in enumerate(zip(layout.layers, own.layers, strict=True)):
            if expected != found:
                raise ResidencyMismatch(f"layer entry {index}", expected=f"layer {expected}", found=f"layer {found}")


def hot_lists(mask: NDArray[np.bool_]) -> tuple[tuple[int, ...], ...]:
    """The hot experts of each layer, given a mask (L, E)."""
    return tuple(tuple(np.flatnonzero(row).tolist()) for row in mask)


def encode_residency(residency: Residency) -> bytes:
    """The set as the bytes of a file. Raises ResidencyError where its provenance is not JSON, or it is too big."""
    provenance = _encode_provenance(residency.provenance)
    body = [provenance]
    for il, experts in zip(residency.layout.layers, residency.hot, strict=True):
        body += [_LAYER.pack(il, len(experts)), _pack_experts(experts)]
    file_bytes = _HEADER.size + sum(map(len, body)) + _CHECKSUM.size
    if file_bytes > MAX_FILE_BYTES:
        raise ResidencyError("file", expected=f"at most {MAX_FILE_BYTES} bytes", found=str(file_bytes))
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        _HEADER.size,
        file_bytes,
        bytes.fromhex(residency.layout.fingerprint),
        residency.generation,
        residency.created_at_s,
        len(residency.layout.layers),
        residency.layout.n_experts,
        len(provenance),
        residency.n_hot,
    )
    content = b"".join([header, *body])
    return content + _CHECKSUM.pack(zlib.crc32(content))


def decode_residency(data: bytes) -> Residency:
    """The set in the bytes of a file. Raises ResidencyError with what was expected and what was found."""
    _check_frame(data)
    header = _HEADER.unpack_from(data)
    fingerprint, generation, created_at_s, n_layers, n_experts, provenance_bytes, n_hot = header[4:]
    _check_number("layers", 1, MAX_LAYERS, n_layers)
    _check_number("experts", 1, MAX_EXPERTS, n_experts)

    at, end = _HEADER.size, len(data) - _CHECKSUM.size
    most = min(end - at, MAX_PROVENANCE_BYTES)
    if provenance_bytes > most:
        raise ResidencyError("provenance", expected=f"at most {most} bytes", found=str(provenance_bytes))
    provenance = data[at : at + provenance_bytes]
    layers, hot = _unpack_layers(data, at + provenance_bytes, end, n_layers)
    if n_hot != sum(map(len, hot)):
        raise ResidencyError("hot experts", expected=str(sum(map(len, hot))), found=str(n_hot))
    return Residency(
        layout=ExpertLayout(fingerprint.hex(), layers, n_experts),
        generation=generation,
        created_at_s=created_at_s,
        provenance=_decode_provenance(provenance),
        hot=hot,
    )


def write_residency(path: Path, residency: Residency) -> None:
    """Write the file whole or not at all: whoever reads `path` meanwhile sees the file before.

    Raises ResidencyError where it could not be read back, OSError where it cannot be written.
    """
    data = encode_residency(residency)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink()
        raise


def read_residency(path: Path, layout: ExpertLayout | None = None) -> Residency:
    """The set in a file, made for the model that has `layout` where that is given.

    Raises ResidencyError for a file that is not whole and valid, ResidencyMismatch for another model's, OSError for one
    that cannot be read.
    """
    try:
        with path.open("rb") as file:
            residency = decode_residency(file.read(MAX_FILE_BYTES + 1))
        if layout is not None:
            residency.require_layout(layout)
    except ResidencyError as error:
        raise error.at(path) from error
    return residency


def _check_frame(data: bytes) -> None:
    """What frames the content: kind, version, size and checksum."""
    smallest = _HEADER.size + _CHECKSUM.size
    if len(data) >= len(MAGIC) and data[: len(MAGIC)] != MAGIC:
        raise ResidencyError("magic", expected=MAGIC.hex(), found=data[: len(MAGIC)].hex())
    if len(data) < smallest:
        raise ResidencyError("file", expected=f"at least {smallest} bytes", found=str(len(data)))
    if len(data) > MAX_FILE_BYTES:
        raise ResidencyError("file", expected=f"at most {MAX_FILE_BYTES} bytes", found=str(len(data)))
    _, version, header_bytes, file_bytes, *_ = _HEADER.unpack_from(data)
    if version != VERSION:
        raise ResidencyError("version", expected=str(VERSION), found=str(version))
    if header_bytes != _HEADER.size:
        raise ResidencyError("header", expected=f"{_HEADER.size} bytes", found=str(header_bytes))
    if file_bytes != len(data):
        raise ResidencyError("file", expected=f"{file_bytes} bytes", found=str(len(data)))
    computed = zlib.crc32(memoryview(data)[: -_CHECKSUM.size])
    (stored,) = _CHECKSUM.unpack_from(data, len(data) - _CHECKSUM.size)
    if computed != stored:
        raise ResidencyError("checksum", expected=f"{computed:08x}", found=f"{stored:08x}")


def _unpack_layers(
    data: bytes, at: int, end: int, n_layers: int
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    layers = []
    hot = []
    for index in range(n_layers):
        if end - at < _LAYER.size:
            raise ResidencyError(f"layer entry {index}", expected=f"{_LAYER.size} bytes", found=str(end - at))
        il, n_hot = _LAYER.unpack_from(data, at)
        at += _LAYER.size
        if il >= MAX_LAYERS:
            raise ResidencyError(f"layer entry {index}", expected=f"a layer below {MAX_LAYERS}", found=str(il))
        most = (end - at) // 2
        if n_hot > most:
            raise ResidencyError(f"layer entry {index}", expected=f"at most {most} hot experts", found=str(n_hot))
        layers.append(il)
        hot.append(struct.unpack_from(f"<{n_hot}H", data, at))
        at += 2 * n_hot
    if at != end:
        raise ResidencyError("layers", expected="nothing after the last", found=f"{end - at} bytes")
    return tuple(layers), tuple(hot)


def _pack_experts(experts: tuple[int, ...]) -> bytes:
    packed = array("H", experts)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _check_number(field: str, lowest: int, highest: int, found: int) -> None:
    if not lowest <= found <= highest:
        raise ResidencyError(field, expected=f"a number from {lowest} to {highest}", found=str(found))


def _check_experts(il: int, experts: tuple[int, ...], n_experts: int) -> None:
    last = -1
    for expert in experts:
        if expert >= n_experts:
            raise ResidencyError(f"layer {il}", expected=f"experts below {n_experts}", found=str(expert))
        if expert <= last:
            raise ResidencyError(f"layer {il}", expected=f"an expert above {last}", found=str(expert))
        last = expert


def _encode_provenance(provenance: Mapping[str, Any]) -> bytes:
    try:
        raw = json.dumps(dict(provenance), allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ResidencyError("provenance", expected="what JSON can hold", found=str(error)) from error
    if len(raw) > MAX_PROVENANCE_BYTES:
        raise ResidencyError("provenance", expected=f"at most {MAX_PROVENANCE_BYTES} bytes", found=str(len(raw)))
    return raw


def _decode_provenance(raw: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(raw.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ResidencyError("provenance", expected="a JSON object", found=str(error)) from error
    if not isinstance(value, dict):
        raise ResidencyError("provenance", expected="a JSON object", found=type(value).__name__)
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
