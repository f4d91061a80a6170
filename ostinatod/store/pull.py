"""Gets a model from the hub: choose, check the disk, fetch, verify. Registers nothing.

A pull ends with all files of the model complete and verified, or with an error and whatever arrived kept for the next
attempt. Files that are on the machine already are used where they are.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ostinatod.errors import DiskFull, ModelNameError, PullError
from ostinatod.store.hub import Hub, Listing
from ostinatod.store.hub_cache import RepositoryCache, sole_writer
from ostinatod.store.hub_errors import HubUnavailable
from ostinatod.store.local_models import LocalPlaces, copy_of, local_files
from ostinatod.store.names import ModelName, parse_name
from ostinatod.store.pull_progress import PullReporter
from ostinatod.store.records import ProgressCallback
from ostinatod.store.transfer import TransferPolicy, fetch, raise_if, verify, with_retries
from ostinatod.store.variants import RemoteFile, Variant, choose, variants_of

_LOCK_POLL_S = 0.25
_ATTEMPTS_BEFORE_LOCAL = 2
"""To reach the hub, where files on this machine could stand in for it."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """The files of a model that is ready to be registered. `is_from_hub` is False for another program's files."""

    name: ModelName
    parts: tuple[Path, ...]
    is_from_hub: bool


@dataclass(frozen=True, slots=True)
class PullSettings:
    """Where models come from and go to. `free_bytes` tells the free space on the disk of a directory."""

    endpoint: str
    places: LocalPlaces
    policy: TransferPolicy = field(default_factory=TransferPolicy)
    free_bytes: Callable[[Path], int] = lambda directory: shutil.disk_usage(directory).free


Claim = Callable[[ModelName, tuple[Path, ...]], None]
"""Told which files are about to be fetched for which name, before the first byte."""

Hold = Callable[[tuple[Path, ...]], None]
"""Told which blobs the model consists of, before it is looked at which of them are there."""


