from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinatod.cli import text

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=timezone.utc)


@given(st.text(st.characters(codec=None, categories=("Cc", "Cs", "L", "N", "P", "Zs"))))
def test_stripping_leaves_no_control_character_but_newline_and_tab(raw: str) -> None:
    kept = text.strip_controls(raw)
    assert all(c in "\n\t" or not (c < " " or "\x7f" <= c <= "\x9f" or "\ud800" <= c <= "\udfff") for c in kept)


def test_stripping_takes_the_power_from_escape_sequences_and_keeps_the_text() -> None:
    assert text.strip_controls("a\x1b]0;title\x07b\x9b2Jc\r\n\td\x08é漢") == "a]0;titleb2Jc\n\tdé漢"


def test_a_name_cannot_end_its_line_or_turn_the_direction_of_writing() -> None:
    assert text.one_line("a\nb\tc\u2028d\u202egguf.exe") == "abcdgguf.exe"


def test_a_table_has_four_spaces_between_columns_and_none_at_the_end() -> None:
    assert text.table(("NAME", "ID"), [("long-name", "x"), ("b", "")]) == "NAME         ID\nlong-name    x\nb"


def test_a_table_cell_shows_no_escape_sequence() -> None:
    assert "\x1b" not in text.table(("NAME",), [("\x1b[31mred",)])


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (9_600_000_000, "9.6 GB"),
        (9_960_000_000, "10 GB"),
        (999_600_000, "1.0 GB"),
        (137_000_000_000, "137 GB"),
        (10**19, "10000 PB"),
    ],
)
def test_sizes_are_decimal_with_a_fraction_only_below_ten(size: int, shown: str) -> None:
    assert text.human_bytes(size) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "Less than a second"),
        (0.4, "Less than a second"),
        (1, "1 second"),
        (59, "59 seconds"),
        (61, "About a minute"),
        (240, "4 minutes"),
        (3600, "About an hour"),
        (30 * 3600, "30 hours"),
        (5 * 86400, "5 days"),
        (21 * 86400, "3 weeks"),
        (90 * 86400, "3 months"),
        (800 * 86400, "2 years"),
    ],
)
def test_durations_are_told_in_their_largest_unit(seconds: float, shown: str) -> None:
    assert text.human_duration(timedelta(seconds=seconds)) == shown


def test_times_are_told_relative_to_now() -> None:
    assert text.ago(NOW - timedelta(minutes=4), NOW) == "4 minutes ago"
    assert text.ago(None, NOW) == "-"
    assert text.until(NOW + timedelta(minutes=4), NOW) == "4 minutes from now"
    assert text.until(NOW - timedelta(seconds=1), NOW) == "Stopping..."
    assert text.until(None, NOW) == "Forever"
    assert text.until(datetime(2318, 1, 1, tzinfo=timezone.utc), NOW) == "Forever"


def test_an_outline_aligns_scalars_and_indents_what_is_nested() -> None:
    shown = text.outline({"a_b": 1, "long": [1, 2], "none": None, "flag": True, "list": [{"x": "\x1by"}], "map": {}})
    assert shown.splitlines() == [
        "a b     1",
        "long    1, 2",
        "none    -",
        "flag    yes",
        "list",
        "  0",
        "    x    y",
        "map",
    ]
