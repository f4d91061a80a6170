from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ostinatod.errors import ModelError, ModelFormatError, ModelNameError, ModelNotFound, OstinatoError
from ostinatod.models import bundled_file
from ostinatod.store import ModelStore
from ostinatod.store.records import ModelRecord
from tests.fakes import gguf
from tests.fakes.hub import FakeHub

REPO = "org/repo"


@pytest.fixture
def quiet(tmp_path: Path) -> ModelStore:
    """A store that never reaches a hub."""
    return ModelStore(tmp_path / "db" / "ostinato.db", tmp_path / "hub", "https://hub.invalid")


def _pull(store: ModelStore, reference: str = REPO) -> ModelRecord:
    return store.pull(reference, lambda step: None, threading.Event())


@pytest.mark.parametrize("name", ["tiny", "Tiny", "tiny:latest"])
def test_bundled_model_resolves_in_an_empty_store(quiet: ModelStore, name: str) -> None:
    record = quiet.resolve(name)
    assert (record.name, record.source, record.parts) == ("tiny", "bundled", (bundled_file(),))
    assert record.digest.startswith("c6448321bc06")
    assert (record.shape.n_layers, record.shape.n_experts, record.shape.k) == (8, 64, 8)


def test_bundled_model_is_always_listed(quiet: ModelStore) -> None:
    assert [record.name for record in quiet.list()] == ["tiny"]


def test_bundled_model_cannot_be_removed(quiet: ModelStore) -> None:
    with pytest.raises(ModelError, match="ships with the program"):
        quiet.remove("tiny")


def test_bundled_name_is_reserved(quiet: ModelStore, tmp_path: Path) -> None:
    path = gguf.write_model(tmp_path / "tiny.gguf")
    with pytest.raises(ModelNameError, match="bundled"):
        quiet.add_file(path)
    quiet.add_file(path, "mine")
    with pytest.raises(ModelNameError, match="bundled"):
        quiet.copy("mine", "tiny")


def test_added_file_is_registered_where_it_lies(quiet: ModelStore, tmp_path: Path) -> None:
    path = gguf.write_model(tmp_path / "My model (v2).gguf")
    record = quiet.add_file(path)
    assert (record.name, record.parts, record.source) == ("My-model-v2-", (path,), "file")
    assert record.reference == str(path)
    assert quiet.resolve("my-MODEL-v2-") == record


def test_added_set_is_named_after_its_stem(quiet: ModelStore, tmp_path: Path) -> None:
    paths = gguf.write_split(tmp_path / "big", "big-Q4", 2)
    for path in (paths[1], tmp_path / "big"):
        record = quiet.add_file(path)
        assert (record.name, record.parts) == ("big-Q4", tuple(paths))


def test_unsound_file_is_not_registered(quiet: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFormatError, match=r"bad\.gguf"):
        quiet.add_file(tmp_path / "bad.gguf")
    assert [record.name for record in quiet.list()] == ["tiny"]


def test_unknown_name_suggests_what_is_meant(quiet: ModelStore, tmp_path: Path) -> None:
    quiet.add_file(gguf.write_model(tmp_path / "m.gguf"), "org/Qwen3-30B-A3B-GGUF:Q4_K_M")
    with pytest.raises(ModelNotFound, match="model 'qwen3-30b-a3b-gguf' not found") as caught:
        quiet.resolve("qwen3-30b-a3b-gguf")
    assert caught.value.hint == "Did you mean org/Qwen3-30B-A3B-GGUF:Q4_K_M?"
    with pytest.raises(ModelNotFound) as caught:
        quiet.resolve("someone/else")
    assert caught.value.hint == "Fetch it with: ostinato pull someone/else"


def test_repository_without_a_tag_stands_for_the_preferred_quantisation(quiet: ModelStore, tmp_path: Path) -> None:
    path = gguf.write_model(tmp_path / "m.gguf")
    for tag in ("Q2_K", "MXFP4", "Q8_0"):
        quiet.add_file(path, f"org/repo:{tag}")
    assert quiet.resolve("Org/Repo").name == "org/repo:MXFP4"
    quiet.remove("org/repo:MXFP4")
    assert quiet.resolve("Org/Repo").name == "org/repo:Q2_K"


def test_removing_a_repository_without_a_tag_needs_a_single_quantisation(quiet: ModelStore, tmp_path: Path) -> None:
    path = gguf.write_model(tmp_path / "m.gguf")
    quiet.add_file(path, "org/repo:Q2_K")
    quiet.add_file(path, "org/repo:Q8_0")
    with pytest.raises(ModelNameError, match="stands for several") as caught:
        quiet.remove("org/repo")
    assert caught.value.hint == "Name one of them: org/repo:Q2_K or org/repo:Q8_0"
    quiet.remove("org/repo:Q8_0")
    quiet.remove("org/repo")
    assert [record.name for record in quiet.list()] == ["tiny"]


def test_copy_shares_files_and_digest(quiet: ModelStore, tmp_path: Path) -> None:
    record = quiet.add_file(gguf.write_model(tmp_path / "m.gguf"), "mine")
    copied = quiet.copy("mine", "gpt-4o")
    assert (copied.name, copied.parts, copied.digest) == ("gpt-4o", record.parts, record.digest)
    assert quiet.resolve("gpt-4o") == copied


