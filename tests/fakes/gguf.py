"""Writes small GGUF files that are valid in every respect but meaning, without the gguf package."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_LAYOUTS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
_BLOCKS = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "Q8_0": (8, 32, 34),
    "Q4_K": (12, 256, 144),
    "TQ2_0": (35, 256, 66),
    "MXFP4": (39, 32, 17),
}


@dataclass(frozen=True)
class Typed:
    """A metadata value with an explicit GGUF type; a sequence becomes an array of it."""

    value_type: int
    value: Any


@dataclass(frozen=True)
class Tensor:
    """A tensor to write; `shape` has the row length first."""

    name: str
    shape: tuple[int, ...]
    type_name: str = "F32"

    @property
    def nbytes(self) -> int:
        _, elements, size = _BLOCKS[self.type_name]
        count = 1
        for length in self.shape:
            count *= length
        return count // elements * size


def text(value: str) -> bytes:
    """A length-prefixed string."""
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def field(key: str, value: Any) -> bytes:
    """A metadata entry. Plain integers become u32, floats f32, lists arrays of what their first element is."""
    typed = value if isinstance(value, Typed) else _typed(value)
    if isinstance(typed.value, (list, tuple)):
        body = struct.pack("<IIQ", ARRAY, typed.value_type, len(typed.value))
        return text(key) + body + b"".join(_scalar(typed.value_type, item) for item in typed.value)
    return text(key) + struct.pack("<I", typed.value_type) + _scalar(typed.value_type, typed.value)


def header(
    metadata: Mapping[str, Any],
    tensors: Sequence[Tensor] = (),
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """All that precedes tensor data, padding included."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(field(key, value) for key, value in metadata.items())
    offset = 0
    for tensor in tensors:
        shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        head += text(tensor.name) + shape + struct.pack("<IQ", _BLOCKS[tensor.type_name][0], offset)
        offset += _padded(tensor.nbytes, alignment)
    return head + bytes(_padded(len(head), alignment) - len(head)) if tensors else head


def write(path: Path, metadata: Mapping[str, Any], tensors: Sequence[Tensor] = (), *, seed: int = 0) -> Path:
    """A whole file; tensor data is noise that `seed` fixes."""
    noise = random.Random(seed)
    data = b"".join(noise.randbytes(_padded(tensor.nbytes, 32)) for tensor in tensors)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header(metadata, tensors) + data)
    return path


def model_metadata(**changes: Any) -> dict[str, Any]:
    """Metadata of a small mixture of experts: 2 layers of 4 experts, 2 selected. `n_experts=0` makes it dense."""
    options = {"architecture": "qwen3moe", "n_layers": 2, "n_experts": 4, "k": 2, "n_embd": 64, "context": 4096}
    options |= changes
    prefix = options["architecture"]
    metadata: dict[str, Any] = {
        "general.architecture": prefix,
        "general.file_type": 38,
        f"{prefix}.block_count": options["n_layers"],
        f"{prefix}.embedding_length": options["n_embd"],
        f"{prefix}.context_length": options["context"],
        "tokenizer.ggml.tokens": ["a", "b", "c"],
        "tokenizer.chat_template": "{{ messages }}",
    }
    if options["n_experts"]:
        metadata[f"{prefix}.expert_count"] = options["n_experts"]
        metadata[f"{prefix}.expert_used_count"] = options["k"]
    return metadata


def model_tensors(*, n_layers: int = 2, n_experts: int = 4, n_embd: int = 64, rows: int = 32) -> list[Tensor]:
    """One expert tensor per layer in MXFP4, and an embedding in F32. `rows` scales the size."""
    experts = [Tensor(f"blk.{i}.ffn_up_exps.weight", (n_embd, rows, n_experts), "MXFP4") for i in range(n_layers)]
    return [Tensor("token_embd.weight", (n_embd, 3), "F32"), *experts]


def write_model(path: Path, *, seed: int = 0, rows: int = 32, **metadata: Any) -> Path:
    """A small valid model in one file."""
    fields = model_metadata()
    fields.update({key.replace("__", "."): value for key, value in metadata.items()})
    return write(path, fields, model_tensors(rows=rows), seed=seed)


def write_split(directory: Path, stem: str, n_parts: int, *, rows: int = 32, seed: int = 0) -> list[Path]:
    """The same model split over several files: metadata only in the first, tensors spread over all."""
    tensors = model_tensors(n_layers=max(2, n_parts), rows=rows)
    paths = []
    for part in range(n_parts):
        own = tensors[part::n_parts]
        metadata = model_metadata(n_layers=max(2, n_parts)) if part == 0 else {}
        metadata |= {"split.no": Typed(U16, part), "split.count": Typed(U16, n_parts)}
        metadata["split.tensors.count"] = Typed(I32, len(tensors))
        path = directory / f"{stem}-{part + 1:05d}-of-{n_parts:05d}.gguf"
        paths.append(write(path, metadata, own, seed=seed + part))
    return paths


def _typed(value: Any) -> Typed:
    if isinstance(value, (list, tuple)):
        return Typed(_typed(value[0]).value_type if value else STRING, value)
    for kind, value_type in ((bool, BOOL), (int, U32), (float, F32), (str, STRING)):
        if isinstance(value, kind):
            return Typed(value_type, value)
    raise TypeError(f"no GGUF type for {value!r}")


def _scalar(value_type: int, value: Any) -> bytes:
    return text(value) if value_type == STRING else struct.pack("<" + _LAYOUTS[value_type], value)


def _padded(n_bytes: int, alignment: int) -> int:
    return -(-n_bytes // alignment) * alignment
