"""Names to models: resolve, list, pull, add, copy, remove, prune. Any thread and several processes may use it."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from ostinatod.errors import ModelError, ModelFormatError, ModelNameError, ModelNotFound
from ostinatod.models import BUNDLED_NAME, bundled_file
from ostinatod.profiles.errors import HeaderError
from ostinatod.profiles.gguf_header import read_header
from ostinatod.store.catalogue import Catalogue, Entry, PartStamp
from ostinatod.store.gguf_files import describe, parse_split_name, parts_of
from ostinatod.store.hub_cache import discard, sole_writer
from ostinatod.store.leftovers import LOCK_S, Act, Leftover, Leftovers, Needs, delete, gone_with, resolved, sort_out
from ostinatod.store.local_models import LocalModel, LocalPlaces, local_models
from ostinatod.store.names import ModelName, name_from_stem, parse_name, suggest
from ostinatod.store.pull import Pull, PullSettings
from ostinatod.store.records import ModelRecord, ProgressCallback, PullProgress, Source
from ostinatod.store.transfer import TransferPolicy
from ostinatod.store.variants import QUANT_PREFERENCE

ModelRecords = list[ModelRecord]
LocalModels = list[LocalModel]


class ModelStore:
    """The models of one user.

    database   the catalogue; created on first use
    hub_cache  where downloads go, in the layout that the hub's own client uses
    endpoint   address of the hub
    places     where models of other programs are looked for; by default only the hub cache
    policy     how patient downloads are
    settings   replaces the four above; for a disk whose free space has to be told in another way
    """

    def __init__(
        self,
        database: Path,
        hub_cache: Path,
        endpoint: str,
        *,
        places: LocalPlaces | None = None,
        policy: TransferPolicy | None = None,
        settings: PullSettings | None = None,
    ) -> None:
        self._catalogue = Catalogue(database)
        self._settings = settings or PullSettings(
            endpoint, places or LocalPlaces(hub_cache), policy or TransferPolicy()
        )
        self._changing = threading.RLock()
        self._bundled_entry: Entry | None = None
        self._held: Counter[str] = Counter()

    def resolve(self, name: str) -> ModelRecord:
        """The model of that name.

        ``org/repo`` stands for any registered quantisation of it, by the preference that `pull` has.
        Raises ModelNameError, ModelNotFound with suggestions, or ModelFormatError if its files are no longer sound.
        """
        parsed = parse_name(name)
        entry = self._find(parsed)
        if entry is None:
            raise self._not_found(parsed)
        return self._checked(entry).record

    def list(self) -> ModelRecords:
        """Every registered model and the bundled one, the most recently changed first. Files are not looked at."""
        records = [entry.record for entry in self._catalogue.entries()]
        return sorted([*records, self._bundled().record], key=lambda record: record.modified_at, reverse=True)

    def local_models(self) -> LocalModels:
        """Models on this machine that belong to other programs and could be added where they lie."""
        return local_models(self._settings.places)

    def pull(self, reference: str, on_progress: ProgressCallback, cancelled: threading.Event) -> ModelRecord:
        """Downloads what is missing of a model and registers it, complete or not at all. Blocks; call it in a thread.

        Raises PullError, DiskFull or PullCancelled, after which the same call resumes, ModelNameError for a reference
        that is no repository's, and ModelFormatError for a file that the engine could not load.
        """
        name = parse_name(reference)
        if name.key == BUNDLED_NAME:
            on_progress(PullProgress("success"))
            return self._bundled().record
        fetched: list[Path] = []

        def claim(claimed: ModelName, blobs: tuple[Path, ...]) -> None:
            fetched.extend(blobs)
            self._catalogue.note_downloads(claimed.key, blobs)

        with self._holding() as hold:
            pulled = Pull(self._settings, on_progress, cancelled, claim, hold).run(reference)
            on_progress(PullProgress("registering"))
            try:
                record = self._register(pulled.name, pulled.parts, "hub" if pulled.is_from_hub else "file", reference)
            except ModelFormatError:
                for blob in fetched:
                    discard(blob)
                self._catalogue.forget_downloads(fetched)
                raise
        on_progress(PullProgress("success"))
        return record

    def add_file(self, path: Path, name: str | None = None) -> ModelRecord:
        """Registers a GGUF, a set of which `path` is any part, or a directory's only model, where it lies.

        Raises ModelNotFound, ModelFormatError, or ModelNameError for a bad or reserved name.
        """
        parts = parts_of(path)
        split = parse_split_name(parts[0].name)
        chosen = parse_name(name or name_from_stem(split.stem if split else parts[0].stem))
        return self._register(chosen, parts, "file", str(path))

    def copy(self, source: str, destination: str) -> ModelRecord:
        """Gives a model another name; its files are shared. Raises ModelNotFound, or ModelNameError."""
        target = _unreserved(parse_name(destination))
        with self._changing:
            entry = self._checked(self._find_or_raise(source))
            record = replace(entry.record, name=str(target), modified_at=_now())
            self._catalogue.put(target.key, Entry(record, entry.stamps))
        return record

    def chat_template(self, record: ModelRecord) -> str:
        """The Jinja template inside the model's first file, or "". Raises ModelFormatError if the file is not sound."""
        try:
            return read_header(record.parts[0]).text("tokenizer.chat_template")
        except (HeaderError, OSError) as error:
            raise ModelFormatError(f"cannot read {record.parts[0]}: {error}") from error

    def remove(self, name: str) -> int:
        """Forgets a name, or an unfinished pull of it, and deletes what was downloaded for it and no other name uses.

        ``org/repo`` stands for its only quantisation here. Files of other programs stay. Returns the bytes freed.
        Raises ModelNotFound, ModelNameError if several are meant, and ModelError for the bundled model or for one that
        is being pulled.
        """
        parsed = parse_name(name)
        if parsed.key == BUNDLED_NAME:
            raise ModelError(f"{BUNDLED_NAME} ships with the program and cannot be removed")
        with self._changing:
            key = self._only_key(parsed)
            entry = self._catalogue.get(key)
            unused = self._downloads_only_of(key, entry)
            if entry is None and not unused:
                raise self._not_found(parsed)
            try:
                return self._delete(key, unused)
            except TimeoutError as error:
                hint = "Stop the pull first."
                raise ModelError(f"{name} is being pulled and cannot be removed", hint=hint) from error

    def leftovers(self, in_use: Collection[Path] = ()) -> Leftovers:
        """What `prune` would delete."""
        return self._sort_out(in_use, lambda left: True)

    def prune(self, only: Collection[Path] | None = None, in_use: Collection[Path] = ()) -> Leftovers:
        """Deletes downloads that no registered model needs, and tells which; nothing of a pull that runs.

        only     of these paths, as `leftovers` tells them; None for all
        in_use   further files that have to stay, such as those of models in memory

        Files of other programs stay. Raises ModelError for a file that cannot be deleted.
        """

        def act(left: Leftover) -> bool:
            wanted = only is None or left.path in only
            if wanted:
                delete(left)
            return wanted

        with self._changing:
            deleted = self._sort_out(in_use, act)
            self._catalogue.forget_downloads(gone_with(deleted, self._catalogue.downloads()))
        return deleted

    def _sort_out(self, in_use: Collection[Path], act: Act) -> Leftovers:
        with self._changing:
            entries = self._catalogue.entries()
            parts = [part for entry in entries for part in entry.record.parts]
            keys = frozenset(parse_name(entry.record.name).key for entry in entries)
            needs = Needs(resolved([*parts, *in_use]), keys, frozenset(+self._held))
            return sort_out(self._catalogue.downloads(), needs, act)

    @contextmanager
    def _holding(self) -> Iterator[Callable[[tuple[Path, ...]], None]]:
        """Keeps the blobs that are told inside from being pruned until the end."""
        held: list[str] = []

        def hold(blobs: tuple[Path, ...]) -> None:
            with self._changing:
                fresh = resolved(blobs)
                held.extend(fresh)
                self._held.update(fresh)

        try:
            yield hold
        finally:
            with self._changing:
                self._held.subtract(held)

    def _only_key(self, name: ModelName) -> str:
        """The key of the one model, registered or begun, that `name` can mean; its own if there is none."""
        names = {parse_name(entry.record.name).key: entry.record.name for entry in self._catalogue.entries()}
        known = {key: key for key in self._catalogue.downloads().values()} | names
        if name.key in known or name.tag is not None:
            return name.key
        meant = [key for key in known if key.startswith(f"{name.key}:")]
        if len(meant) > 1:
            several = " or ".join(known[key] for key in sorted(meant))
            raise ModelNameError(f"{name} stands for several models", hint=f"Name one of them: {several}")
        return meant[0] if meant else name.key

    def _delete(self, key: str, unused: Sequence[Path]) -> int:
        with ExitStack() as locks:
            for blob in unused:
                locks.enter_context(sole_writer(blob, LOCK_S))
            self._catalogue.delete(key)
            freed = sum(discard(blob) for blob in unused)
            self._catalogue.forget_downloads(unused)
            return freed

    def _register(self, name: ModelName, parts: tuple[Path, ...], source: Source, reference: str) -> ModelRecord:
        _unreserved(name)
        stamps = tuple(PartStamp.of(part) for part in parts)
        description = describe(parts)
        record = ModelRecord(
            name=str(name),
            digest=description.digest,
            parts=parts,
            size_bytes=description.size_bytes,
            modified_at=_now(),
            source=source,
            shape=description.shape,
            reference=reference,
        )
        with self._changing:
            # What was no model's until now may have been pruned while it was read.
            if missing := [part for part in parts if not part.exists()]:
                raise _vanished(record, missing)
            self._catalogue.put(name.key, Entry(record, stamps))
        return record

    def _bundled(self) -> Entry:
        """The bundled model, whose header is read once."""
        path = bundled_file()
        stamp, entry = PartStamp.of(path), self._bundled_entry
        if entry is None or entry.stamps != (stamp,):
            self._bundled_entry = entry = _read_bundled(path, stamp)
        return entry

    def _find_or_raise(self, name: str) -> Entry:
        parsed = parse_name(name)
        entry = self._find(parsed)
        if entry is None:
            raise self._not_found(parsed)
        return entry

    def _find(self, name: ModelName) -> Entry | None:
        if name.key == BUNDLED_NAME:
            return self._bundled()
        exact = self._catalogue.get(name.key)
        if exact is not None or name.repository is None or name.tag is not None:
            return exact
        quantised = [e for e in self._catalogue.entries() if e.record.name.lower().startswith(f"{name.key}:")]
        return min(quantised, key=_preference, default=None)

    def _not_found(self, name: ModelName) -> ModelNotFound:
        likely = suggest(str(name), (record.name for record in self.list()))
        if likely:
            hint = f"Did you mean {' or '.join(likely)}?"
        elif name.repository:
            hint = f"Fetch it with: ostinato pull {name}"
        else:
            hint = "`ostinato list` shows what is here; `ostinato pull org/repo` fetches more."
        return ModelNotFound(f"model {str(name)!r} not found", hint=hint)

    def _checked(self, entry: Entry) -> Entry:
        """The entry, read again if its files are not those that were registered. Raises if they are gone or damaged."""
        record = entry.record
        if record.source == "bundled":
            # Another name for it follows the package wherever an upgrade puts it.
            record = replace(record, parts=(bundled_file(),))
            entry = replace(entry, record=record)
        if missing := [part for part in record.parts if not part.exists()]:
            raise _vanished(record, missing)
        stamps = tuple(PartStamp.of(part) for part in record.parts)
        if stamps == entry.stamps:
            return entry
        found = describe(record.parts)
        fresh = replace(record, digest=found.digest, size_bytes=found.size_bytes, shape=found.shape, modified_at=_now())
        renewed = Entry(fresh, stamps)
        with self._changing:
            self._catalogue.put(parse_name(record.name).key, renewed)
        return renewed

    def _downloads_only_of(self, key: str, entry: Entry | None) -> tuple[Path, ...]:
        """Files this program fetched that only the name `key` uses: by the entry's parts, or begun for the name."""
        others = {
            os.path.realpath(part)
            for other in self._catalogue.entries()
            if parse_name(other.record.name).key != key
            for part in other.record.parts
        }
        own = {os.path.realpath(part) for part in entry.record.parts} if entry else set()
        return tuple(
            blob
            for blob, begun_for in self._catalogue.downloads().items()
            if (begun_for == key or os.path.realpath(blob) in own) and os.path.realpath(blob) not in others
        )


