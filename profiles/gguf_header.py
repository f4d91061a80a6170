"""Reads and checks what precedes the tensor data in a GGUF file (versions 2 and 3, little-endian).

Accepts what the pinned engine accepts and refuses the rest by name, before anything is allocated for it: counts, types,
lengths, alignment, shapes, offsets and the file's size. Big arrays, such as a vocabulary, are skipped. A model split
over several files is read with `read_model`.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from .errors import HeaderError
from .ggml_types import GGML_TYPES
from .gguf_cursor import Cursor

Scalar = int | float | bool | str

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_MAX_TENSOR_NAME_BYTES = 63
_MAX_KEY_BYTES = 65535
_MAX_TEXT_BYTES = 16 << 20
"""Of one value that is kept; the longest honest one is a chat template of some ten thousand characters."""
_MAX_FIELDS = 1 << 16
_MAX_TENSORS = 1 << 20
_MAX_KEPT_ELEMENTS = 4096
"""Longer arrays are described, not read; per-layer settings are shorter."""
_INT64_MAX = (1 << 63) - 1

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
_NUMBERS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: _U32,
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: _U64,
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_SMALLEST_FIELD_BYTES = 8 + 1 + 4 + 1
_SMALLEST_TENSOR_BYTES = 8 + 4 + 4 + 8


@dataclass(frozen=True, slots=True)
class ArrayField:
    """An array that was skipped: `count` elements of GGUF value type `value_type` from byte `offset` on."""

    value_type: int
    count: int
    offset: int


Value = Scalar | tuple[Scalar, ...] | ArrayField


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `offset` counts bytes from the start of its file; `shape` has the row length first."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    n_elements: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """One file's header. `header_bytes` is where tensor data starts."""

    path: Path
    version: int
    file_bytes: int
    header_bytes: int
    alignment: int
    fields: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]

    @property
    def split_no(self) -> int:
        """Position of this file in its set, from 0."""
        return self.integer("split.no")

    @property
    def split_count(self) -> int:
        """Files in the set; 0 for a model that was not split."""
        return self.integer("split.count")

    @property
    def split_tensors_count(self) -> int:
        """Tensors in the whole set; 0 where it is not recorded."""
        return self.integer("split.tensors.count")

    def integer(self, key: str, *, largest: int = _INT64_MAX) -> int:
        """A count under `key`; 0 without one, the maximum of a per-layer array. Raises HeaderError for other values."""
        value = self.fields.get(key, 0)
        numbers = value if isinstance(value, tuple) else (value,)
        for number in numbers:
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= largest:
                raise HeaderError(self.path, key, expected=f"a whole number from 0 to {largest}", found=repr(number))
        return max((n for n in numbers if isinstance(n, int)), default=0)

    def text(self, key: str) -> str:
        """The string under `key`, empty without one. Raises HeaderError for a value that is not a string."""
        value = self.fields.get(key, "")
        if not isinstance(value, str):
            raise HeaderError(self.path, key, expected="text", found=type(value).__name__)
        return value