class Pull:
    """One pull of one reference. Blocking; run it in a thread of its own."""

    def __init__(
        self,
        settings: PullSettings,
        on_progress: ProgressCallback,
        cancelled: threading.Event,
        claim: Claim,
        hold: Hold,
    ) -> None:
        self._settings = settings
        self._report = PullReporter(on_progress)
        self._cancelled = cancelled
        self._claim = claim
        self._hold = hold

    def run(self, reference: str) -> Pulled:
        """The files of the model that `reference` names.

        Raises ModelNameError for a reference that names no repository, DiskFull, PullCancelled, and PullError.
        """
        name = parse_name(reference)
        if name.repository is None:
            raise ModelNameError(
                f"expected org/repo or org/repo:QUANT to pull, found {reference!r}",
                hint="For a file on this machine, add it by its path instead.",
            )
        self._report.status("resolving")
        settings = self._settings
        with Hub(settings.endpoint, stall_s=settings.policy.stall_s) as hub:
            try:
                listing = self._listing(hub, name.repository)
            except PullError as error:
                return self._without_hub(name, error)
            variant = choose(listing.repository, variants_of(listing.files), name.tag)
            return self._with_hub(hub, listing, variant)

    def _listing(self, hub: Hub, repository: str) -> Listing:
        found: list[Listing] = []

        def attempt() -> bool:
            found.append(hub.listing(repository))
            return True

        policy = self._settings.policy
        if local_files(self._settings.places, repository):
            policy = replace(policy, attempts=min(policy.attempts, _ATTEMPTS_BEFORE_LOCAL))
        with_retries(attempt, policy, self._cancelled, f"{repository} was not downloaded")
        return found[0]

    def _without_hub(self, name: ModelName, error: PullError) -> Pulled:
        """The model from files that are here, if the hub could not be reached; else `error`."""
        if not isinstance(error.__cause__, HubUnavailable) or not name.repository:
            raise error
        files = local_files(self._settings.places, name.repository)
        if not files:
            raise error
        variant = choose(name.repository, variants_of(files), name.tag)
        parts = tuple(files[file] for file in variant.files)
        is_from_hub = all(self._settings.places.hub_cache in path.parents for path in parts)
        return Pulled(_named(name.repository, variant), parts, is_from_hub)

    def _with_hub(self, hub: Hub, listing: Listing, variant: Variant) -> Pulled:
        name = _named(listing.repository, variant)
        self._report.expect(variant.files)
        cache = RepositoryCache(self._settings.places.hub_cache, listing.repository)
        self._hold(tuple(cache.blob(file) for file in variant.files))
        missing = tuple(file for file in variant.files if not cache.blob(file).exists())
        if missing and (copy := self._verified_copy(listing.repository, variant)):
            return Pulled(name, copy, is_from_hub=False)
        self._check_space(cache, missing)
        self._claim(name, tuple(cache.blob(file) for file in missing))
        parts = tuple(self._place(hub, listing, cache, file) for file in variant.files)
        cache.write_ref(listing.commit)
        return Pulled(name, parts, is_from_hub=True)

    def _verified_copy(self, repository: str, variant: Variant) -> tuple[Path, ...] | None:
        found = copy_of(self._settings.places, repository, variant)
        if found is None:
            return None
        paths, is_vouched_for = found
        for file, path in zip(variant.files, paths, strict=True):
            if not is_vouched_for and not self._is_intact(file, path):
                return None
        for file in variant.files:
            self._report.downloaded(file, file.size_bytes)
        return paths

    def _check_space(self, cache: RepositoryCache, missing: tuple[RemoteFile, ...]) -> None:
        if not missing:
            return
        directory = next(path for path in (cache.directory, *cache.directory.parents) if path.is_dir())
        kept = sum(p.stat().st_size for p in map(cache.partial, missing) if p.exists())
        needed = max(sum(file.size_bytes for file in missing) - kept, 0)
        free = self._settings.free_bytes(directory)
        self._report.status("resolving", needed_bytes=needed, free_bytes=free, directory=str(directory))
        margin = self._settings.policy.margin_bytes
        if needed + margin > free:
            raise DiskFull(
                f"the download needs {_gigabytes(needed)} and {_gigabytes(margin)} to spare, "
                f"{_gigabytes(free)} is free on the disk of {directory}",
                hint="Free some space with `ostinato prune` or `ostinato rm`, or set HF_HUB_CACHE to another disk.",
            )

    def _place(self, hub: Hub, listing: Listing, cache: RepositoryCache, file: RemoteFile) -> Path:
        """Makes one file complete and verified, and returns the path that carries its name."""
        blob, partial = cache.blob(file), cache.partial(file)
        with self._sole_writer(cache, file):
            if not blob.exists():
                fetch(
                    hub,
                    listing,
                    file,
                    partial,
                    policy=self._settings.policy,
                    advance=lambda done: self._report.downloaded(file, done),
                    cancelled=self._cancelled,
                )
                if not self._is_intact(file, partial):
                    partial.unlink(missing_ok=True)
                    raise PullError(
                        f"{file.path} arrived damaged: its checksum is not the one that the hub gives; it was deleted",
                        hint="Run the same command again; only this file is fetched again.",
                    )
                partial.replace(blob)
            self._report.downloaded(file, file.size_bytes)
            return cache.link(listing.commit, file)

    def _is_intact(self, file: RemoteFile, path: Path) -> bool:
        return verify(file, path, advance=lambda done: self._report.verified(file, done), cancelled=self._cancelled)

    @contextmanager
    def _sole_writer(self, cache: RepositoryCache, file: RemoteFile) -> Iterator[None]:
        """Waits for other pulls of the same file, showing what they achieve meanwhile."""
        blob, partial = cache.blob(file), cache.partial(file)
        with ExitStack() as held:
            while True:
                raise_if(self._cancelled, "another pull of the same file goes on")
                try:
                    held.enter_context(sole_writer(blob, _LOCK_POLL_S))
                    break
                except TimeoutError:
                    if partial.exists():
                        self._report.downloaded(file, partial.stat().st_size)
            yield


def _named(repository: str, variant: Variant) -> ModelName:
    return replace(parse_name(repository), tag=variant.quantization or None)


def _gigabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB"
