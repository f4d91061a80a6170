"""The hub client's cache on disk: ``models--org--repo/{blobs,snapshots,refs}``, shared with every tool that uses it.

The client itself downloads to a file that is unique to the process and deletes it on failure, so a broken download
starts again from nothing. Here a partial file keeps the name that older clients resumed from, ``<etag>.incomplete``,
and becomes a blob only when it is complete and verified. All paths into the cache are built in this module.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]  # documented, not listed in __all__

from ostinatod.errors import PullError
from ostinatod.store.variants import RemoteFile

_ETAG = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class RepositoryCache:
    """The part of the cache at `root` that belongs to one repository. `repository` must follow the name grammar."""

    def __init__(self, root: Path, repository: str) -> None:
        self.directory = root / ("models--" + repository.replace("/", "--"))

    def blob(self, file: RemoteFile) -> Path:
        """Where a complete file lies, named by its checksum. Raises PullError if the hub gave none."""
        etag = file.sha256 or file.git_sha1 or ""
        if not _ETAG.fullmatch(etag):
            raise PullError(f"expected a checksum for {file.path} from the hub, found {etag[:80]!r}")
        return self.directory / "blobs" / etag

    def partial(self, file: RemoteFile) -> Path:
        """Where an unfinished file lies."""
        return partial_of(self.blob(file))

    def pointer(self, commit: str, file: RemoteFile) -> Path:
        """The link that gives a blob its file name. Raises PullError for a commit or path that may leave the cache."""
        relative = PurePosixPath(file.path)
        if relative.is_absolute() or ".." in relative.parts or "\\" in file.path or "\0" in file.path:
            raise PullError(f"expected a relative path from the hub, found {file.path!r}")
        if not _COMMIT.fullmatch(commit):
            raise PullError(f"expected a commit from the hub, found {commit[:80]!r}")
        return self.directory / "snapshots" / commit / relative

    def link(self, commit: str, file: RemoteFile) -> Path:
        """Makes the pointer to a complete file and returns it."""
        pointer, blob = self.pointer(commit, file), self.blob(file)
        pointer.parent.mkdir(parents=True, exist_ok=True)
        if not (pointer.exists() and pointer.samefile(blob)):
            fresh = _beside(pointer)
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(os.path.relpath(blob, pointer.parent))
            fresh.replace(pointer)
        return pointer

    def write_ref(self, commit: str) -> None:
        """Records `commit` as the newest one, so that other tools find the snapshot without a network."""
        ref = self.directory / "refs" / "main"
        ref.parent.mkdir(parents=True, exist_ok=True)
        fresh = _beside(ref)
        fresh.write_text(commit)
        fresh.replace(ref)


def _beside(path: Path) -> Path:
    """Where this thread writes what is to replace `path`: pulls of one repository may run at once in one process."""
    return path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")


def partial_of(blob: Path) -> Path:
    """The unfinished form of a blob."""
    return blob.with_name(f"{blob.name}.incomplete")


@contextmanager
def sole_writer(blob: Path, wait_s: float) -> Iterator[None]:
    """Holds the lock that the hub's own client takes while it writes a blob. Raises TimeoutError after `wait_s`."""
    directory = blob.parent.parent
    lock = directory.parent / ".locks" / directory.name / f"{blob.name}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock, timeout=wait_s):
        yield


def discard(blob: Path) -> int:
    """Deletes a blob, its unfinished form, the pointers to it and folders left empty. Returns the bytes freed."""
    freed = 0
    for path in (blob, partial_of(blob)):
        if path.is_file():
            freed += path.stat().st_size
            path.unlink()
    directory = blob.parent.parent
    for pointer in list(_pointers(directory)):
        if pointer.is_symlink() and Path(os.path.realpath(pointer)) == Path(os.path.realpath(blob)):
            pointer.unlink()
            _remove_empty(pointer.parent, directory)
    _remove_empty(blob.parent, directory)
    if directory.is_dir() and not any((directory / name).exists() for name in ("blobs", "snapshots")):
        for ref in (directory / "refs").glob("*"):
            ref.unlink()
        _remove_empty(directory / "refs", directory)
        _remove_empty(directory, directory.parent)
    return freed


def _pointers(directory: Path) -> Iterator[Path]:
    return (directory / "snapshots").glob("*/**/*")


def _remove_empty(directory: Path, stop: Path) -> None:
    while directory != stop and directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()
        directory = directory.parent
