from __future__ import annotations

from pathlib import Path

from ostinatod.routing_log.database import open_for_writing
from ostinatod.routing_log.operations import KEPT_REQUEST_COUNTS
from ostinatod.routing_log.records import DIALECTS, PATHS, SOURCES
from ostinatod.sessions.prefix_break import BREAK_REASONS
from ostinatod.sessions.turn_kind import TURN_KINDS

PAGE = (Path(__file__).parents[3] / "docs" / "privacy.md").read_text(encoding="utf-8")


def test_the_page_names_every_table_and_column(file: Path) -> None:
    db = open_for_writing(file)
    tables = [table for table in db.tables if not table.name.startswith("_")]
    assert {table.name for table in tables} == {"models", "sessions", "requests", "request_counts"}
    missing = [
        f"{table.name}.{column.name}" for table in tables for column in table.columns if f"`{column.name}`" not in PAGE
    ]
    db.close()
    assert missing == []


def test_the_page_names_every_word_that_is_stored() -> None:
    words = (*TURN_KINDS, *DIALECTS, *SOURCES, *PATHS, *BREAK_REASONS)
    assert [word for word in words if f"`{word}`" not in PAGE] == []
    assert f"latest {KEPT_REQUEST_COUNTS} requests" in PAGE
