"""Fetches one file to disk: resumes what is there, waits out failures, gives up when nothing arrives any more.

A file is appended to without buffering, so that a process which is killed loses nothing it has received.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ostinatod.errors import DiskFull, PullCancelled, PullError
from ostinatod.store.hub import Hub, Listing
from ostinatod.store.hub_errors import RESUME, HubUnavailable
from ostinatod.store.variants import RemoteFile

_HASH_CHUNK_BYTES = 4 << 20
_SYNC_EVERY_BYTES = 256 << 20
"""Between flushes to the device, which bound what a power failure takes."""
_PROGRESS_BYTES = 64 << 10
"""An attempt that gains less counts as failed, so that a server which trickles cannot hold a pull for ever."""

Advance = Callable[[int], None]
"""Told how many bytes of the file are done."""


@dataclass(frozen=True, slots=True)
class TransferPolicy:
    """How patient a transfer is."""

    stall_s: float = 30.0
    """Silence after which a connection is given up."""
    attempts: int = 6
    """Attempts in a row without progress after which the pull is given up."""
    first_wait_s: float = 1.0
    longest_wait_s: float = 30.0
    """Waits double from the first to the longest."""
    window_bytes: int = 8 << 30
    """Most bytes asked for at once: the hub's distribution network refuses whole files above 50 GB."""
    margin_bytes: int = 256 << 20
    """Space left free on the disk beyond what the download needs."""


def with_retries(action: Callable[[], bool], policy: TransferPolicy, cancelled: threading.Event, kept: str) -> None:
    """Repeats `action` until it returns True, waiting longer after each HubUnavailable in a row.

    `kept` ends the messages of PullError, raised when attempts run out, and of PullCancelled.
    """
    failures = 0
    while True:
        raise_if(cancelled, kept)
        try:
            if action():
                return
            failures = 0
        except HubUnavailable as error:
            raise_if(cancelled, kept)
            failures = 1 if isinstance(error, Interrupted) and error.made_progress else failures + 1
            if failures >= policy.attempts or not error.may_retry:
                raise PullError(f"{error.reason}; {kept}", hint=error.hint) from error
            wait_s = min(policy.first_wait_s * 2 ** (failures - 1), policy.longest_wait_s)
            cancelled.wait(max(wait_s, error.wait_s))


def raise_if(cancelled: threading.Event, kept: str) -> None:
    """Raises PullCancelled once `cancelled` is set."""
    if cancelled.is_set():
        raise PullCancelled(f"the pull was cancelled; {kept}", hint=RESUME)


class Interrupted(HubUnavailable):
    """A transfer that ended before its end; `made_progress` if it brought enough to start counting anew."""

    def __init__(self, reason: str, *, made_progress: bool, hint: str = RESUME, wait_s: float = 0.0) -> None:
        super().__init__(reason, hint=hint, wait_s=wait_s)
        self.made_progress = made_progress


def fetch(
    hub: Hub,
    listing: Listing,
    file: RemoteFile,
    partial: Path,
    *,
    policy: TransferPolicy,
    advance: Advance,
    cancelled: threading.Event,
) -> None:
    """Completes `partial` to the size of `file`, from where it ends.

    Raises PullError (what arrived is kept), DiskFull or PullCancelled.
    """
    partial.parent.mkdir(parents=True, exist_ok=True)

    def attempt() -> bool:
        have = _size(partial)
        if have > file.size_bytes:
            partial.unlink()
            have = 0
        advance(have)
        if have < file.size_bytes:
            _append(hub, listing, file, partial, have, policy, advance, cancelled)
        return _size(partial) == file.size_bytes

    try:
        partial.touch()
        with_retries(attempt, policy, cancelled, f"what arrived of {file.path} is kept")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"the disk of {partial.parent} is full; what arrived of {file.path} is kept",
                hint="Free some space and run the same command again to resume.",
            ) from error
        raise PullError(f"cannot write {partial}: {error}") from error


def verify(file: RemoteFile, path: Path, *, advance: Advance, cancelled: threading.Event) -> bool:
    """Whether the file at `path` has the size and checksum that the hub gave. Raises PullCancelled."""
    if _size(path) != file.size_bytes:
        return False
    digest = hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)
    done = 0
    with path.open("rb", buffering=0) as stream:
        while chunk := stream.read(_HASH_CHUNK_BYTES):
            raise_if(cancelled, "what arrived is kept")
            digest.update(chunk)
            done += len(chunk)
            advance(done)
    return digest.hexdigest() == (file.sha256 or file.git_sha1)


def _append(
    hub: Hub,
    listing: Listing,
    file: RemoteFile,
    partial: Path,
    have: int,
    policy: TransferPolicy,
    advance: Advance,
    cancelled: threading.Event,
) -> None:
    start, end = have, min(have + policy.window_bytes, file.size_bytes)
    synced = have
    try:
        with hub.open(listing, file, start, end, cancelled) as response, partial.open("ab", buffering=0) as out:
            # A server that ignores ranges sends the file from its start: what is already there is read past.
            surplus = start if response.status_code == 200 else 0
            for chunk in response.iter_raw():
                fresh = chunk[min(surplus, len(chunk)) :]
                surplus -= len(chunk) - len(fresh)
                if have + len(fresh) > file.size_bytes:
                    raise PullError(f"expected {file.size_bytes} bytes of {file.path}, found more")
                _write(out.fileno(), fresh)
                have += len(fresh)
                if have - synced >= _SYNC_EVERY_BYTES:
                    os.fsync(out.fileno())
                    synced = have
                advance(have)
            os.fsync(out.fileno())
    except HubUnavailable as error:
        made_progress = have - start >= min(_PROGRESS_BYTES, end - start)
        raise Interrupted(error.reason, made_progress=made_progress, hint=error.hint, wait_s=error.wait_s) from error
    if have < end:
        made_progress = have - start >= _PROGRESS_BYTES
        raise Interrupted(f"{file.path} ended after {have} of {file.size_bytes} bytes", made_progress=made_progress)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
