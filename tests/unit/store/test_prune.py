from __future__ import annotations

import hashlib
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinatod.errors import ModelError, ModelNotFound, OstinatoError, PullCancelled, PullError
from ostinatod.store import ModelStore, model_store
from ostinatod.store.catalogue import Catalogue
from ostinatod.store.hub_cache import partial_of, sole_writer
from ostinatod.store.leftovers import Leftovers
from ostinatod.store.local_models import LocalPlaces
from ostinatod.store.pull import PullSettings
from ostinatod.store.records import PullProgress
from tests.fakes import gguf
from tests.fakes.hub import FakeHub, Fault, running_hub, wait_until
from tests.unit.store.conftest import QUICK

REPO = "org/repo"
FILE = "m-Q4_K_M.gguf"
KEY = "org/repo:q4_k_m"


def _pull(store: ModelStore, reference: str = REPO) -> None:
    store.pull(reference, lambda step: None, threading.Event())


def _upload(hub: FakeHub, root: Path, *, seed: int = 0, rows: int = 32, file: str = FILE, repo: str = REPO) -> bytes:
    content = gguf.write_model(root / "upload.gguf", seed=seed, rows=rows).read_bytes()
    hub.add(repo, file, content)
    return content


def _break_off(store: ModelStore, hub: FakeHub, root: Path) -> int:
    """A pull that gave up; the bytes that it left."""
    _upload(hub, root, rows=4096)

    def stop(step: PullProgress) -> None:
        if step.completed_bytes:
            cancelled.set()

    cancelled = threading.Event()
    with pytest.raises(PullCancelled):
        store.pull(REPO, stop, cancelled)
    (partial,) = (root / "hub").rglob("*.incomplete")
    return partial.stat().st_size


def _told(found: Leftovers) -> list[tuple[str, str, int]]:
    return [(left.kind, left.model, left.size_bytes) for left in found.entries]


def test_an_unfinished_download_is_listed_and_then_deleted_with_everything_around_it(
    store: ModelStore, hub: FakeHub, tmp_path: Path
) -> None:
    size = _break_off(store, hub, tmp_path)
    assert _told(store.leftovers()) == [("unfinished", KEY, size)]
    assert list((tmp_path / "hub").rglob("*.incomplete"))
    assert _told(store.prune()) == [("unfinished", KEY, size)]
    assert not (tmp_path / "hub" / "models--org--repo").exists()
    assert store.leftovers() == Leftovers((), ())
    with pytest.raises(ModelNotFound):
        store.remove(REPO)


def test_parts_that_an_unfinished_pull_completed_are_unfinished_too(
    store: ModelStore, hub: FakeHub, tmp_path: Path
) -> None:
    paths = gguf.write_split(tmp_path / "upload", "big-Q8_0", 3, rows=256)
    for path in paths:
        hub.add(REPO, path.name, path.read_bytes())
    hub.faults[paths[2].name] = Fault(status=403)
    with pytest.raises(PullError):
        _pull(store)
    found = store.leftovers()
    complete = [left for left in found.entries if left.size_bytes]
    assert {left.kind for left in found.entries} == {"unfinished"}
    assert sorted(left.size_bytes for left in complete) == sorted(path.stat().st_size for path in paths[:2])
    store.prune()
    assert not (tmp_path / "hub" / "models--org--repo").exists()


def test_a_pull_after_a_prune_begins_anew(store: ModelStore, hub: FakeHub, tmp_path: Path) -> None:
    _break_off(store, hub, tmp_path)
    store.prune()
    _pull(store)
    assert store.resolve(REPO).parts[0].exists()
    assert store.prune() == Leftovers((), ())
    assert store.remove(REPO) > 0


def test_the_version_before_is_deleted_and_the_one_in_use_stays(
    store: ModelStore, hub: FakeHub, tmp_path: Path
) -> None:
    old = _upload(hub, tmp_path, seed=1)
    _pull(store)
    _upload(hub, tmp_path, seed=2)
    _pull(store)
    assert _told(store.prune()) == [("superseded", KEY, len(old))]
    assert store.resolve(REPO).parts[0].exists()


def test_the_version_before_stays_while_it_is_in_memory(store: ModelStore, hub: FakeHub, tmp_path: Path) -> None:
    _upload(hub, tmp_path, seed=1)
    _pull(store)
    running = store.resolve(REPO).parts
    blob = running[0].resolve()
    _upload(hub, tmp_path, seed=2)
    _pull(store)
    assert store.leftovers([blob]).entries == store.prune(in_use=[blob]).entries == ()
    assert blob.exists()


def test_what_a_remove_left_that_did_not_get_to_its_end_is_unused(
    store: ModelStore, hub: FakeHub, tmp_path: Path
) -> None:
    content = _upload(hub, tmp_path)
    _pull(store)
    Catalogue(tmp_path / "db" / "ostinato.db").delete(KEY)
    assert _told(store.prune()) == [("unused", KEY, len(content))]