def read_header(path: Path) -> GgufHeader:
    """The header of one file.

    Raises HeaderError for a file that the engine would refuse, and OSError for one that cannot be read.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise HeaderError(path, "file", expected="a regular file", found="a directory or device")
    with path.open("rb", buffering=0) as file:
        cursor = Cursor(file, path, os.fstat(file.fileno()).st_size)
        version = _read_version(cursor)
        n_tensors = _read_count(cursor, "tensor count", _MAX_TENSORS, _SMALLEST_TENSOR_BYTES)
        n_fields = _read_count(cursor, "metadata count", _MAX_FIELDS, _SMALLEST_FIELD_BYTES)
        fields = _read_fields(cursor, n_fields)
        alignment = _alignment(path, fields)
        infos = _read_tensors(cursor, n_tensors)
        start = _padded(cursor.position, alignment) if infos else cursor.position
    tensors = _placed(path, infos, start, alignment, cursor.file_bytes)
    return GgufHeader(path, version, cursor.file_bytes, start, alignment, MappingProxyType(fields), tensors)


def _read_version(cursor: Cursor) -> int:
    magic = cursor.take(4, "magic")
    if magic != _MAGIC:
        raise HeaderError(cursor.path, "magic", expected=repr(_MAGIC), found=repr(magic))
    version = int(cursor.unpack(_U32, "version"))
    if version & 0xFFFF == 0:
        raise HeaderError(cursor.path, "version", expected="a little-endian file", found="a big-endian one")
    if version not in _VERSIONS:
        raise HeaderError(cursor.path, "version", expected="2 or 3", found=str(version))
    return version


def _read_count(cursor: Cursor, field: str, largest: int, bytes_each: int) -> int:
    count = int(cursor.unpack(_U64, field))
    possible = min(largest, cursor.remaining // bytes_each)
    if count > possible:
        raise HeaderError(cursor.path, field, expected=f"at most {possible} in this file", found=str(count))
    return count


def _read_text(cursor: Cursor, field: str, largest_bytes: int) -> bytes:
    length = int(cursor.unpack(_U64, field))
    if length > largest_bytes:
        raise HeaderError(cursor.path, field, expected=f"at most {largest_bytes} bytes", found=f"{length} bytes")
    return cursor.take(length, field)


def _read_name(cursor: Cursor, field: str, largest_bytes: int) -> str:
    raw = _read_text(cursor, field, largest_bytes)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise HeaderError(cursor.path, field, expected="UTF-8", found=repr(raw[:64])) from error


def _read_fields(cursor: Cursor, count: int) -> dict[str, Value]:
    fields: dict[str, Value] = {}
    for index in range(count):
        key = _read_name(cursor, f"metadata key {index}", _MAX_KEY_BYTES)
        if not key or key in fields:
            raise HeaderError(cursor.path, f"metadata key {index}", expected="a new name", found=repr(key))
        value_type = int(cursor.unpack(_U32, key))
        fields[key] = _read_array(cursor, key) if value_type == _ARRAY else _read_scalar(cursor, key, value_type)
    return fields


def _read_scalar(cursor: Cursor, key: str, value_type: int) -> Scalar:
    if value_type == _STRING:
        return _read_text(cursor, key, _MAX_TEXT_BYTES).decode(errors="replace")
    if value_type not in _NUMBERS:
        raise HeaderError(cursor.path, key, expected="a value type from 0 to 12", found=str(value_type))
    return cursor.unpack(_NUMBERS[value_type], key)


def _read_array(cursor: Cursor, key: str) -> tuple[Scalar, ...] | ArrayField:
    value_type = int(cursor.unpack(_U32, key))
    count = int(cursor.unpack(_U64, key))
    offset = cursor.position
    if value_type == _STRING:
        cursor.skip_strings(count, key)
        return ArrayField(value_type, count, offset)
    if value_type not in _NUMBERS:
        found = "an array of arrays" if value_type == _ARRAY else f"elements of type {value_type}"
        raise HeaderError(cursor.path, key, expected="an array of numbers or text", found=found)
    layout = _NUMBERS[value_type]
    if count > _MAX_KEPT_ELEMENTS:
        cursor.skip(count * layout.size, key)
        return ArrayField(value_type, count, offset)
    return tuple(cursor.unpack(layout, key) for _ in range(count))


def _alignment(path: Path, fields: Mapping[str, Value]) -> int:
    alignment = fields.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or isinstance(alignment, bool) or alignment <= 0 or alignment & (alignment - 1):
        raise HeaderError(path, "general.alignment", expected="a power of two", found=repr(alignment))
    return alignment


def _read_tensors(cursor: Cursor, count: int) -> list[TensorInfo]:
    """Tensors as described, with offsets still relative to the tensor data."""
    names: set[str] = set()
    tensors = []
    for index in range(count):
        name = _read_name(cursor, f"name of tensor {index}", _MAX_TENSOR_NAME_BYTES)
        if name in names:
            raise HeaderError(cursor.path, f"name of tensor {index}", expected="a new name", found=repr(name))
        names.add(name)
        tensors.append(_read_tensor(cursor, name))
    return tensors


def _read_tensor(cursor: Cursor, name: str) -> TensorInfo:
    field = f"tensor {name!r}"
    n_dimensions = int(cursor.unpack(_U32, field))
    if n_dimensions > _MAX_DIMENSIONS:
        found = f"{n_dimensions} dimensions"
        raise HeaderError(cursor.path, field, expected=f"at most {_MAX_DIMENSIONS} dimensions", found=found)
    shape = tuple(int(cursor.unpack(_U64, field)) for _ in range(n_dimensions))
    n_elements = 1
    for length in shape:
        n_elements *= length
        if max(length, n_elements) > _INT64_MAX:
            raise HeaderError(cursor.path, field, expected="fewer than 2^63 elements", found=f"shape {shape}")
    number = int(cursor.unpack(_U32, field))
    encoding = GGML_TYPES.get(number)
    if encoding is None:
        raise HeaderError(cursor.path, field, expected="a tensor type of this engine", found=f"type {number}")
    row = shape[0] if shape else 1
    if row % encoding.block_elements:
        expected = f"rows in blocks of {encoding.block_elements} for {encoding.name}"
        raise HeaderError(cursor.path, field, expected=expected, found=f"rows of {row}")
    nbytes = n_elements // encoding.block_elements * encoding.block_bytes
    offset = int(cursor.unpack(_U64, field))
    return TensorInfo(name, encoding.name, shape, offset, nbytes, n_elements)


def _placed(path: Path, infos: list[TensorInfo], start: int, alignment: int, file_bytes: int) -> tuple[TensorInfo, ...]:
    """Tensors with offsets in the file. The engine reads them back to back, so any other offset is refused."""
    tensors = []
    expected = 0
    for info in infos:
        field = f"tensor {info.name!r}"
        if info.offset != expected:
            raise HeaderError(path, field, expected=f"offset {expected}", found=f"offset {info.offset}")
        end = start + info.offset + info.nbytes
        if end > file_bytes:
            raise HeaderError(path, field, expected=f"{end} bytes in the file", found=f"{file_bytes} bytes")
        expected = _padded(info.offset + info.nbytes, alignment)
        offset = start + info.offset
        tensors.append(TensorInfo(info.name, info.type_name, info.shape, offset, info.nbytes, info.n_elements))
    return tuple(tensors)


def _padded(n_bytes: int, alignment: int) -> int:
    return -(-n_bytes // alignment) * alignment
