"""Databases that several programs open at once."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from sqlite_utils import Database

from ostinatod.transactions import enable_wal, immediate


def opened(file: Path) -> Database:
    return Database(sqlite3.connect(file, timeout=5, check_same_thread=False), execute_plugins=False)


def test_a_new_database_becomes_write_ahead_while_others_hold_it(tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    holder, other = opened(file), opened(file)
    holder.execute("begin immediate")
    holder.execute("create table t (a)")
    threading.Timer(0.2, holder.commit).start()
    enable_wal(other, 5.0)
    assert other.journal_mode == "wal"
    other.close()
    holder.close()


def test_a_database_that_stays_locked_is_told(tmp_path: Path) -> None:
    holder, other = opened(tmp_path / "new.db"), opened(tmp_path / "new.db")
    holder.execute("begin immediate")
    holder.execute("create table t (a)")
    other.execute("pragma busy_timeout = 0")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        enable_wal(other, 0.1)
    holder.rollback()
    other.close()
    holder.close()


def test_a_transaction_that_raises_leaves_nothing(tmp_path: Path) -> None:
    db = opened(tmp_path / "new.db")
    db.execute("create table t (a)")

    def fail_in_the_middle() -> None:
        with immediate(db):
            db.execute("insert into t values (1)")
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail_in_the_middle()
    assert db.table("t").count == 0
    db.close()
