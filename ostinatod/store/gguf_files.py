"""Which files make up a model on this machine, and what their headers say. Reads; never writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ostinatod.errors import ModelFormatError, ModelNotFound
from ostinatod.profiles.errors import HeaderError
from ostinatod.profiles.gguf_model import GgufModel, fingerprint, read_model
from ostinatod.store.records import ModelShape

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_NOT_A_MODEL = re.compile(r"mmproj|imatrix", re.IGNORECASE)
"""Companions of a model that carry the same suffix: vision projectors and importance matrices."""


@dataclass(frozen=True, slots=True)
class SplitName:
    """A file name of a split set, such as ``big-Q4_K_M-00002-of-00003.gguf``. `part` counts from 1."""

    stem: str
    part: int
    count: int

    def sibling(self, part: int) -> str:
        """The name of another part of the set."""
        return f"{self.stem}-{part:05d}-of-{self.count:05d}.gguf"


@dataclass(frozen=True, slots=True)
class Description:
    """What the headers of a model say."""

    shape: ModelShape
    digest: str
    size_bytes: int


def parse_split_name(file_name: str) -> SplitName | None:
    """The position that a file name claims in a split set; None for a name that claims none."""
    match = _SPLIT.fullmatch(file_name)
    if match is None or not 1 <= int(match["part"]) <= int(match["count"]):
        return None
    return SplitName(match["stem"], int(match["part"]), int(match["count"]))


def is_model_file(file_name: str) -> bool:
    """Whether a file name looks like a model's, rather than like a companion's or another format's."""
    return file_name.lower().endswith(".gguf") and not _NOT_A_MODEL.search(file_name)


def parts_of(path: Path) -> tuple[Path, ...]:
    """All files of the model at `path`: a GGUF, any part of a split set, or a directory with exactly one model.

    Raises ModelNotFound if nothing is there, ModelFormatError if a part is missing or a directory holds several models.
    """
    path = path.expanduser().absolute()
    if path.is_dir():
        return _parts_in(path)
    if not path.exists():
        raise ModelNotFound(f"no such file: {path}", hint="Check the path; `ostinato list` shows what is registered.")
    return complete_set(path)


def complete_set(path: Path) -> tuple[Path, ...]:
    """The set that a file belongs to by its name. Raises ModelFormatError naming the part that is missing."""
    split = parse_split_name(path.name)
    if split is None:
        return (path,)
    parts = tuple(path.with_name(split.sibling(part)) for part in range(1, split.count + 1))
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        raise ModelFormatError(
            f"expected {split.count} parts in {path.parent}, missing {', '.join(missing)}",
            hint="Put the missing parts beside the others, or pull the model again.",
        )
    return parts


def describe(parts: Sequence[Path]) -> Description:
    """Reads and checks the headers of a model. Raises ModelFormatError saying what is wrong with which file."""
    try:
        model = read_model(parts)
        return Description(_shape(model), fingerprint(model), model.size_bytes)
    except HeaderError as error:
        raise ModelFormatError(error.message, hint="The file is damaged or not a model; fetch it again.") from error
    except OSError as error:
        raise ModelFormatError(f"cannot read the model: {error}") from error


def _shape(model: GgufModel) -> ModelShape:
    path = model.parts[0].path
    if model.kind != "model" or model.architecture == "clip":
        raise ModelFormatError(f"{path}: expected a language model, found a file of type {model.kind!r}")
    if not model.architecture or not model.block_count or not model.parameters:
        raise ModelFormatError(
            f"{path}: expected a model with an architecture, layers and tensors, found metadata only"
        )
    return ModelShape(
        architecture=model.architecture,
        parameters=model.parameters,
        n_layers=model.block_count,
        n_embd=model.embedding_length,
        n_experts=model.expert_count,
        k=model.expert_used_count,
        context_tokens=model.context_length,
        quantization=model.quantization,
        has_chat_template=model.has_chat_template,
        is_embedding=model.is_embedding,
    )


def _parts_in(directory: Path) -> tuple[Path, ...]:
    firsts: dict[tuple[str, int], Path] = {}
    for path in sorted(directory.iterdir()):
        if is_model_file(path.name) and path.is_file():
            split = parse_split_name(path.name)
            firsts.setdefault((split.stem, split.count) if split else (path.name, 1), path)
    if len(firsts) != 1:
        found = ", ".join(path.name for path in firsts.values()) or "none"
        raise ModelFormatError(
            f"expected exactly one model in {directory}, found {found}",
            hint="Name the file instead of the directory.",
        )
    return complete_set(next(iter(firsts.values())))
