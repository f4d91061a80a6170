from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sqlite_utils import Database

from ostinatod.routing_log import reader
from ostinatod.routing_log.counts import RouteCounts
from ostinatod.routing_log.database import open_for_writing, used_bytes
from ostinatod.routing_log.decay import TARGET, decay, merge_oldest_sessions
from ostinatod.routing_log.operations import Selection, add_request, forget
from ostinatod.transactions import immediate
from tests.unit.routing_log.conftest import MODEL, counts, request

SEED = 6


@pytest.fixture
def db(file: Path) -> Iterator[Database]:
    opened = open_for_writing(file)
    yield opened
    opened.close()


def add_sessions(db: Database, *numbers: int, routes: RouteCounts | None = None, fingerprint: str = MODEL) -> None:
    """A session for each number, of one request at that second."""
    with immediate(db):
        for number in numbers:
            session = f"session-{number}"
            add_request(db, request(number, session=session, fingerprint=fingerprint, counts=routes or counts(20, 10)))


def noise(layers: int, experts: int) -> RouteCounts:
    """Counts that hardly compress."""
    drawn = np.random.default_rng(SEED).integers(0, 2**16, (2, layers, experts))
    return RouteCounts(tuple(range(layers)), drawn[0], drawn[1])


def test_within_the_cap_nothing_changes(db: Database, file: Path) -> None:
    add_sessions(db, 1, 2, 3)
    assert decay(db, 10**9) == 0
    assert len(reader.sessions(MODEL, file)) == 3


def test_above_the_cap_the_oldest_sessions_are_merged_until_there_is_room(db: Database, file: Path) -> None:
    add_sessions(db, *range(1, 41), routes=noise(20, 64))
    cap = used_bytes(db) // 2
    merged = decay(db, cap)
    assert used_bytes(db) <= cap * TARGET
    first, *rest = reader.sessions(MODEL, file)
    assert first.is_merged
    assert [session.session for session in rest] == [f"session-{number}" for number in range(merged + 1, 41)]
    assert (first.started_at, first.last_at, first.requests) == (1.0, merged + 1.0, merged)
    # The requests of merged sessions are gone, the others' are there.
    assert len(reader.latest_requests(file, limit=100)) == 40 - merged
    assert [session.id for session in reader.latest_sessions(file)] == [session.session for session in reversed(rest)]
    assert decay(db, cap) == 0


def test_the_file_shrinks_with_its_contents(db: Database, file: Path) -> None:
    add_sessions(db, *range(1, 41), routes=noise(20, 64))
    before = file.stat().st_size + file.with_name("routes.db-wal").stat().st_size
    decay(db, used_bytes(db) // 2)
    assert file.stat().st_size + file.with_name("routes.db-wal").stat().st_size < before * 0.5


def test_merged_counts_are_halved_by_every_later_merge(db: Database, file: Path) -> None:
    add_sessions(db, 1, 2, 3)
    for _ in range(2):
        with immediate(db):
            assert merge_oldest_sessions(db) == 1
    merged, latest = reader.sessions(MODEL, file)
    # Session 1 weighs a half, session 2 all: 20/2 + 20 and 10/2 + 10.
    assert (merged.prefill[0, 1], merged.decode[0, 1]) == (30, 15)
    assert (merged.requests, merged.new_tokens) == (2, 20)
    assert latest.session == "session-3"


def test_the_newest_sessions_are_read_behind_the_merged_ones(db: Database, file: Path) -> None:
    add_sessions(db, *range(1, 17))
    add_sessions(db, 30, fingerprint="cd" * 32)
    with immediate(db):
        merged = merge_oldest_sessions(db)
    read = reader.sessions(MODEL, file, newest=3)
    assert [session.is_merged for session in read] == [True, False, False, False]
    assert [session.last_at for session in read] == [merged + 1.0, 15.0, 16.0, 17.0]
    assert len(reader.sessions(MODEL, file, newest=100)) == len(reader.sessions(MODEL, file)) == 17 - merged


def test_the_latest_session_is_never_merged(db: Database, file: Path) -> None:
    add_sessions(db, 1)
    assert merge_oldest_sessions(db) == 0
    decay(db, 1)
    assert [session.session for session in reader.sessions(MODEL, file)] == ["session-1"]
    assert reader.latest_requests(file) == []


def test_each_model_has_its_own_merged_sessions(db: Database, file: Path) -> None:
    other = "cd" * 32
    add_sessions(db, *range(1, 9))
    add_sessions(db, 0, fingerprint=other)
    add_sessions(db, *range(10, 17))
    with immediate(db):
        merge_oldest_sessions(db)
    assert [session.is_merged for session in reader.sessions(other, file)] == [True]
    assert [session.is_merged for session in reader.sessions(MODEL, file)][:2] == [True, False]


def test_counts_of_another_shape_replace_those_that_were_merged(db: Database, file: Path) -> None:
    add_sessions(db, 1)
    add_sessions(db, 2, 3, routes=counts(6, 4, layers=3))
    for _ in range(2):
        with immediate(db):
            merge_oldest_sessions(db)
    assert reader.sessions(MODEL, file)[0].routes == 30


def test_old_requests_without_a_session_go_with_their_time(db: Database, file: Path) -> None:
    add_sessions(db, 1, 20)
    with immediate(db):
        add_request(db, request(0, session=None, kind="side"))
        add_request(db, request(15, session=None, kind="side"))
        merge_oldest_sessions(db)
    assert [found.started_at for found in reader.latest_requests(file)] == [20, 15]


def test_merged_sessions_are_forgotten_with_the_earliest_of_them(db: Database, file: Path) -> None:
    add_sessions(db, 1, 5, 20)
    for _ in range(2):
        with immediate(db):
            merge_oldest_sessions(db)
    with immediate(db):
        assert forget(db, Selection(before=3.0)).sessions == 1
    assert [session.session for session in reader.sessions(MODEL, file)] == ["session-20"]
