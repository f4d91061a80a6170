from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path

import pytest

from ostinatod.store import ModelStore
from ostinatod.store.local_models import LocalPlaces, local_models
from ostinatod.store.records import ModelRecord
from tests.fakes import gguf
from tests.fakes.hub import COMMIT, FakeHub

REPO = "org/repo"


def _pull(store: ModelStore, reference: str = REPO) -> ModelRecord:
    return store.pull(reference, lambda step: None, threading.Event())


def _ollama(root: Path, content: bytes, name: str = "registry.ollama.ai/library/tiny/latest") -> Path:
    digest = hashlib.sha256(content).hexdigest()
    blob = root / "blobs" / f"sha256-{digest}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "0" * 64},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"},
    ]
    manifest = root / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"layers": layers}))
    return blob


def test_models_of_other_programs_are_listed(places: LocalPlaces, tmp_path: Path) -> None:
    snapshot = places.hub_cache / "models--org--cached" / "snapshots" / COMMIT
    cached = gguf.write_model(snapshot / "c-Q8_0.gguf")
    split = gguf.write_split(places.lm_studio[0] / "pub" / "big", "big", 2)
    blob = _ollama(places.ollama[0], cached.read_bytes())
    _ollama(places.ollama[0], b"x", "hf.co/org/repo/Q4")
    found = local_models(places)
    assert [(model.origin, model.name, model.parts) for model in found[:3]] == [
        ("hub cache", "org/cached", (cached,)),
        ("LM Studio", "pub/big", tuple(split)),
        ("Ollama", "hf.co/org/repo:Q4", (blob.with_name("sha256-" + hashlib.sha256(b"x").hexdigest()),)),
    ]
    assert (found[3].name, found[3].parts, found[3].size_bytes) == ("tiny:latest", (blob,), cached.stat().st_size)


def test_incomplete_sets_and_companions_are_not_listed(places: LocalPlaces) -> None:
    split = gguf.write_split(places.lm_studio[0] / "pub" / "big", "big", 2)
    gguf.write(split[0].with_name("mmproj-F16.gguf"), {})
    split[1].unlink()
    assert local_models(places) == []


@pytest.mark.parametrize(
    "manifest",
    [
        b"not json",
        b"[]",
        b'{"layers": 3}',
        b'{"layers": [3]}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../etc/passwd"}]}',
    ],
)
def test_malformed_manifest_is_passed_over(places: LocalPlaces, manifest: bytes) -> None:
    file = places.ollama[0] / "manifests" / "registry.ollama.ai" / "library" / "evil" / "latest"
    file.parent.mkdir(parents=True)
    file.write_bytes(manifest)
    assert local_models(places) == []


def test_no_place_needs_to_exist(tmp_path: Path) -> None:
    none = LocalPlaces(tmp_path / "a", (tmp_path / "b",), (tmp_path / "c",))
    assert local_models(none) == []


def test_usual_places_are_below_the_home_directory(tmp_path: Path) -> None:
    model = gguf.write_model(tmp_path / ".lmstudio" / "models" / "pub" / "m" / "m.gguf")
    assert [found.parts for found in local_models(LocalPlaces.below(tmp_path, tmp_path / "hub"))] == [(model,)]


def test_lm_studio_copy_is_used_where_it_lies(store: ModelStore, places: LocalPlaces, hub: FakeHub) -> None:
    model = gguf.write_model(places.lm_studio[0] / "org" / "repo" / "m-Q4_K_M.gguf")
    hub.add(REPO, "m-Q4_K_M.gguf", model.read_bytes())
    record = _pull(store)
    assert (record.name, record.parts, record.source) == ("org/repo:Q4_K_M", (model,), "file")
    assert not hub.served
    assert store.remove(REPO) == 0
    assert model.exists()


def test_damaged_copy_is_not_used(store: ModelStore, places: LocalPlaces, hub: FakeHub) -> None:
    model = gguf.write_model(places.lm_studio[0] / "org" / "repo" / "m-Q4_K_M.gguf")
    content = model.read_bytes()
    hub.add(REPO, "m-Q4_K_M.gguf", content)
    model.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    record = _pull(store)
    assert record.source == "hub"
    assert record.parts[0].read_bytes() == content


def test_ollama_blob_is_used_by_its_checksum(
    store: ModelStore, places: LocalPlaces, hub: FakeHub, tmp_path: Path
) -> None:
    content = gguf.write_model(tmp_path / "m.gguf").read_bytes()
    blob = _ollama(places.ollama[0], content)
    hub.add(REPO, "m-Q4_K_M.gguf", content)
    assert _pull(store).parts == (blob,)
    assert not hub.served


def test_file_that_another_tool_put_into_the_hub_cache_is_used_and_never_deleted(
    store: ModelStore, places: LocalPlaces, hub: FakeHub, tmp_path: Path
) -> None:
    content = gguf.write_model(tmp_path / "m.gguf").read_bytes()
    hub.add(REPO, "m-Q4_K_M.gguf", content)
    blob = places.hub_cache / "models--org--repo" / "blobs" / hashlib.sha256(content).hexdigest()
    blob.parent.mkdir(parents=True)
    blob.write_bytes(content)
    assert _pull(store).parts[0].resolve() == blob
    assert not hub.served
    assert store.remove(REPO) == 0
    assert blob.exists()


def test_lm_studio_copy_stands_in_for_a_hub_that_is_away(
    store: ModelStore, places: LocalPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gguf.write_model(places.lm_studio[0] / "org" / "repo" / "m-Q8_0.gguf")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    record = _pull(store, "hf.co/org/repo:q8_0")
    assert (record.name, record.parts, record.source) == ("org/repo:Q8_0", (model,), "file")
