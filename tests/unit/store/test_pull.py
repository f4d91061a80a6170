from __future__ import annotations

import signal
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from ostinatod.errors import DiskFull, ModelFormatError, ModelNameError, ModelNotFound, PullCancelled, PullError
from ostinatod.store import ModelStore
from ostinatod.store.pull import PullSettings
from ostinatod.store.records import ModelRecord, PullProgress
from tests.conftest import PATIENCE_S
from tests.fakes import gguf
from tests.fakes.hub import COMMIT, FakeHub, Fault, wait_until

REPO = "org/repo"
FILE = "m-Q4_K_M.gguf"


@pytest.fixture
def content(hub: FakeHub, tmp_path: Path) -> bytes:
    """A model of about 1.1 MB, on the hub."""
    body = gguf.write_model(tmp_path / "upload.gguf", rows=4096).read_bytes()
    hub.add(REPO, FILE, body)
    return body


def _pull(
    store: ModelStore, reference: str = REPO, cancelled: threading.Event | None = None
) -> tuple[ModelRecord, list[PullProgress]]:
    steps: list[PullProgress] = []
    return store.pull(reference, steps.append, cancelled or threading.Event()), steps


def _partials(root: Path) -> list[Path]:
    return list((root / "hub").rglob("*.incomplete"))


def _partial_size(root: Path) -> int:
    return sum(path.stat().st_size for path in _partials(root))


def test_pulled_model_is_registered_complete_in_the_hub_layout(
    store: ModelStore, content: bytes, tmp_path: Path
) -> None:
    record, _ = _pull(store, "hf.co/org/repo:q4_k_m")
    assert record.name == "org/repo:Q4_K_M"
    assert record.source == "hub"
    assert record.reference == "hf.co/org/repo:q4_k_m"
    assert record.shape.n_experts == 4
    assert record.size_bytes == len(content)
    assert record.parts == (tmp_path / "hub" / "models--org--repo" / "snapshots" / COMMIT / FILE,)
    assert record.parts[0].read_bytes() == content
    assert (tmp_path / "hub" / "models--org--repo" / "refs" / "main").read_text() == COMMIT
    assert store.resolve("ORG/repo") == record
    assert record in store.list()


def test_hub_client_finds_the_pulled_file(store: ModelStore, content: bytes, tmp_path: Path) -> None:
    from huggingface_hub import try_to_load_from_cache

    record, _ = _pull(store)
    assert try_to_load_from_cache(REPO, FILE, cache_dir=tmp_path / "hub") == str(record.parts[0])