def test_files_of_other_programs_stay(store: ModelStore, hub: FakeHub, tmp_path: Path) -> None:
    _break_off(store, hub, tmp_path)
    blobs = tmp_path / "hub" / "models--org--repo" / "blobs"
    theirs = [blobs / ("a" * 64), blobs / ("b" * 64 + ".incomplete"), blobs.parent / "snapshots" / ("c" * 40) / "x"]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"theirs")
    assert len(store.prune().entries) == 1
    assert all(path.read_bytes() == b"theirs" for path in theirs)


def test_only_what_was_listed_is_deleted(store: ModelStore, hub: FakeHub, tmp_path: Path) -> None:
    _break_off(store, hub, tmp_path)
    (left,) = store.leftovers().entries
    assert store.prune([tmp_path / "hub", left.path.with_name("other")]).entries == ()
    assert left.path.exists()
    assert store.prune([left.path]).entries == (left,)
    assert not left.path.exists()


def test_a_download_that_another_name_uses_stays(store: ModelStore, hub: FakeHub, tmp_path: Path) -> None:
    _upload(hub, tmp_path)
    _pull(store)
    store.copy(REPO, "mine")
    store.remove(REPO)
    assert store.prune() == Leftovers((), ())
    assert store.resolve("mine").parts[0].exists()


def test_a_blob_whose_link_is_gone_stays_for_the_name_that_it_was_fetched_for(
    store: ModelStore, hub: FakeHub, tmp_path: Path
) -> None:
    content = _upload(hub, tmp_path)
    _pull(store)
    store.copy(REPO, "mine")
    store.remove(REPO)
    store.resolve("mine").parts[0].unlink()
    assert store.prune() == Leftovers((), ())
    _pull(store)
    assert hub.served[FILE] == len(content)


def test_a_pull_that_runs_is_left_alone_and_named(store: ModelStore, hub: FakeHub, tmp_path: Path) -> None:
    _upload(hub, tmp_path, rows=4096)
    hub.faults[FILE] = Fault(bytes_per_s=1_500_000)
    thread = threading.Thread(target=lambda: _pull(store))
    thread.start()
    wait_until(lambda: any(path.stat().st_size for path in (tmp_path / "hub").rglob("*.incomplete")))
    told = [store.leftovers(), store.prune()]
    thread.join()
    assert told == [Leftovers((), (KEY,))] * 2
    assert store.resolve(REPO).parts[0].exists()


def test_a_part_that_is_complete_is_left_alone_until_its_pull_has_ended(
    store: ModelStore, hub: FakeHub, tmp_path: Path
) -> None:
    """Between two parts, and between the last one and the registration, nothing is locked."""
    paths = gguf.write_split(tmp_path / "upload", "big-Q8_0", 2, rows=256)
    for path in paths:
        hub.add(REPO, path.name, path.read_bytes())
    told: list[Leftovers] = []

    def prune_in_between(step: PullProgress) -> None:
        if step.status == "registering":
            told.append(store.prune())

    store.pull(REPO, prune_in_between, threading.Event())
    assert told == [Leftovers((), ("org/repo:q8_0",))]
    assert all(part.exists() for part in store.resolve(REPO).parts)


def test_what_another_name_needs_of_an_unfinished_pull_stays_while_it_is_pulled(
    store: ModelStore, hub: FakeHub, tmp_path: Path
) -> None:
    """The same file in two repositories is two blobs; in one, under two names, it is one."""
    content = _upload(hub, tmp_path)
    _pull(store)
    Catalogue(tmp_path / "db" / "ostinato.db").delete(KEY)
    hub.files[REPO] = {"m-Q8_0.gguf": content}
    told: list[Leftovers] = []

    def prune_in_between(step: PullProgress) -> None:
        if step.status == "registering":
            told.append(store.prune())

    record = store.pull(REPO, prune_in_between, threading.Event())
    assert (record.name, told) == ("org/repo:Q8_0", [Leftovers((), (KEY,))])
    assert store.resolve(REPO).parts[0].exists()


def test_what_another_process_writes_is_left_alone(store: ModelStore, hub: FakeHub, tmp_path: Path) -> None:
    _break_off(store, hub, tmp_path)
    (left,) = store.leftovers().entries
    with sole_writer(left.path.with_suffix(""), 1.0):
        assert store.prune() == Leftovers((), (KEY,))
    assert left.path.exists()


def test_a_disk_that_is_not_mounted_loses_nothing(store: ModelStore, hub: FakeHub, tmp_path: Path) -> None:
    size = _break_off(store, hub, tmp_path)
    away = (tmp_path / "hub").rename(tmp_path / "away")
    assert store.prune() == Leftovers((), ())
    assert not (tmp_path / "hub").exists()
    away.rename(tmp_path / "hub")
    assert _told(store.leftovers()) == [("unfinished", KEY, size)]


