"""API keys: stored as hashes, readable by their owner only, and in force from the next request on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostinatod.errors import ConfigError, KeyNotFound
from ostinatod.keys import KeyFile, KeyRing, key_for, local_key, read_local_key


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "data" / "keys.json")


def test_only_the_hash_of_a_key_is_kept_in_a_private_file(file: KeyFile, tmp_path: Path) -> None:
    added, secret = file.add("laptop")
    stored = tmp_path / "data" / "keys.json"
    assert secret not in stored.read_text()
    assert stored.stat().st_mode & 0o777 == 0o600
    assert file.read() == (added,)
    assert added.id == added.sha256[:8]


def test_two_keys_differ_and_names_are_not_used_twice(file: KeyFile) -> None:
    assert file.add("a")[1] != file.add("b")[1]
    with pytest.raises(ConfigError, match="a key called 'a' already"):
        file.add("a")


def test_keys_are_removed_by_name_or_id(file: KeyFile) -> None:
    first, second = file.add("a")[0], file.add("b")[0]
    assert file.remove("a") == first
    assert file.remove(second.id) == second
    with pytest.raises(KeyNotFound, match="no key called 'a'"):
        file.remove("a")


def test_a_change_of_the_file_holds_at_once(file: KeyFile) -> None:
    ring = KeyRing(file)
    assert not ring.required
    _, secret = file.add("a")
    assert ring.required
    assert ring.accepts(secret)
    assert not any(ring.accepts(wrong) for wrong in (None, "", secret[:-1], f"{secret}x", secret.lower(), "\udc80"))
    file.remove("a")
    assert not ring.required
    assert not ring.accepts(secret)


def test_an_exposed_daemon_needs_a_key_even_when_none_is_left(file: KeyFile) -> None:
    assert KeyRing(file, exposed=True).required
    assert not KeyRing(file, exposed=True).accepts("anything")


def test_a_file_that_cannot_be_read_lets_nobody_in(file: KeyFile, tmp_path: Path) -> None:
    _, secret = file.add("a")
    ring = KeyRing(file, local_secret="here")
    assert ring.accepts(secret)
    for broken in ("{", json.dumps({"keys": [{"id": "x"}]}), "[]"):
        (tmp_path / "data" / "keys.json").write_text(broken)
        assert ring.required
        assert not ring.accepts(secret)
        assert ring.accepts("here")
    with pytest.raises(ConfigError, match="cannot read the API keys"):
        file.read()


def test_the_local_key_is_private_and_gone_with_the_daemon(file: KeyFile, tmp_path: Path) -> None:
    place = tmp_path / "local.key"
    with local_key(place) as secret:
        assert place.stat().st_mode & 0o777 == 0o600
        assert read_local_key(place) == secret
        assert KeyRing(file, local_secret=secret).accepts(secret)
    assert read_local_key(place) is None


def test_a_daemon_that_ends_leaves_the_key_of_its_successor(tmp_path: Path) -> None:
    place = tmp_path / "local.key"
    with local_key(place):
        place.write_text("another daemon's")
    assert read_local_key(place) == "another daemon's"


def test_the_local_key_goes_to_this_machine_only_and_the_users_own_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSTINATO_HOME", str(tmp_path))
    monkeypatch.delenv("OSTINATO_API_KEY", raising=False)
    (tmp_path / "run").mkdir()
    with local_key(tmp_path / "run" / "local.key") as secret:
        for here in ("http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"):
            assert key_for(here) == secret
        for elsewhere in ("http://192.168.1.7:1", "http://box.example:1", "http://127.0.0.1.nip.io:1"):
            assert key_for(elsewhere) is None
        monkeypatch.setenv("OSTINATO_API_KEY", "mine")
        assert key_for("http://box.example:1") == key_for("http://127.0.0.1:1") == "mine"
