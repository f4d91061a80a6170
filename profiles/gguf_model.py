"""A model as its GGUF headers describe it, over one file or all files of a split set."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import HeaderError
from .ggml_types import FILE_TYPES, GUESSED_FILE_TYPE
from .gguf_header import GgufHeader, TensorInfo, read_header

_ENCODER_ARCHITECTURES = frozenset(
    {
        "bert",
        "eurobert",
        "gemma-embedding",
        "jina-bert-v2",
        "jina-bert-v3",
        "llama-embed",
        "modern-bert",
        "neo-bert",
        "nomic-bert",
        "nomic-bert-moe",
        "t5encoder",
    }
)
_MAX_LAYERS = 1 << 12
_MAX_EXPERTS = 1 << 16
"""Both far above what exists; plans allocate one number per layer and expert."""
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class GgufModel:
    """The headers of one model in order; everything but tensors is read from the first.

    Properties raise HeaderError where the header holds a value of the wrong kind.
    """

    parts: tuple[GgufHeader, ...]

    @property
    def architecture(self) -> str:
        """The engine's name for the model family, such as "qwen3moe"; empty where it is missing."""
        return self.parts[0].text("general.architecture")

    @property
    def kind(self) -> str:
        """`general.type`: "model", "adapter", "mmproj", "imatrix"; "model" where it is missing."""
        return self.parts[0].text("general.type") or "model"

    @property
    def block_count(self) -> int:
        """Layers."""
        return self._own("block_count", _MAX_LAYERS)

    @property
    def embedding_length(self) -> int:
        """Width of the residual stream."""
        return self._own("embedding_length")

    @property
    def expert_count(self) -> int:
        """Routed experts per layer; 0 for a dense model."""
        return self._own("expert_count", _MAX_EXPERTS)

    @property
    def expert_used_count(self) -> int:
        """Experts selected per token and layer, the largest where layers differ."""
        k = self._own("expert_used_count", _MAX_EXPERTS)
        if k > self.expert_count:
            field = f"{self.architecture}.expert_used_count"
            raise HeaderError(self.parts[0].path, field, expected=f"at most {self.expert_count}", found=str(k))
        return k

    @property
    def context_length(self) -> int:
        """Tokens the model was trained for; 0 where it is missing."""
        return self._own("context_length")

    @property
    def quantization(self) -> str:
        """The mixture the file was quantised to, or where that is not recorded, the type that takes most bytes."""
        file_type = self.parts[0].integer("general.file_type") & ~GUESSED_FILE_TYPE
        if "general.file_type" in self.parts[0].fields and file_type in FILE_TYPES:
            return FILE_TYPES[file_type]
        bytes_by_type: Counter[str] = Counter()
        for tensor in self.tensors():
            bytes_by_type[tensor.type_name] += tensor.nbytes
        return max(bytes_by_type, key=lambda name: bytes_by_type[name], default="")

    @property
    def parameters(self) -> int:
        """Elements of all tensors."""
        return sum(tensor.n_elements for tensor in self.tensors())

    @property
    def has_chat_template(self) -> bool:
        """Whether a chat template is inside."""
        return bool(self.parts[0].text("tokenizer.chat_template"))

    @property
    def is_embedding(self) -> bool:
        """Whether the model yields embeddings rather than text: an encoder, or one with a pooling of its own."""
        return self.architecture in _ENCODER_ARCHITECTURES or self._own("pooling_type") > 0

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(part.file_bytes for part in self.parts)

    def tensors(self) -> Iterator[TensorInfo]:
        """All tensors in file order; an offset belongs to the file that lists the tensor."""
        for part in self.parts:
            yield from part.tensors

    def _own(self, key: str, largest: int = (1 << 31) - 1) -> int:
        return self.parts[0].integer(f"{self.architecture}.{key}", largest=largest)


def read_model(paths: Sequence[Path]) -> GgufModel:
    """The model in the given files, in order.

    Raises HeaderError for a file that the engine would refuse or for a set whose files do not belong together, and
    OSError for a file that cannot be read.
    """
    parts = tuple(read_header(path) for path in paths)
    if not parts:
        raise ValueError("a model has at least one file")
    count = max(parts[0].split_count, 1)
    if count != len(parts):
        raise HeaderError(
            parts[0].path, "split.count", expected=f"{len(parts)} for {len(parts)} files", found=str(count)
        )
    for index, part in enumerate(parts if count > 1 else ()):
        found = f"part {part.split_no + 1} of {part.split_count}"
        if (part.split_no, part.split_count) != (index, count):
            raise HeaderError(part.path, "split.no", expected=f"part {index + 1} of {count}", found=found)
    _check_tensors(parts)
    return GgufModel(parts)


def fingerprint(model: GgufModel) -> str:
    """Hex SHA-256 over the header bytes (all that precedes tensor data) of all parts in order.

    The same weights quantised or split in another way are another model: their experts differ. Raises OSError, and
    HeaderError if a file has shrunk since it was read.
    """
    digest = hashlib.sha256()
    for part in model.parts:
        remaining = part.header_bytes
        with part.path.open("rb") as file:
            while remaining:
                chunk = file.read(min(_CHUNK_BYTES, remaining))
                if not chunk:
                    raise HeaderError(part.path, "file", expected=f"{remaining} more header bytes", found="its end")
                digest.update(chunk)
                remaining -= len(chunk)
    return digest.hexdigest()


def _check_tensors(parts: tuple[GgufHeader, ...]) -> None:
    names = Counter(tensor.name for part in parts for tensor in part.tensors)
    expected = parts[0].split_tensors_count
    if expected and expected != names.total():
        raise HeaderError(parts[0].path, "split.tensors.count", expected=str(names.total()), found=str(expected))
    for name, occurrences in names.most_common(1):
        if occurrences > 1:
            raise HeaderError(parts[0].path, f"tensor {name!r}", expected="one in the set", found=str(occurrences))