def test_a_file_that_cannot_be_deleted_is_told(
    store: ModelStore, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _break_off(store, hub, tmp_path)

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(ModelError, match=r"cannot delete .*\.incomplete: .*Permission denied"):
            store.prune()
    assert len(store.prune().entries) == 1


def test_a_file_that_was_pruned_while_it_was_read_is_not_registered(
    store: ModelStore, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _upload(hub, tmp_path)
    _pull(store)
    part = store.resolve(REPO).parts[0]
    Catalogue(tmp_path / "db" / "ostinato.db").delete(KEY)
    describe = model_store.describe

    pruned: list[Leftovers] = []

    def describe_and_lose(parts: tuple[Path, ...]) -> object:
        found = describe(parts)
        pruned.append(store.prune())
        return found

    with monkeypatch.context() as patch:
        patch.setattr(model_store, "describe", describe_and_lose)
        with pytest.raises(ModelNotFound):
            store.add_file(part, "mine")
    assert _told(pruned[0])[0][:2] == ("unused", KEY)
    assert [record.name for record in store.list()] == ["tiny"]


# -- whatever happened before, a registered model keeps its files -----------------------------------------------------

NAMES = ("org/a:Q4_K_M", "org/a:Q8_0", "org/b:Q4_K_M")
FAULTS = (None, Fault(status=403), Fault(corrupt=True))
EVENTS = st.one_of(
    st.tuples(st.just("pull"), st.sampled_from(NAMES), st.integers(0, 1), st.sampled_from(range(len(FAULTS)))),
    st.tuples(st.just("copy"), st.sampled_from(NAMES), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("adopt"), st.sampled_from(NAMES), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("remove"), st.sampled_from(NAMES), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("lose the row"), st.sampled_from(NAMES), st.just(0), st.just(0)),
    st.tuples(st.just("prune"), st.just(NAMES[0]), st.just(0), st.just(0)),
)


@dataclass
class Home:
    """A user's store, below a folder of its own."""

    root: Path
    hub: FakeHub
    store: ModelStore = field(init=False)

    def __post_init__(self) -> None:
        settings_ = PullSettings(self.hub.endpoint, LocalPlaces(self.root / "hub"), QUICK)
        self.store = ModelStore(self.root / "o.db", self.root / "hub", self.hub.endpoint, settings=settings_)

    def happen(self, what: str, name: str, number: int, fault: int) -> None:
        repository, _, quant = name.partition(":")
        file = f"m-{quant}.gguf"
        if what == "pull":
            # The two quantisations of one repository share a file where their numbers are equal.
            _upload(self.hub, self.root, seed=number, file=file, repo=repository)
            self.hub.faults = {file: chosen} if (chosen := FAULTS[fault]) else {}
            _pull(self.store, name)
        elif what == "copy":
            self.store.copy(name, f"copy{number}")
        elif what == "adopt":
            self.store.add_file(self.store.resolve(name).parts[0], f"copy{number}")
        elif what == "remove":
            self.store.remove(name if number == 2 else f"copy{number}")
        elif what == "lose the row":
            Catalogue(self.root / "o.db").delete(name.lower())
        else:
            self.store.prune()

    def contents(self) -> dict[str, str]:
        """Every registered model and what is in its files."""
        return {
            record.name: hashlib.sha256(b"".join(part.read_bytes() for part in record.parts)).hexdigest()
            for record in self.store.list()
        }


@settings(max_examples=20, deadline=None)
@given(st.lists(EVENTS, max_size=8))
def test_a_prune_never_takes_a_file_of_a_registered_model_nor_one_of_another_program(
    events: list[tuple[str, str, int, int]],
) -> None:
    with tempfile.TemporaryDirectory() as directory, running_hub() as hub:
        home = Home(Path(directory), hub)
        theirs = home.root / "hub" / "models--org--a" / "blobs" / ("d" * 64)
        theirs.parent.mkdir(parents=True)
        theirs.write_bytes(b"theirs")
        for event in events:
            with suppress(OstinatoError):
                home.happen(*event)
        before = home.contents()
        home.store.prune()
        assert home.contents() == before
        assert theirs.read_bytes() == b"theirs"
        assert home.store.leftovers() == Leftovers((), ())
        used = {part.resolve() for record in home.store.list() for part in record.parts}
        blobs = {path.resolve() for path in (home.root / "hub").glob("models--*/blobs/*")}
        assert blobs - used == {theirs.resolve()}


def test_every_leftover_is_told_by_the_path_that_exists(store: ModelStore, hub: FakeHub, tmp_path: Path) -> None:
    _break_off(store, hub, tmp_path)
    (left,) = store.leftovers().entries
    assert left.path.is_file()
    assert left.path == partial_of(left.path.with_suffix(""))