def _read_bundled(path: Path, stamp: PartStamp) -> Entry:
    description = describe((path,))
    record = ModelRecord(
        name=BUNDLED_NAME,
        digest=description.digest,
        parts=(path,),
        size_bytes=description.size_bytes,
        modified_at=datetime.fromtimestamp(stamp.mtime_ns / 1e9, timezone.utc),
        source="bundled",
        shape=description.shape,
    )
    return Entry(record, (stamp,))


def _unreserved(name: ModelName) -> ModelName:
    if name.key == BUNDLED_NAME:
        raise ModelNameError(f"{BUNDLED_NAME} is the bundled model's name", hint="Choose another name.")
    return name


def _preference(entry: Entry) -> tuple[int, str]:
    tag = (parse_name(entry.record.name).tag or "").upper()
    rank = QUANT_PREFERENCE.index(tag) if tag in QUANT_PREFERENCE else len(QUANT_PREFERENCE)
    return rank, tag


def _vanished(record: ModelRecord, missing: Sequence[Path]) -> ModelNotFound | ModelFormatError:
    names = ", ".join(str(part) for part in missing)
    fetch = f"Fetch it again with: ostinato pull {record.name}" if record.source == "hub" else "Put it back"
    hint = f"{fetch}, or forget the name with: ostinato rm {record.name}"
    if len(missing) == len(record.parts):
        return ModelNotFound(f"the files of {record.name} are gone: {names}", hint=hint)
    return ModelFormatError(f"{record.name} lacks {len(missing)} of {len(record.parts)} parts: {names}", hint=hint)


def _now() -> datetime:
    return datetime.now(timezone.utc)
