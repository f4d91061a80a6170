"""What downloads have left on this machine that no model needs. Only files that the catalogue notes as downloads count.

Nothing of a pull that runs is a leftover: those of this process are told by `held`, those of others by the lock that
whoever writes a blob holds. While that lock, or one on another file of the same name, is held, the whole name is left
alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ostinatod.errors import ModelError
from ostinatod.store.hub_cache import discard, partial_of, sole_writer

LOCK_S = 0.5
"""How long the writer of a file is waited for."""

Kind = Literal["unfinished", "superseded", "unused", "prompts", "residency"]
"""unfinished: of a pull that has not ended; superseded: an older version of a model; unused: of a model that is not
registered any more; prompts, residency: saved prompts, or the residency file, of such a model."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """One file or folder that may go."""

    kind: Kind
    model: str
    """The name that it was fetched for, or the fingerprint of its model."""
    path: Path
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What was found, or what was deleted, and the names that were left alone because they are being pulled."""

    entries: tuple[Leftover, ...]
    in_progress: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Needs:
    """What has to stay.

    paths   parts of registered models and of models in memory, links resolved
    keys    registered names
    held    blobs of pulls that this process runs, links resolved
    """

    paths: frozenset[str]
    keys: frozenset[str]
    held: frozenset[str]


Act = Callable[[Leftover], bool]
"""Told of a leftover while nobody can write to it; whether it is to be counted."""


def resolved(paths: Collection[Path]) -> frozenset[str]:
    """`paths` with every link resolved; what is missing keeps its name."""
    return frozenset(os.path.realpath(path) for path in paths)


def sort_out(downloads: Mapping[Path, str], needs: Needs, act: Act) -> Leftovers:
    """Hands every leftover among `downloads` (blob to key of a name) to `act`, and tells which it counted."""
    groups: dict[tuple[str, Path], list[Path]] = {}
    for blob, key in downloads.items():
        groups.setdefault((key, blob.parent), []).append(blob)
    entries: list[Leftover] = []
    in_progress: list[str] = []
    for (key, directory), blobs in sorted(groups.items()):
        unneeded = [blob for blob in sorted(blobs) if os.path.realpath(blob) not in needs.paths]
        if not _on_disk(unneeded) or _may_lie_in(directory.parent, needs.paths):
            continue
        try:
            with ExitStack() as locks:
                if resolved(blobs) & needs.held:
                    raise TimeoutError
                for blob in unneeded:
                    locks.enter_context(sole_writer(blob, LOCK_S))
                entries += [left for left in _leftovers(key, unneeded, key in needs.keys) if act(left)]
        except TimeoutError:
            in_progress.append(key)
    return Leftovers(tuple(entries), tuple(dict.fromkeys(in_progress)))


def delete(left: Leftover) -> None:
    """Deletes a leftover of a download and the links to it. Raises ModelError where the system does not let it go."""
    try:
        discard(left.path.with_suffix(""))
    except OSError as error:
        raise ModelError(f"cannot delete {left.path}: {error}", hint="See who owns it.") from error


def gone_with(deleted: Leftovers, downloads: Mapping[Path, str]) -> list[Path]:
    """The `downloads` that need not be noted any more: what was deleted, and what the same pulls had not begun."""
    groups = {(left.model, left.path.parent) for left in deleted.entries}
    return [blob for blob, key in downloads.items() if (key, blob.parent) in groups and not _on_disk([blob])]


def _leftovers(key: str, blobs: Sequence[Path], is_registered: bool) -> list[Leftover]:
    kind: Kind = "superseded" if is_registered else "unused"
    if not all(blob.is_file() for blob in blobs):
        kind = "unfinished"
    found = []
    for blob in _on_disk(blobs):
        files = [path for path in (blob, partial_of(blob)) if path.is_file()]
        found.append(Leftover(kind, key, files[0], sum(path.stat().st_size for path in files)))
    return found


def _on_disk(blobs: Sequence[Path]) -> list[Path]:
    return [blob for blob in blobs if blob.is_file() or partial_of(blob).is_file()]


def _may_lie_in(repository: Path, needed: Collection[str]) -> bool:
    """Whether a needed file lies in `repository` that cannot be told from a blob there: its link is gone, or broken.

    Pulling the model again makes the link anew, as long as the blob is there.
    """
    inside = os.path.realpath(repository) + os.sep
    return any(path.startswith(inside) and not os.path.exists(path) for path in needed)