def test_copy_of_the_bundled_model_is_usable_and_removable(quiet: ModelStore) -> None:
    quiet.copy("tiny", "gpt-4o")
    assert quiet.resolve("gpt-4o").parts == (bundled_file(),)
    assert quiet.remove("gpt-4o") == 0
    assert bundled_file().exists()


def test_copy_of_nothing_is_refused(quiet: ModelStore) -> None:
    with pytest.raises(ModelNotFound):
        quiet.copy("nothing", "mine")


def test_removed_file_of_the_user_stays_on_disk(quiet: ModelStore, tmp_path: Path) -> None:
    path = gguf.write_model(tmp_path / "m.gguf")
    quiet.add_file(path, "mine")
    assert quiet.remove("mine") == 0
    assert path.exists()
    with pytest.raises(ModelNotFound):
        quiet.resolve("mine")


def test_vanished_file_is_told_with_what_to_do(quiet: ModelStore, tmp_path: Path) -> None:
    path = gguf.write_model(tmp_path / "m.gguf")
    quiet.add_file(path, "mine")
    path.unlink()
    with pytest.raises(ModelNotFound, match="files of mine are gone") as caught:
        quiet.resolve("mine")
    assert caught.value.hint == "Put it back, or forget the name with: ostinato rm mine"
    assert quiet.remove("mine") == 0


def test_vanished_part_is_named(quiet: ModelStore, tmp_path: Path) -> None:
    paths = gguf.write_split(tmp_path, "big", 3)
    quiet.add_file(paths[0], "mine")
    paths[1].unlink()
    with pytest.raises(ModelFormatError, match=r"lacks 1 of 3 parts: .*big-00002-of-00003\.gguf"):
        quiet.resolve("mine")


def test_replaced_file_is_read_again(quiet: ModelStore, tmp_path: Path) -> None:
    path = gguf.write_model(tmp_path / "m.gguf")
    old = quiet.add_file(path, "mine")
    gguf.write_model(path, rows=64)
    new = quiet.resolve("mine")
    assert new.digest != old.digest
    assert new.size_bytes == path.stat().st_size
    assert quiet.resolve("mine") == new


def test_replaced_file_that_is_unsound_is_refused(quiet: ModelStore, tmp_path: Path) -> None:
    path = gguf.write_model(tmp_path / "m.gguf")
    quiet.add_file(path, "mine")
    path.write_bytes(b"something else")
    with pytest.raises(ModelFormatError, match="magic"):
        quiet.resolve("mine")


def test_newest_registration_is_listed_first(quiet: ModelStore, tmp_path: Path) -> None:
    path = gguf.write_model(tmp_path / "m.gguf")
    for name in ("one", "two"):
        quiet.add_file(path, name)
    assert [record.name for record in quiet.list()] == ["two", "one", "tiny"]


def test_removed_download_is_freed_with_everything_around_it(store: ModelStore, hub: FakeHub, tmp_path: Path) -> None:
    content = gguf.write_model(tmp_path / "m.gguf").read_bytes()
    hub.add(REPO, "m-Q4_K_M.gguf", content)
    _pull(store)
    assert store.remove(REPO) == len(content)
    assert not (tmp_path / "hub" / "models--org--repo").exists()
    _pull(store)
    assert hub.served["m-Q4_K_M.gguf"] == 2 * len(content)


def test_download_that_another_name_uses_is_kept_until_that_goes_too(
    store: ModelStore, hub: FakeHub, tmp_path: Path
) -> None:
    content = gguf.write_model(tmp_path / "m.gguf").read_bytes()
    hub.add(REPO, "m-Q4_K_M.gguf", content)
    _pull(store)
    store.copy(REPO, "mine")
    assert store.remove(REPO) == 0
    assert store.resolve("mine").parts[0].exists()
    assert store.remove("mine") == len(content)


def test_removing_one_quantisation_keeps_the_other(store: ModelStore, hub: FakeHub, tmp_path: Path) -> None:
    for seed, quant in enumerate(("Q4_K_M", "Q8_0")):
        content = gguf.write_model(tmp_path / "m.gguf", seed=seed).read_bytes()
        hub.add(REPO, f"m-{quant}.gguf", content)
        _pull(store, f"{REPO}:{quant}")
    assert store.remove(f"{REPO}:Q8_0") > 0
    assert store.resolve(REPO).parts[0].exists()


def test_store_may_be_used_from_many_threads(quiet: ModelStore, tmp_path: Path) -> None:
    path = gguf.write_model(tmp_path / "m.gguf")
    errors: list[Exception] = []

    def use(number: int) -> None:
        try:
            for index in range(3):
                name = f"m{number}-{index}"
                quiet.add_file(path, name)
                quiet.copy(name, f"{name}-copy")
                quiet.resolve(name)
                quiet.list()
                quiet.remove(name)
        except (OstinatoError, OSError) as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(quiet.list()) == 1 + 12


def test_the_chat_template_of_the_bundled_model_is_told(quiet: ModelStore) -> None:
    assert "<|im_start|>" in quiet.chat_template(quiet.resolve("tiny"))
