from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinatod.cli.connect_clients import FileChange
from ostinatod.cli.connect_files import apply, merged, taken_back, undo
from ostinatod.errors import ConfigError

VALUES = {"providers": {"ostinato": {"baseUrl": "http://x", "models": ["m"]}}}
OTHERS = {"providers": {"mine": {"baseUrl": "http://y"}}, "theme": "dark"}

objects = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
files = st.dictionaries(st.sampled_from("abc"), objects, max_size=3)


def pruned(value: Any) -> Any:
    """Without objects that hold nothing."""
    if not isinstance(value, dict):
        return value
    inner = {key: pruned(item) for key, item in value.items()}
    return {key: item for key, item in inner.items() if item != {}}


@given(files, files)
def test_what_was_merged_is_there_and_taking_it_back_leaves_what_was_before(
    before: dict[str, Any], values: dict[str, Any]
) -> None:
    after = merged(before, values)
    assert merged(after, values) == after
    assert pruned(taken_back(after, values, before)) == pruned(before)


def test_other_values_stay_and_later_changes_survive_the_undo(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    path.write_text(json.dumps(OTHERS))
    path.chmod(0o640)
    change = FileChange(path, VALUES)
    assert apply(change)
    assert json.loads(path.read_text()) == {
        "providers": {"mine": {"baseUrl": "http://y"}, **VALUES["providers"]},
        "theme": "dark",
    }
    assert path.stat().st_mode & 0o777 == 0o640
    assert not apply(change)
    edited = json.loads(path.read_text())
    edited["theme"] = "light"
    path.write_text(json.dumps(edited))
    assert undo(change)
    assert json.loads(path.read_text()) == {**OTHERS, "theme": "light"}
    assert not undo(change)
    assert list(tmp_path.iterdir()) == [path]


def test_a_value_of_the_users_own_comes_back_even_after_two_launches(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    path.write_text(json.dumps({"providers": {"ostinato": {"baseUrl": "http://mine"}}}))
    assert apply(FileChange(path, VALUES))
    second = FileChange(path, {"providers": {"ostinato": {"baseUrl": "http://z", "models": ["n"]}}})
    assert apply(second)
    assert undo(second)
    assert json.loads(path.read_text()) == {"providers": {"ostinato": {"baseUrl": "http://mine"}}}


def test_a_file_that_did_not_exist_is_gone_again_and_private_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "models.json"
    change = FileChange(path, VALUES)
    assert apply(change)
    assert path.stat().st_mode & 0o777 == 0o600
    assert undo(change)
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("{}")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    assert apply(FileChange(tmp_path / "link.json", VALUES))
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text()) == VALUES


@pytest.mark.parametrize("content", ["{ // a comment\n}", "[]", "x"])
def test_a_file_that_is_not_plain_json_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="cannot change"):
        apply(FileChange(path, VALUES))
    assert path.read_text() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_of_ours_is_replaced_and_removed_whole(tmp_path: Path) -> None:
    change = FileChange(tmp_path / "own.yaml", {"a": 1}, own=True)
    (tmp_path / "own.yaml").write_text("b: 2\n")
    with pytest.raises(ConfigError):
        apply(FileChange(tmp_path / "own.yaml", {"a": 1}))
    (tmp_path / "own.yaml").write_text('{"b": 2}')
    assert apply(change)
    assert json.loads((tmp_path / "own.yaml").read_text()) == {"a": 1}
    assert undo(change)
    assert list(tmp_path.iterdir()) == []