def test_the_hub_is_not_told_which_agent_pulls(
    store: ModelStore, content: bytes, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._headers.detect_agent", lambda: "an-agent")
    _pull(store)
    assert not any("an-agent" in headers.get("user-agent", "") for _, headers in hub.requests)


def test_progress_names_each_step_and_never_goes_backwards(store: ModelStore, content: bytes, hub: FakeHub) -> None:
    hub.faults[FILE] = Fault(drop_after=300_000, times=2)
    _, steps = _pull(store)
    statuses = list(dict.fromkeys(step.status for step in steps))
    assert statuses == ["resolving", "downloading", "verifying", "registering", "success"]
    downloads = [step for step in steps if step.status == "downloading"]
    assert all(a.completed_bytes <= b.completed_bytes for a, b in pairwise(downloads))
    assert downloads[-1].completed_bytes == downloads[-1].total_bytes == downloads[-1].all_total_bytes == len(content)


def test_need_and_free_space_are_told_before_the_download(
    store: ModelStore, content: bytes, settings: PullSettings
) -> None:
    _, steps = _pull(store)
    first = next(step for step in steps if step.detail)
    assert first.status == "resolving"
    assert first.detail["needed_bytes"] == len(content)
    assert int(first.detail["free_bytes"]) > len(content)


def test_second_pull_fetches_nothing(store: ModelStore, content: bytes, hub: FakeHub) -> None:
    _pull(store)
    _pull(store)
    assert hub.served[FILE] == len(content)


def test_token_goes_to_the_hub_and_not_to_the_file_host(
    store: ModelStore, content: bytes, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    _pull(store)
    authorised = {path.split("/")[1]: headers.get("authorization") for path, headers in hub.requests}
    assert authorised == {"api": "Bearer hf_secret", "org": "Bearer hf_secret", "cdn": None}


def test_dropped_connection_is_resumed_where_it_broke(store: ModelStore, content: bytes, hub: FakeHub) -> None:
    hub.faults[FILE] = Fault(drop_after=400_000, times=2)
    record, _ = _pull(store)
    assert record.parts[0].read_bytes() == content
    assert hub.served[FILE] == len(content)


def test_stalled_connection_is_given_up_and_resumed(impatient: ModelStore, content: bytes, hub: FakeHub) -> None:
    hub.faults[FILE] = Fault(stall_after=400_000, times=1)
    record, _ = _pull(impatient)
    assert record.parts[0].read_bytes() == content
    assert hub.served[FILE] == len(content)


def test_lasting_stall_ends_with_what_is_kept_and_the_next_pull_resumes(
    impatient: ModelStore, content: bytes, hub: FakeHub, tmp_path: Path
) -> None:
    hub.faults[FILE] = Fault(stall_after=1000)
    with pytest.raises(PullError, match=r"stopped sending; what arrived of m-Q4_K_M\.gguf is kept") as caught:
        _pull(impatient)
    assert "Run the same command again to resume." in (caught.value.hint or "")
    assert _partial_size(tmp_path) == 2 * 1000  # two attempts, each with the first 1000 bytes of its range
    with pytest.raises(ModelNotFound):
        impatient.resolve(REPO)
    hub.faults.clear()
    _, steps = _pull(impatient)
    assert hub.served[FILE] == len(content)
    assert next(step for step in steps if step.file).completed_bytes == 2000


def test_server_that_ignores_ranges_is_read_past_what_is_there(
    impatient: ModelStore, content: bytes, hub: FakeHub, tmp_path: Path
) -> None:
    hub.faults[FILE] = Fault(stall_after=1000)
    with pytest.raises(PullError):
        _pull(impatient)
    hub.faults[FILE] = Fault(ignore_range=True)
    record, steps = _pull(impatient)
    assert record.parts[0].read_bytes() == content
    assert hub.served[FILE] == 2000 + len(content)
    assert min(step.completed_bytes for step in steps if step.file) == 2000


def test_large_file_is_fetched_in_windows(tmp_path: Path, settings: PullSettings, content: bytes, hub: FakeHub) -> None:
    policy = replace(settings.policy, window_bytes=300_000)
    store = ModelStore(tmp_path / "o.db", tmp_path / "hub", "", settings=replace(settings, policy=policy))
    record, _ = _pull(store)
    assert record.parts[0].read_bytes() == content
    ranges = [headers["range"] for path, headers in hub.requests if path.startswith("/cdn/")]
    assert ranges[:2] == ["bytes=0-299999", "bytes=300000-599999"]
    assert hub.served[FILE] == len(content)


def test_corrupt_file_is_deleted_and_nothing_is_registered(
    store: ModelStore, content: bytes, hub: FakeHub, tmp_path: Path
) -> None:
    hub.faults[FILE] = Fault(corrupt=True)
    with pytest.raises(PullError, match="arrived damaged"):
        _pull(store)
    assert _partials(tmp_path) == []
    assert [record.name for record in store.list()] == ["tiny"]
    hub.faults.clear()
    assert _pull(store)[0].parts[0].read_bytes() == content


def test_corrupt_part_costs_only_itself(store: ModelStore, hub: FakeHub, tmp_path: Path) -> None:
    first, second = (path.name for path in _upload_split(hub, tmp_path, "Q8_0", 2))
    hub.faults[f"Q8_0/{second}"] = Fault(corrupt=True, times=1)
    with pytest.raises(PullError, match="00002-of-00002"):
        _pull(store)
    before = hub.served[f"Q8_0/{first}"]
    _pull(store)
    assert hub.served[f"Q8_0/{first}"] == before


def _upload_split(hub: FakeHub, root: Path, quant: str, n_parts: int) -> list[Path]:
    paths = gguf.write_split(root / "upload", f"big-{quant}", n_parts, rows=256)
    for path in paths:
        hub.add(REPO, f"{quant}/{path.name}", path.read_bytes())
    return paths


def test_split_set_in_a_folder_is_pulled_whole(store: ModelStore, hub: FakeHub, tmp_path: Path) -> None:
    paths = _upload_split(hub, tmp_path, "Q8_0", 3)
    hub.add(REPO, "mmproj-F16.gguf", b"not wanted")
    record, steps = _pull(store, f"{REPO}:q8_0")
    assert record.name == "org/repo:Q8_0"
    assert [part.name for part in record.parts] == [path.name for path in paths]
    assert record.size_bytes == sum(path.stat().st_size for path in paths) == steps[-3].all_total_bytes
    assert hub.served["mmproj-F16.gguf"] == 0


def test_set_that_lacks_a_part_is_refused_before_any_byte(store: ModelStore, hub: FakeHub, tmp_path: Path) -> None:
    paths = _upload_split(hub, tmp_path, "Q8_0", 3)
    del hub.files[REPO][f"Q8_0/{paths[1].name}"]
    with pytest.raises(PullError, match=r"lacks big-Q8_0-00002-of-00003\.gguf"):
        _pull(store)
    assert not hub.served


def test_file_that_the_engine_could_not_load_is_refused_and_freed(
    store: ModelStore, hub: FakeHub, tmp_path: Path
) -> None:
    hub.add(REPO, FILE, b"GGUF" + bytes(100_000))
    with pytest.raises(ModelFormatError, match=r"version: expected a little-endian"):
        _pull(store)
    assert not [path for path in (tmp_path / "hub" / "models--org--repo").rglob("*") if path.is_file()]
    with pytest.raises(ModelNotFound):
        store.remove(REPO)


def test_full_disk_is_told_before_any_byte(
    tmp_path: Path, settings: PullSettings, content: bytes, hub: FakeHub
) -> None:
    tight = replace(settings, free_bytes=lambda directory: len(content) - 1)
    store = ModelStore(tmp_path / "o.db", tmp_path / "hub", "", settings=tight)
    with pytest.raises(DiskFull, match=f"is free on the disk of {tmp_path}"):
        _pull(store)
    assert not hub.served
    room = ModelStore(tmp_path / "o.db", tmp_path / "hub", "", settings=settings)
    assert _pull(room)[0].size_bytes == len(content)


def test_disk_that_fills_up_meanwhile_is_told_and_the_next_pull_works(
    store: ModelStore, content: bytes, hub: FakeHub, tmp_path: Path
) -> None:
    hub.faults[FILE] = Fault(status=404, times=1)
    with pytest.raises(PullError):
        _pull(store)
    partial = _partials(tmp_path)[0]
    partial.unlink()
    partial.symlink_to("/dev/full")  # Every write to it fails as on a full disk.
    with pytest.raises(DiskFull, match=r"is full; what arrived of m-Q4_K_M\.gguf is kept"):
        _pull(store)
    partial.unlink()
    assert _pull(store)[0].parts[0].read_bytes() == content


@pytest.mark.parametrize("stalled", [False, True])
def test_cancel_ends_a_pull_soon_and_keeps_what_arrived(
    tmp_path: Path, settings: PullSettings, content: bytes, hub: FakeHub, stalled: bool
) -> None:
    patient = replace(settings, policy=replace(settings.policy, stall_s=60.0))
    store = ModelStore(tmp_path / "o.db", tmp_path / "hub", "", settings=patient)
    hub.faults[FILE] = Fault(stall_after=200_000) if stalled else Fault(bytes_per_s=300_000)
    cancelled = threading.Event()
    caught: list[PullError] = []

    def run() -> None:
        try:
            _pull(store, cancelled=cancelled)
        except PullError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: _partial_size(tmp_path) >= 100_000)
    cancelled.set()
    thread.join(PATIENCE_S)  # The stall would not be over by then; without one, the pull would not have failed.
    assert not thread.is_alive()
    assert [type(error) for error in caught] == [PullCancelled]
    assert _partial_size(tmp_path) >= 100_000
    assert [record.name for record in store.list()] == ["tiny"]


CHILD = """
import sys, threading
from pathlib import Path
from ostinatod.store import ModelStore
root, endpoint = Path(sys.argv[1]), sys.argv[2]
ModelStore(root / "db" / "ostinato.db", root / "hub", endpoint).pull("org/repo", lambda step: None, threading.Event())
"""


def test_killed_pull_is_resumed_without_fetching_again_what_was_there(
    store: ModelStore, content: bytes, hub: FakeHub, tmp_path: Path
) -> None:
    hub.faults[FILE] = Fault(bytes_per_s=500_000, times=1)
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path), hub.endpoint])
    wait_until(lambda: _partial_size(tmp_path) >= 300_000, timeout_s=30)
    child.send_signal(signal.SIGKILL)
    child.wait()
    kept = _partial_size(tmp_path)
    wait_until(lambda: hub.sending[FILE] == 0)  # The fake hub notices the closed connection with its next chunk.
    before = hub.served[FILE]
    record, steps = _pull(store)
    assert record.parts[0].read_bytes() == content
    assert hub.served[FILE] - before == len(content) - kept
    assert min(step.completed_bytes for step in steps if step.file) == kept


