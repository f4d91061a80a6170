"""What lies on disk of conversations: bounded, whole, readable by its owner only, and used once."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from ostinatod.engine.saved_prompts import LIST_NAME, SavedPrompts

MODEL, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def files(tmp_path: Path) -> SavedPrompts:
    return SavedPrompts(tmp_path / "prompts", 1000)


def save(files: SavedPrompts, model: str, *contents: bytes, key: str = "k", written_at: float = 1e9) -> None:
    prompts = []
    for number, content in enumerate(contents):
        (files.folder(model) / f"{number}.state").write_bytes(content)
        prompts.append(files.describe(model, f"{number}.state", n_tokens=300))
    files.write_list(model, key, prompts)
    os.utime(files.directory / model / LIST_NAME, (written_at, written_at))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_was_saved_is_read_in_its_order(files: SavedPrompts) -> None:
    save(files, MODEL, b"latest", b"earlier")
    assert [(prompt.file, prompt.n_bytes) for prompt in files.read_list(MODEL, "k")] == [("0.state", 6), ("1.state", 7)]


def test_only_the_owner_can_read_it(files: SavedPrompts) -> None:
    save(files, MODEL, b"state")
    assert mode(files.directory) == mode(files.directory / MODEL) == 0o700
    assert {mode(path) for path in (files.directory / MODEL).iterdir()} == {0o600}


def test_another_key_makes_all_of_it_unusable_and_says_so(
    files: SavedPrompts, caplog: pytest.LogCaptureFixture
) -> None:
    save(files, MODEL, b"state", key="made with another engine")
    assert files.read_list(MODEL, "k") == []
    assert "have changed since" in caplog.text


@pytest.mark.parametrize("content", [b"stXte", b"stat", b"", None])
def test_a_damaged_file_is_left_out_and_the_others_are_used(
    files: SavedPrompts, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    save(files, MODEL, b"state", b"whole")
    damaged = files.directory / MODEL / "0.state"
    damaged.unlink() if content is None else damaged.write_bytes(content)
    assert [prompt.file for prompt in files.read_list(MODEL, "k")] == ["1.state"]
    assert "saved_prompt_ignored" in caplog.text


@pytest.mark.parametrize(
    "listed",
    [
        "",
        "[]",
        "{}",
        '{"format": 2, "key": "k", "prompts": []}',
        '{"format": 1, "key": "k", "prompts": [{"file": "0.state"}]}',
        json.dumps(
            {
                "format": 1,
                "key": "k",
                "prompts": [{"file": "../x", "n_tokens": 1, "n_bytes": 5, "checksum": "0"}],
            }
        ),
    ],
)
def test_a_list_that_is_none_is_ignored_and_told(
    files: SavedPrompts, caplog: pytest.LogCaptureFixture, listed: str
) -> None:
    save(files, MODEL, b"state")
    (files.directory / MODEL / LIST_NAME).write_text(listed)
    assert files.read_list(MODEL, "k") == []
    assert "saved_prompts_ignored" in caplog.text


def test_nothing_saved_is_nothing_to_tell(files: SavedPrompts, caplog: pytest.LogCaptureFixture) -> None:
    assert files.read_list(MODEL, "k") == []
    assert caplog.text == ""


def test_the_models_that_were_saved_first_make_room(files: SavedPrompts) -> None:
    save(files, OTHER, bytes(600), written_at=1e9)
    save(files, MODEL, bytes(600), written_at=2e9)
    files.keep_limit()
    assert [folder.name for folder in files.directory.iterdir()] == [MODEL]


def test_the_model_that_has_just_been_saved_stays(files: SavedPrompts) -> None:
    save(files, OTHER, bytes(600), written_at=2e9)
    save(files, MODEL, bytes(600), written_at=1e9)
    files.keep_limit(MODEL)
    assert [folder.name for folder in files.directory.iterdir()] == [MODEL]


def test_room_is_what_a_models_own_files_leave(files: SavedPrompts) -> None:
    assert files.room_bytes(MODEL) == 1000
    (files.folder(MODEL) / "0.state").write_bytes(bytes(400))
    (files.folder(OTHER) / "0.state").write_bytes(bytes(400))
    assert files.room_bytes(MODEL) == 600


def test_forgetting_deletes_one_model_or_all(files: SavedPrompts) -> None:
    save(files, MODEL, b"state")
    save(files, OTHER, b"state")
    files.forget(MODEL)
    assert [folder.name for folder in files.directory.iterdir()] == [OTHER]
    files.forget(None)
    assert not files.directory.exists()
    files.forget(None)


def test_clearing_keeps_the_folder_for_its_engine(files: SavedPrompts) -> None:
    save(files, MODEL, b"state")
    files.clear(MODEL)
    assert list((files.directory / MODEL).iterdir()) == []
