from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_utils import Database

from ostinatod.errors import RoutingLogUnavailable
from ostinatod.routing_log import reader
from ostinatod.routing_log.database import open_for_writing
from ostinatod.routing_log.schema import routing_log_migrations
from tests.unit.routing_log.conftest import MODEL, OpenLog, request

RELEASED = sorted((Path(__file__).parents[2] / "data" / "routing-log").glob("v*.sql"))


def steps() -> list[str]:
    with closing(Database(memory=True)) as empty:
        return [step.name for step in routing_log_migrations().pending(empty)]


def restore(dump: Path, file: Path) -> None:
    """The database that a version of that schema left, from its dump."""
    file.parent.mkdir(parents=True)
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(dump.read_text())


def tables(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as connection:
        sql = connection.execute("select sql from sqlite_master where sql is not null order by name").fetchall()
    return [re.sub(r"\s+", " ", text) for (text,) in sql]


def test_there_is_a_database_of_every_released_schema() -> None:
    assert [dump.stem for dump in RELEASED] == [f"v{number}" for number in range(1, len(steps()) + 1)]


@pytest.mark.parametrize("dump", RELEASED, ids=lambda dump: dump.stem)
def test_the_log_of_every_earlier_schema_is_read_and_continued(dump: Path, file: Path, open_log: OpenLog) -> None:
    restore(dump, file)
    log = open_log()
    log.put(request(4))
    log.flush()
    assert log.status().state == "on"
    (session,) = reader.sessions(MODEL, file)
    # The dump holds two turns of 60 routes each, and a side request.
    assert (session.requests, session.routes, session.new_tokens) == (3, 180, 30)
    found = {entry.started_at: entry for entry in reader.latest_requests(file)}
    assert sorted(found) == [1, 2, 3, 4]
    assert found[2].prefix_break == {"reason": "system", "detail": "the system prompt changed", "lost_tokens": 40}
    assert (found[2].generation, found[2].coverage_decode, found[3].status) == (3, 0.8, "cancelled")


@pytest.mark.parametrize("dump", RELEASED, ids=lambda dump: dump.stem)
def test_every_way_to_the_present_schema_ends_in_the_same_tables(dump: Path, file: Path, tmp_path: Path) -> None:
    restore(dump, file)
    open_for_writing(file).close()
    fresh = tmp_path / "fresh.db"
    open_for_writing(fresh).close()
    assert tables(file) == tables(fresh)


def test_a_log_of_a_newer_version_is_refused_and_stays_as_it_is(file: Path, open_log: OpenLog) -> None:
    restore(RELEASED[-1], file)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(
            "insert into _sqlite_migrations (migration_set, name, applied_at) values ('routing-log', 'm999_new', '')"
        )
    before = file.read_bytes()
    log = open_log()
    log.put(request(4))
    log.flush()
    status = log.status()
    assert (status.state, status.dropped) == ("off", 1)
    assert "written by a newer version" in (status.reason or "")
    with pytest.raises(RoutingLogUnavailable, match="newer version"):
        reader.sessions(MODEL, file)
    log.close()
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["routes.db"]


def test_an_empty_file_becomes_a_log(file: Path, open_log: OpenLog) -> None:
    file.parent.mkdir()
    file.touch()
    log = open_log()
    log.put(request(1))
    log.flush()
    assert len(reader.latest_requests(file)) == 1
