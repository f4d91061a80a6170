from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ostinatod.sessions.identity import (
    KEY_BYTES,
    MAX_ID_CHARS,
    SESSION_HEADERS,
    explicit_session,
    read_or_create_key,
    replace_key,
    session_hash,
)


@pytest.mark.parametrize("name", SESSION_HEADERS)
def test_each_header_names_a_session(name: str) -> None:
    assert explicit_session({name: " s1 "}, {}) == ("header", "s1")


@pytest.mark.parametrize(
    "body",
    [
        {"prompt_cache_key": "s1"},
        {"session_id": "s1"},
        {"metadata": {"session_id": "s1"}},
        {"metadata": {"chat_id": "s1"}},
    ],
)
def test_each_field_names_a_session(body: dict[str, Any]) -> None:
    assert explicit_session({}, body) == ("body", "s1")


def test_a_header_comes_before_the_body() -> None:
    assert explicit_session({"x-session-id": "h"}, {"prompt_cache_key": "b"}) == ("header", "h")


@pytest.mark.parametrize(
    "user",
    [
        "user_0a1b_account_77-88_session_1f2e3d4c-5b6a",
        "user_0a1b_account__session_1f2e3d4c-5b6a",
        "session_1f2e3d4c-5b6a",
        '{"device_id":"d","account_uuid":"a","session_id":"1f2e3d4c-5b6a"}',
    ],
)
def test_a_session_inside_a_user_id_is_found(user: str) -> None:
    assert explicit_session({}, {"metadata": {"user_id": user}}) == ("body", "1f2e3d4c-5b6a")
    assert explicit_session({}, {"user": user}) == ("body", "1f2e3d4c-5b6a")


@pytest.mark.parametrize(
    "user", ["alice", "user_0a1b", "{", '{"a":1}', "[]", "{}", '{"session_id":3}', "", 7, None, {}]
)
def test_a_user_alone_is_no_session(user: Any) -> None:
    assert explicit_session({}, {"user": user, "metadata": {"user_id": user}}) is None


@pytest.mark.parametrize("value", ["", "  ", None, 3, {}, []])
def test_empty_and_odd_values_name_nothing(value: Any) -> None:
    assert explicit_session({}, {"prompt_cache_key": value, "metadata": value}) is None


def test_ids_of_any_length_are_cut() -> None:
    found = explicit_session({}, {"prompt_cache_key": "x" * 10_000})
    assert found is not None
    assert len(found[1]) == MAX_ID_CHARS


def test_a_hash_depends_on_the_key_and_hides_the_id() -> None:
    one = session_hash(b"a" * 32, "my-session")
    assert one == session_hash(b"a" * 32, "my-session")
    assert one != session_hash(b"b" * 32, "my-session")
    assert one != session_hash(b"a" * 32, "my-session2")
    assert len(one) == 16
    assert session_hash(b"a" * 32, "\ud800")


def test_the_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    file = tmp_path / "new" / "routes.key"
    key = read_or_create_key(file)
    assert len(key) == KEY_BYTES
    assert read_or_create_key(file) == key
    assert file.stat().st_mode & 0o777 == 0o600
    assert replace_key(file) != key
    assert list(file.parent.iterdir()) == [file]


def test_a_key_of_another_size_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "routes.key"
    file.write_bytes(b"short")
    assert len(read_or_create_key(file)) == KEY_BYTES