def test_concurrent_pulls_of_one_name_fetch_it_once(store: ModelStore, content: bytes, hub: FakeHub) -> None:
    hub.faults[FILE] = Fault(bytes_per_s=3_000_000)
    records: list[ModelRecord] = []
    threads = [threading.Thread(target=lambda: records.append(_pull(store)[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {record.digest for record in records} == {store.resolve(REPO).digest}
    assert len(records) == 4
    assert hub.served[FILE] == len(content)


def test_model_that_is_being_pulled_cannot_be_removed(
    store: ModelStore, content: bytes, hub: FakeHub, tmp_path: Path
) -> None:
    hub.faults[FILE] = Fault(bytes_per_s=1_000_000)
    thread = threading.Thread(target=lambda: _pull(store))
    thread.start()
    wait_until(lambda: _partial_size(tmp_path) > 0)
    with pytest.raises(Exception, match="is being pulled"):
        store.remove("org/repo:Q4_K_M")
    hub.faults.clear()
    thread.join()
    assert store.resolve(REPO).size_bytes == len(content)


def test_unfinished_pull_can_be_removed(impatient: ModelStore, content: bytes, hub: FakeHub, tmp_path: Path) -> None:
    hub.faults[FILE] = Fault(stall_after=1000)
    with pytest.raises(PullError):
        _pull(impatient)
    assert impatient.remove(REPO) == 2000
    assert not (tmp_path / "hub" / "models--org--repo").exists()


@pytest.mark.parametrize(
    ("status", "headers", "message", "hint"),
    [
        (401, {}, "no public repository org/repo", "HF_TOKEN"),
        (403, {"X-Error-Code": "GatedRepo"}, "org/repo is gated", "Accept its terms"),
        (404, {"X-Error-Code": "RepoNotFound"}, "no repository org/repo", "spelling"),
        (429, {"Retry-After": "0"}, "asks for fewer requests", "Wait a little"),
        (503, {}, "status 503", "Wait a little"),
    ],
)
def test_refusal_of_the_hub_is_put_in_words(
    store: ModelStore, hub: FakeHub, status: int, headers: dict[str, str], message: str, hint: str
) -> None:
    hub.add(REPO, FILE, b"")
    hub.faults[REPO] = Fault(status=status, headers=headers)
    with pytest.raises(PullError, match=message) as caught:
        _pull(store)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_refusal_is_waited_out(store: ModelStore, content: bytes, hub: FakeHub, status: int) -> None:
    hub.faults[REPO] = Fault(status=status, times=1)
    hub.faults[FILE] = Fault(status=status, times=1)
    assert _pull(store)[0].size_bytes == len(content)


def test_server_that_is_no_hub_is_an_error_in_words(store: ModelStore, hub: FakeHub) -> None:
    hub.faults[REPO] = Fault(status=200)
    with pytest.raises(PullError, match="not like a model hub"):
        _pull(store)


def test_another_range_than_asked_for_is_never_written(
    store: ModelStore, content: bytes, hub: FakeHub, tmp_path: Path
) -> None:
    hub.faults[FILE] = Fault(wrong_range=True)
    with pytest.raises(PullError, match="another range"):
        _pull(store)
    assert _partial_size(tmp_path) == 0


def test_unknown_repository_is_an_error_in_words(store: ModelStore) -> None:
    with pytest.raises(PullError, match="no repository nobody/nothing"):
        _pull(store, "nobody/nothing")


def test_offline_switch_is_obeyed(
    store: ModelStore, content: bytes, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PullError, match="HF_HUB_OFFLINE is set"):
        _pull(store)
    assert hub.requests == []


def test_unreachable_hub_is_an_error_in_words(tmp_path: Path, settings: PullSettings) -> None:
    nowhere = replace(settings, endpoint="http://127.0.0.1:9")
    store = ModelStore(tmp_path / "o.db", tmp_path / "hub", "", settings=nowhere)
    with pytest.raises(PullError, match=r"http://127\.0\.0\.1:9: .*; org/repo was not downloaded"):
        _pull(store)


def test_pulled_model_is_found_again_without_the_hub(
    store: ModelStore, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled, _ = _pull(store)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    fresh = ModelStore(tmp_path / "fresh.db", tmp_path / "hub", "https://huggingface.co")
    found = fresh.pull(REPO, lambda step: None, threading.Event())
    assert (found.name, found.digest, found.parts) == (pulled.name, pulled.digest, pulled.parts)
    assert fresh.remove(REPO) == 0
    assert pulled.parts[0].exists()


@pytest.mark.parametrize("endpoint", ["http://hub.example", "ftp://hub.example", "hub.example", "https://"])
def test_endpoint_that_is_not_https_is_refused(tmp_path: Path, endpoint: str) -> None:
    store = ModelStore(tmp_path / "o.db", tmp_path / "hub", endpoint)
    with pytest.raises(PullError, match="expected an https address"):
        _pull(store)


@pytest.mark.parametrize("target", ["http://169.254.169.254", "http://files.example", "file:///etc"])
def test_redirect_to_an_unsafe_host_is_refused(store: ModelStore, content: bytes, hub: FakeHub, target: str) -> None:
    hub.redirect_to = target
    with pytest.raises(PullError, match="not a known host"):
        _pull(store)


@pytest.mark.parametrize("path", ["../../evil-Q4_K_M.gguf", "/abs-Q4_K_M.gguf", "a\\b-Q4_K_M.gguf"])
def test_path_that_leaves_the_cache_is_refused(store: ModelStore, hub: FakeHub, tmp_path: Path, path: str) -> None:
    body = gguf.write_model(tmp_path / "upload.gguf").read_bytes()
    hub.add(REPO, path, body)
    with pytest.raises(PullError):
        _pull(store)
    assert not list(tmp_path.rglob("*-Q4_K_M.gguf"))


@pytest.mark.parametrize("reference", ["mine", "./model.gguf", "/tmp/model.gguf", "https://evil.example/org/repo"])
def test_reference_that_is_no_repository_is_refused(store: ModelStore, hub: FakeHub, reference: str) -> None:
    with pytest.raises(ModelNameError):
        _pull(store, reference)
    assert hub.requests == []


def test_bundled_model_is_pulled_without_a_network(store: ModelStore, hub: FakeHub) -> None:
    record, steps = _pull(store, "tiny")
    assert record.source == "bundled"
    assert [step.status for step in steps] == ["success"]
    assert hub.requests == []
