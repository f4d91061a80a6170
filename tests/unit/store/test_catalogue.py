from __future__ import annotations

import sqlite3
import stat
import threading
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from ostinatod.store.catalogue import Catalogue, Entry, PartStamp
from ostinatod.store.migrations import catalogue_migrations
from ostinatod.store.records import ModelRecord, ModelShape

SHAPE = ModelShape("qwen3moe", 1000, 2, 64, 4, 2, 4096, "MXFP4", True, False)
RECORD = ModelRecord(
    name="Org/Repo:Q4",
    digest="ab" * 32,
    parts=(Path("/m/a.gguf"), Path("/m/b.gguf")),
    size_bytes=30,
    modified_at=datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=timezone.utc),
    source="hub",
    shape=SHAPE,
    reference="hf.co/org/repo",
)
ENTRY = Entry(RECORD, (PartStamp(10, 1), PartStamp(20, 2)))
STEPS = ["m001_models", "m002_downloads"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "ostinato.db"


def test_entry_comes_back_as_it_was_put(file: Path) -> None:
    Catalogue(file).put("org/repo:q4", ENTRY)
    assert Catalogue(file).get("org/repo:q4") == ENTRY
    assert Catalogue(file).entries() == [ENTRY]


def test_second_put_replaces_the_first(file: Path) -> None:
    catalogue = Catalogue(file)
    catalogue.put("k", ENTRY)
    shorter = Entry(replace(RECORD, parts=RECORD.parts[:1]), ENTRY.stamps[:1])
    catalogue.put("k", shorter)
    assert catalogue.entries() == [shorter]


def test_deleted_entry_is_gone_and_only_it(file: Path) -> None:
    catalogue = Catalogue(file)
    catalogue.put("a", ENTRY)
    catalogue.put("b", ENTRY)
    assert catalogue.delete("a")
    assert not catalogue.delete("a")
    assert catalogue.get("a") is None
    assert catalogue.get("b") == ENTRY


def test_download_keeps_the_name_it_was_begun_for(file: Path) -> None:
    catalogue = Catalogue(file)
    catalogue.note_downloads("a", [Path("/x"), Path("/y")])
    catalogue.note_downloads("b", [Path("/y"), Path("/z")])
    catalogue.forget_downloads([Path("/x")])
    assert catalogue.downloads() == {Path("/y"): "a", Path("/z"): "b"}


def test_database_is_private_and_in_wal_mode(file: Path) -> None:
    Catalogue(file).entries()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    db = Database(file)
    assert db.journal_mode == "wal"
    db.close()


@pytest.mark.parametrize("taken", range(len(STEPS) + 1))
def test_every_older_schema_is_brought_up_to_date_with_its_data(tmp_path: Path, taken: int) -> None:
    old, new = Database(tmp_path / "old.db"), Database(tmp_path / "new.db")
    catalogue_migrations().apply(old, stop_before=STEPS[taken:])
    if taken:
        old.execute("insert into models values ('k', 'K', 'd', 'file', null, 1, '2026-01-02T03:04:05+00:00', '{}')")
    catalogue_migrations().apply(old)
    catalogue_migrations().apply(new)
    assert old.schema == new.schema
    assert [step.name for step in catalogue_migrations().applied(old)] == STEPS
    assert old.table("models").count == min(taken, 1)
    old.close()
    new.close()


def test_other_parts_of_the_program_may_share_the_database(file: Path) -> None:
    others = Migrations("others")

    @others()
    def m001_others(db: Database) -> None:
        db.table("others").create({"id": int}, pk="id")

    file.parent.mkdir()
    db = Database(file)
    others.apply(db)
    Catalogue(file).put("k", ENTRY)
    assert db.table("others").exists()
    assert db.table("models").count == 1
    db.close()


def test_shape_of_a_newer_version_is_read_as_far_as_it_is_known(file: Path) -> None:
    Catalogue(file).put("k", ENTRY)
    connection = sqlite3.connect(file)
    connection.execute("update models set shape = json_set(shape, '$.unheard_of', 1)")
    connection.commit()
    connection.close()
    assert Catalogue(file).get("k") == ENTRY


def test_many_threads_may_create_and_write_at_once(file: Path) -> None:
    catalogues = [Catalogue(file), Catalogue(file)]
    errors: list[Exception] = []

    def write(number: int) -> None:
        try:
            for index in range(5):
                catalogues[number % 2].put(f"{number}-{index}", ENTRY)
        except sqlite3.Error as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(catalogues[0].entries()) == 30
