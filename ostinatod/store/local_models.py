"""Models that other programs already keep on this machine: the hub cache, LM Studio and Ollama. Reads; never writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ostinatod.errors import ModelFormatError
from ostinatod.store.gguf_files import complete_set, is_model_file, parse_split_name
from ostinatod.store.hub_cache import RepositoryCache
from ostinatod.store.variants import RemoteFile, Variant

Origin = Literal["hub cache", "LM Studio", "Ollama"]

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_OLLAMA_MODEL = "application/vnd.ollama.image.model"
_OLLAMA_DEFAULT = Path("registry.ollama.ai", "library")
_MAX_MANIFEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that could be registered where it lies. `name` is what its owner calls it, such as ``org/repo``."""

    origin: Origin
    name: str
    parts: tuple[Path, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LocalPlaces:
    """Where to look. Directories that do not exist hold nothing."""

    hub_cache: Path
    lm_studio: tuple[Path, ...] = ()
    ollama: tuple[Path, ...] = ()

    @classmethod
    def below(cls, home: Path, hub_cache: Path) -> LocalPlaces:
        """The usual places of a user with that home directory."""
        return cls(
            hub_cache,
            lm_studio=(home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"),
            ollama=(home / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")),
        )


def local_models(places: LocalPlaces) -> list[LocalModel]:
    """All complete models in those places. Unreadable directories and malformed manifests are passed over."""
    found = [*_hub_models(places.hub_cache)]
    for root in places.lm_studio:
        found += _lm_studio_models(root)
    for root in places.ollama:
        found += _ollama_models(root)
    return found


def copy_of(places: LocalPlaces, repository: str, variant: Variant) -> tuple[tuple[Path, ...], bool] | None:
    """Files on this machine with the names, or the checksum, and sizes of a variant's; None unless all are there.

    The second value is True if their place vouches for the content; else it is still to be verified.
    """
    for root in places.ollama:
        # The engine finds the parts of a set by their names, which blobs do not have.
        blob = root / "blobs" / f"sha256-{variant.files[0].sha256}"
        if len(variant.files) == 1 and _has_size(blob, variant.files[0]):
            return (blob,), True
    for root in places.lm_studio:
        directory = root / repository
        paths = tuple(directory / Path(file.path).name for file in variant.files)
        if all(_has_size(path, file) for path, file in zip(paths, variant.files, strict=True)):
            return paths, False
    return None


def local_files(places: LocalPlaces, repository: str) -> dict[RemoteFile, Path]:
    """Files of a repository that are here, from the newest snapshot, for when the hub cannot be asked."""
    directory = RepositoryCache(places.hub_cache, repository).directory / "snapshots"
    roots = sorted(_subdirectories(directory), key=lambda path: path.stat().st_mtime, reverse=True)
    roots += [root / repository for root in places.lm_studio]
    found: dict[str, tuple[RemoteFile, Path]] = {}
    for root in roots:
        for path in _gguf_files(root):
            name = path.relative_to(root).as_posix()
            found.setdefault(name, (RemoteFile(name, path.stat().st_size), path))
    return dict(found.values())


def _hub_models(root: Path) -> Iterator[LocalModel]:
    for directory in _subdirectories(root):
        if not directory.name.startswith("models--"):
            continue
        name = directory.name.removeprefix("models--").replace("--", "/")
        for snapshot in _subdirectories(directory / "snapshots"):
            yield from _models_below(snapshot, "hub cache", name)


def _lm_studio_models(root: Path) -> Iterator[LocalModel]:
    for publisher in _subdirectories(root):
        for repository in _subdirectories(publisher):
            yield from _models_below(repository, "LM Studio", f"{publisher.name}/{repository.name}")


def _models_below(root: Path, origin: Origin, name: str) -> Iterator[LocalModel]:
    for path in _gguf_files(root):
        split = parse_split_name(path.name)
        if split is not None and split.part != 1:
            continue
        try:
            parts = complete_set(path)
        except ModelFormatError:
            continue
        yield LocalModel(origin, name, parts, sum(part.stat().st_size for part in parts))


def _ollama_models(root: Path) -> Iterator[LocalModel]:
    manifests = root / "manifests"
    try:
        files = sorted(path for path in manifests.glob("*/*/*/*") if path.is_file())
    except OSError:
        return
    for file in files:
        blob = _ollama_blob(root, file)
        if blob is not None and blob.is_file():
            *place, model, tag = file.relative_to(manifests).parts
            stem = model if Path(*place) == _OLLAMA_DEFAULT else "/".join([*place, model])
            yield LocalModel("Ollama", f"{stem}:{tag}", (blob,), blob.stat().st_size)


def _ollama_blob(root: Path, manifest: Path) -> Path | None:
    try:
        if manifest.stat().st_size > _MAX_MANIFEST_BYTES:
            return None
        content: Any = json.loads(manifest.read_bytes())
    except (OSError, ValueError):
        return None
    layers = content.get("layers") if isinstance(content, dict) else None
    for layer in layers if isinstance(layers, list) else ():
        if isinstance(layer, dict) and layer.get("mediaType") == _OLLAMA_MODEL:
            match = _DIGEST.fullmatch(str(layer.get("digest")))
            return root / "blobs" / f"sha256-{match[1]}" if match else None
    return None


def _subdirectories(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.is_dir())
    except OSError:
        return []


def _gguf_files(root: Path) -> list[Path]:
    try:
        return sorted(path for path in root.rglob("*") if is_model_file(path.name) and path.is_file())
    except OSError:
        return []


def _has_size(path: Path, file: RemoteFile) -> bool:
    try:
        return path.stat().st_size == file.size_bytes
    except OSError:
        return False
