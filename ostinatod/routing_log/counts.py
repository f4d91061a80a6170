"""Route counts of some stretch of work, and their compact form in the database. Pure.

Encoded, an array (L, E) is a zlib stream of: a version byte, L and E (u16, u32), the layers (u16 each), a bitmap of
the experts with any route, and the counts of those as byte planes, lowest bytes first. Most counts fit one byte, so the
other planes are almost all zeros. Little-endian throughout.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]

_VERSION = 1
_HEAD = struct.Struct("<BHI")
_ZLIB_LEVEL = 3
"""Counts of a large model: 0.6 ms instead of 1.0 ms at level 6, for 2 % more bytes (2 GHz Zen 1)."""
MAX_CELLS = 1 << 24
"""Far above any model; bounds what a damaged blob can allocate."""


@dataclass(frozen=True, slots=True)
class RouteCounts:
    """Routes by phase. The arrays are (L, E); `layers` are the engine's indices of the L MoE layers."""

    layers: tuple[int, ...]
    prefill: Counts
    decode: Counts

    @property
    def routes(self) -> int:
        """Of both phases."""
        return int(self.prefill.sum()) + int(self.decode.sum())

    def fits(self, other: RouteCounts) -> bool:
        """Whether both count the same layers and as many experts."""
        return self.layers == other.layers and self.prefill.shape == other.prefill.shape

    def plus(self, other: RouteCounts) -> RouteCounts:
        """The sum, cell by cell; both must fit."""
        return RouteCounts(self.layers, self.prefill + other.prefill, self.decode + other.decode)

    def minus(self, other: RouteCounts) -> RouteCounts:
        """The difference, cell by cell; both must fit."""
        return RouteCounts(self.layers, self.prefill - other.prefill, self.decode - other.decode)

    def halved(self) -> RouteCounts:
        """Half of each, rounded down."""
        return RouteCounts(self.layers, self.prefill >> 1, self.decode >> 1)


def read_engine_counts(body: bytes) -> RouteCounts | None:
    """The answer of the engine's /ostinato/routes; None for anything else."""
    try:
        told = json.loads(body)
        layers = tuple(int(layer) for layer in told["layers"])
        shape = (len(layers), int(told["n_experts"]))
        prefill, decode = _rows(told["prefill"], shape), _rows(told["decode"], shape)
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    return RouteCounts(layers, prefill, decode)


def encode_counts(layers: tuple[int, ...], counts: Counts) -> bytes:
    """The compact form. Raises ValueError for a negative count or a shape that does not fit the layers."""
    if counts.ndim != 2 or counts.shape[0] != len(layers):
        raise ValueError(f"expected counts of {len(layers)} layers, found the shape {counts.shape}")
    if counts.size and int(np.min(counts)) < 0:
        raise ValueError(f"expected counts of 0 or more, found {int(np.min(counts))}")
    flat = counts.ravel()
    present = flat != 0
    values = flat[present].astype("<u8")
    highest = int(values.max()) if values.size else 0
    n_planes = (highest.bit_length() + 7) // 8
    planes = values.view(np.uint8).reshape(-1, 8)[:, :n_planes].T
    raw = b"".join(
        (
            _HEAD.pack(_VERSION, counts.shape[0], counts.shape[1]),
            np.asarray(layers, "<u2").tobytes(),
            np.packbits(present).tobytes(),
            np.ascontiguousarray(planes).tobytes(),
        )
    )
    return zlib.compress(raw, _ZLIB_LEVEL)


def decode_counts(blob: bytes) -> tuple[tuple[int, ...], Counts]:
    """Layers and counts of a compact form. Raises ValueError where it is damaged."""
    unpacking = zlib.decompressobj()
    try:
        raw = unpacking.decompress(blob, MAX_CELLS * 9)
    except zlib.error as error:
        raise ValueError(f"route counts are damaged: {error}") from error
    if len(raw) < _HEAD.size:
        raise ValueError(f"route counts are damaged: expected at least {_HEAD.size} bytes, found {len(raw)}")
    version, n_layers, n_experts = _HEAD.unpack_from(raw)
    cells = n_layers * n_experts
    if version != _VERSION or cells > MAX_CELLS:
        raise ValueError(f"route counts are damaged: version {version}, {n_layers} layers by {n_experts} experts")
    at = _HEAD.size
    bitmap_at = at + 2 * n_layers
    values_at = bitmap_at + (cells + 7) // 8
    if len(raw) < values_at:
        raise ValueError(f"route counts are damaged: expected at least {values_at} bytes, found {len(raw)}")
    layers = tuple(np.frombuffer(raw, "<u2", n_layers, at).tolist())
    present = np.unpackbits(np.frombuffer(raw, np.uint8, values_at - bitmap_at, bitmap_at), count=cells).astype(bool)
    n_values = int(present.sum())
    n_planes, left_over = divmod(len(raw) - values_at, n_values) if n_values else (0, len(raw) - values_at)
    if left_over or n_planes > 8:
        raise ValueError(f"route counts are damaged: {len(raw) - values_at} bytes for {n_values} counts")
    wide = np.zeros((n_values, 8), np.uint8)
    wide[:, :n_planes] = np.frombuffer(raw, np.uint8, n_planes * n_values, values_at).reshape(n_planes, n_values).T
    counts = np.zeros(cells, np.int64)
    counts[present] = wide.reshape(-1).view("<u8").astype(np.int64)
    return layers, counts.reshape(n_layers, n_experts)


def encode_phases(counts: RouteCounts) -> tuple[bytes, bytes]:
    """The compact forms of prefill and decode."""
    return encode_counts(counts.layers, counts.prefill), encode_counts(counts.layers, counts.decode)


def decode_phases(prefill: bytes | None, decode: bytes | None) -> RouteCounts | None:
    """The counts of two compact forms; None where none were stored. Raises ValueError where they are damaged."""
    if prefill is None or decode is None:
        return None
    layers, prefill_counts = decode_counts(prefill)
    same_layers, decode_counts_ = decode_counts(decode)
    if layers != same_layers or prefill_counts.shape != decode_counts_.shape:
        raise ValueError("route counts are damaged: the phases have different shapes")
    return RouteCounts(layers, prefill_counts, decode_counts_)


def _rows(rows: Any, shape: tuple[int, int]) -> Counts:
    counts = np.array(rows, dtype=np.int64).reshape(shape) if shape[0] else np.zeros(shape, np.int64)
    if counts.size and int(np.min(counts)) < 0:
        raise ValueError("expected counts of 0 or more")
    return counts
