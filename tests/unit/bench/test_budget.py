"""What fits into a number of seconds, with small numbers."""

from __future__ import annotations

import pytest

from ostinatod.bench.budget import Pace, affordable, pace_of
from ostinatod.bench.memory import hot_bytes_within, memory_for, pool_limit
from ostinatod.bench.sessions import Kind, Session, Turn


def session(name: str, turns: int) -> Session:
    """Every turn reads 10 tokens and emits 5."""
    kinds: list[Kind] = ["first", *["after_tool"] * (turns - 1)]  # type: ignore[list-item]
    made = tuple(Turn(kind, 14 * i, (1,) * 10, (2,) * 5) for i, kind in enumerate(kinds))
    return Session(name, "", "held-out", made)


SESSIONS = [session("a", 10), session("b", 4), session("c", 10)]
# A first turn takes 10 x 30 + 4 x 100 = 700 ms, a later one 100 + 400 = 500 ms.
PACE = Pace(ready_s=2.0, first_ms=30.0, turn_ms=100.0, step_ms=100.0)


def test_a_pace_is_read_from_the_turns_of_a_trial() -> None:
    first = {"turn": 0, "new": 10, "output": 5, "ttft_ms": 300.0, "total_ms": 700.0}
    later = {"turn": 1, "new": 4, "output": 5, "ttft_ms": 100.0, "total_ms": 500.0}
    assert pace_of([first, later], wall_s=3.2) == Pace(pytest.approx(2.0), 30.0, 100.0, 100.0)  # type: ignore[arg-type]
    # A trial of first turns only: a later one is taken to be as long.
    assert pace_of([first], wall_s=2.7).turn_ms == 300.0


def test_turns_are_counted_until_they_do_not_fit() -> None:
    assert PACE.seconds(SESSIONS[:1], 2) == pytest.approx(2.0 + 0.7 + 0.5)
    assert PACE.seconds(SESSIONS) == PACE.seconds(SESSIONS, 100) == pytest.approx(2.0 + 3 * 0.7 + (9 + 3 + 9) * 0.5)


def test_all_sessions_are_cut_alike() -> None:
    # Two settings in 0.9 x 20 s: 9 s each, of which 2 to be ready. n turns of all three take 2.1 + 1.5 (n - 1).
    chosen = affordable([PACE, PACE], SESSIONS, 20.0)
    assert [(item.id, len(item.turns)) for item in chosen] == [("a", 4), ("b", 4), ("c", 4)]


def test_sessions_are_left_out_before_they_become_too_short() -> None:
    # 0.9 x 6 s for one setting leave 3.4: one turn of all, or three of two.
    assert [(item.id, len(item.turns)) for item in affordable([PACE], SESSIONS, 6.0)] == [("a", 3), ("b", 3)]


def test_one_session_is_the_last_resort_since_it_has_no_interval() -> None:
    # 0.9 x 5 s for one setting leave 2.5: two turns of two, or four of one.
    assert [(item.id, len(item.turns)) for item in affordable([PACE], SESSIONS, 5.0)] == [("a", 2), ("b", 2)]
    # 1.24 are left: two turns of one.
    assert [(item.id, len(item.turns)) for item in affordable([PACE], SESSIONS, 3.6)] == [("a", 2)]


def test_at_least_one_turn_is_timed() -> None:
    assert [(item.id, len(item.turns)) for item in affordable([PACE], SESSIONS, 0.0)] == [("a", 1)]


def test_what_is_enough_for_everything_cuts_nothing() -> None:
    assert affordable([PACE], SESSIONS, 1000.0) == SESSIONS


def test_hot_experts_and_staging_take_what_stock_may_have() -> None:
    assert memory_for(7_000) == 8_000
    assert hot_bytes_within(8_000, 16_000) == 7_000
    assert hot_bytes_within(16_000, 16_000) == 16_000
    assert pool_limit(8_000_000_000) > 8_000_000_000
