"""The models that a hub repository offers, by quantisation, and the choice among them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from ostinatod.errors import PullError
from ostinatod.store.gguf_files import is_model_file, parse_split_name

_QUANT = re.compile(
    r"(?<![A-Za-z0-9])(?:UD-)?(?:I?Q\d(?:_[0-9A-Z]+)*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32)(?![A-Za-z0-9])",
    re.IGNORECASE,
)
QUANT_PREFERENCE = ("Q4_K_M", "MXFP4", "MXFP4_MOE")
"""Taken in this order when a reference names no quantisation and the repository has several."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository. `sha256` is known for large files, `git_sha1` for those that git itself stores."""

    path: str
    size_bytes: int
    sha256: str | None = None
    git_sha1: str | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """One model of a repository. `quantization` is what its file names say, in capitals; empty if they say nothing."""

    stem: str
    quantization: str
    files: tuple[RemoteFile, ...]
    missing: tuple[str, ...] = ()
    """Names of parts that the repository lacks."""


def variants_of(files: Iterable[RemoteFile]) -> list[Variant]:
    """The models among a repository's files, in order of their stems; vision projectors and the like are left out."""
    sets: dict[tuple[str, int], dict[int, RemoteFile]] = {}
    for file in files:
        path = PurePosixPath(file.path)
        if not is_model_file(path.name):
            continue
        split = parse_split_name(path.name)
        stem = str(path.with_name(split.stem)) if split else file.path[: -len(".gguf")]
        sets.setdefault((stem, split.count if split else 1), {})[split.part if split else 1] = file
    return [_variant(stem, count, parts) for (stem, count), parts in sorted(sets.items())]


def choose(repository: str, variants: Sequence[Variant], tag: str | None) -> Variant:
    """The variant that `tag` names, or without one the only or preferred one.

    Raises PullError listing what there is if the choice is not clear or the chosen one is incomplete.
    """
    if not variants:
        raise PullError(f"{repository} holds no GGUF model", hint="Look for a repository whose name ends in -GGUF.")
    matches = _named(variants, tag) if tag else _default(variants)
    if len(matches) != 1:
        expected = f"a model {tag!r}" if tag else "one model"
        offered = sorted({variant.quantization or PurePosixPath(variant.stem).name for variant in matches or variants})
        if len(offered) < len(matches):
            offered = [PurePosixPath(variant.stem).name for variant in matches]
        raise PullError(
            f"expected {expected} in {repository}, found {', '.join(offered)}",
            hint=f"Name one of them: ostinato pull {repository}:{offered[0]}",
        )
    if matches[0].missing:
        raise PullError(
            f"{repository} lacks {', '.join(matches[0].missing)}; the set cannot be loaded without it",
            hint="The upload is incomplete; choose another quantisation or repository.",
        )
    return matches[0]


def _variant(stem: str, count: int, parts: dict[int, RemoteFile]) -> Variant:
    name = PurePosixPath(stem).name
    missing = tuple(f"{name}-{part:05d}-of-{count:05d}.gguf" for part in range(1, count + 1) if part not in parts)
    found = _QUANT.findall(name) or _QUANT.findall(PurePosixPath(stem).parent.name)
    return Variant(stem, found[-1].upper() if found else "", tuple(parts[part] for part in sorted(parts)), missing)


def _named(variants: Sequence[Variant], tag: str) -> list[Variant]:
    wanted = tag.lower()
    for names in (
        lambda v: (v.quantization.lower(),),
        lambda v: (PurePosixPath(v.stem).name.lower(),),
        lambda v: (v.quantization.lower().removeprefix("ud-"), v.quantization.lower().removesuffix("_moe")),
    ):
        if matches := [variant for variant in variants if wanted in names(variant)]:
            return matches
    return []


def _default(variants: Sequence[Variant]) -> list[Variant]:
    if len(variants) == 1:
        return [variants[0]]
    for preferred in QUANT_PREFERENCE:
        if matches := [variant for variant in variants if variant.quantization.upper() == preferred]:
            return matches
    return list(variants)
