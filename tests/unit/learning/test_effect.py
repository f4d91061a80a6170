"""How sessions are held against the default: one by one, whatever else is logged between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinatod.learning.effect import Shortfall, is_safe, left_after, measure_effect
from ostinatod.learning.generations import Generation, Source, State
from ostinatod.profiles.rates import Forgetting
from ostinatod.profiles.route_log import SessionRoutes
from tests.unit.learning.conftest import logged

SET = np.array([[True, True, False, False]] * 2)
DEFAULT = np.array([[True, False, True, False]] * 2)
ABOVE, BELOW = [0, 1], [2, 3]
"""Experts of sessions that the set serves better and worse than the default does."""


def shortfall(sessions: Sequence[SessionRoutes]) -> Shortfall:
    return measure_effect(
        sessions, generation(2, "learned", "active", 9), SET, None, DEFAULT, [], Forgetting()
    ).shortfall


def sessions_of(below: Sequence[bool], times: int = 20) -> list[SessionRoutes]:
    return [logged(BELOW if low else ABOVE, at=at, times=times) for at, low in enumerate(below)]


@given(st.lists(st.booleans(), max_size=16), st.sampled_from([2, 20, 1_000_000]))
def test_no_session_makes_up_for_another(below: list[bool], times: int) -> None:
    found = shortfall(sessions_of(below, times))
    assert (found.below, found.among) == (sum(below[-4:]), min(4, len(below)))


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_a_set_is_safe_where_none_of_the_newest_four_sessions_is_below_the_default(below: list[bool]) -> None:
    assert is_safe(sessions_of(below), SET, DEFAULT, Forgetting()) == (not any(below[-4:]))


def test_the_default_is_always_safe() -> None:
    sessions = [logged(favourites, at=at) for at, favourites in enumerate(([0], [1], [2], [3]))]
    assert is_safe(sessions, DEFAULT, DEFAULT, Forgetting())


def test_sessions_are_ordered_by_their_end() -> None:
    sessions = sessions_of([True, False, False, False, False])
    assert is_safe(sessions[::-1], SET, DEFAULT, Forgetting())


def test_sessions_of_a_few_tokens_are_not_compared() -> None:
    counts = np.array([[0, 0, 31, 32]] * 2)
    short = SessionRoutes("short", 1, 1, 1, (0, 1), np.zeros_like(counts), counts, 0, 63)
    assert shortfall([short]) == Shortfall(0, 0, None, None)
    assert is_safe([short], SET, DEFAULT, Forgetting())


def test_greetings_do_not_take_back_a_set() -> None:
    # In tokens enough for nothing, and unlike the user's sessions.
    greetings = [dataclasses.replace(logged(BELOW, at=at), output_tokens=20) for at in range(4)]
    active = generation(2, "learned", "active", 9)
    found = measure_effect(greetings, active, SET, ~SET, DEFAULT, [], Forgetting())
    assert (found.sessions, found.coverage, found.is_worse) == (0, None, False)
    told = [dataclasses.replace(item, output_tokens=64) for item in greetings]
    assert measure_effect(told, active, SET, ~SET, DEFAULT, [], Forgetting()).is_worse


def test_less_than_five_points_are_not_counted() -> None:
    counts = np.array([[100, 51, 53, 0]] * 2)  # of 204 the set covers 151, the default 153
    near = SessionRoutes("near", 1, 1, 1, (0, 1), np.zeros_like(counts), counts, 0, 1000)
    assert shortfall([near]) == Shortfall(0, 1, None, None)
    # Nor does a session that is unlike the others, but no one's attack, keep them from a better set.
    assert is_safe([near, *sessions_of([False] * 3)], SET, DEFAULT, Forgetting())


@pytest.mark.parametrize(("source", "sessions"), [("day0", 2), ("imatrix", 2), ("learned", 1), ("undo", 1)])
def test_the_session_that_a_first_set_was_made_in_shows_what_that_does(source: Source, sessions: int) -> None:
    began_before = dataclasses.replace(logged(ABOVE, at=5), started_at=-1.0)
    ended_before = dataclasses.replace(logged(ABOVE, at=-1), started_at=-2.0)
    found = measure_effect(
        [ended_before, began_before, logged(ABOVE, at=6)],
        generation(1, source, "active", 0),
        SET,
        None,
        DEFAULT,
        [],
        Forgetting(),
    )
    assert found.sessions == sessions


def generation(number: int, source: Source, state: State, sessions: int) -> Generation:
    return Generation(number, 0.0, source, state, sessions, 4, 0, None, None, None, 0, "")


DAY0 = generation(1, "day0", "superseded", 0)
LEARNED = generation(2, "learned", "superseded", 9)


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([generation(1, "learned", "active", 2)], 2),
        ([generation(1, "learned", "active", 1)], 1),
        ([generation(2, "learned", "active", 1), DAY0], 1),
        ([generation(2, "learned", "active", 5), DAY0], 2),
        ([generation(3, "learned", "active", 9), LEARNED, DAY0], 2),
        ([generation(3, "undo", "active", 0), generation(2, "learned", "rolled_back", 9), DAY0], 1),
        ([generation(4, "undo", "active", 9), generation(3, "learned", "rolled_back", 9), LEARNED, DAY0], 1),
        # What replaces a set that was gone back to; and what replaces that.
        ([generation(4, "learned", "active", 9), generation(3, "undo", "superseded", 0), DAY0], 1),
        ([generation(4, "learned", "active", 9), LEARNED, generation(1, "undo", "superseded", 0)], 2),
        # A set that the engine refused was never in use.
        (
            [
                generation(5, "learned", "active", 9),
                generation(4, "learned", "rolled_back", 9),
                generation(3, "undo", "superseded", 0),
                DAY0,
            ],
            1,
        ),
        ([generation(4, "learned", "rolled_back", 9), generation(3, "learned", "active", 9), LEARNED], 2),
    ],
)
def test_one_session_is_enough_after_going_back_and_for_what_one_session_taught(
    history: list[Generation], expected: int
) -> None:
    assert left_after(history) == expected
