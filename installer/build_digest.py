"""The names builds are kept under: digests of everything that decides the bytes of the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

_SOURCES = ("UPSTREAM", "CMakeLists.txt", "patches", "overlay")


def source_files(kernels_patch: Path) -> list[Path]:
    """Files of `kernels_patch` that the build reads, sorted by relative path."""
    found: list[Path] = []
    for name in _SOURCES:
        entry = kernels_patch / name
        found += [entry] if entry.is_file() else [file for file in entry.rglob("*") if file.is_file()]
    return sorted(file for file in found if "__pycache__" not in file.parts and not file.name.startswith("."))


def sources_digest(kernels_patch: Path) -> str:
    """Hex SHA-256 over the names and contents of the sources."""
    parts: list[bytes] = []
    for file in source_files(kernels_patch):
        parts += [file.relative_to(kernels_patch).as_posix().encode(), file.read_bytes()]
    return _digest(parts)


def digest_of(*values: str) -> str:
    """Hex SHA-256 over `values`; moving a character from one to its neighbour changes it."""
    return _digest(value.encode(errors="surrogateescape") for value in values)


def _digest(parts: Iterable[bytes]) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "big"))
        total.update(part)
    return total.hexdigest()
