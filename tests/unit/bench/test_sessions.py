from __future__ import annotations

from pathlib import Path

import pytest

from ostinatod.bench.sessions import Limits, Session, Turn, of_part, read_sessions, write_sessions

FIRST = Turn("first", 0, tuple(range(100)), tuple(range(10)))
# The last of the ten tokens emitted was not read: 109 are in the context.
SECOND = Turn("after_tool", 109, tuple(range(20)), tuple(range(5)))
THIRD = Turn("after_user", 133, tuple(range(8)), tuple(range(4)))
SESSION = Session("s", "swe", "held-out", (FIRST, SECOND, THIRD))


def test_the_context_holds_everything_but_the_last_token_emitted() -> None:
    assert (FIRST.context, SECOND.context, THIRD.context) == (109, 133, 144)
    assert SESSION.tokens == 145


def test_without_limits_a_session_is_whole() -> None:
    assert Limits().apply(SESSION) == SESSION
    assert Limits().described() == []


def test_a_session_ends_before_the_turn_that_needs_more_tokens() -> None:
    assert Limits(tokens=134).apply(SESSION).turns == (FIRST, SECOND)
    assert Limits(tokens=133).apply(SESSION).turns == (FIRST,)
    assert Limits(tokens=109).apply(SESSION).turns == ()


def test_scaled_turns_still_continue_each_other() -> None:
    first, second, third = Limits(scale=0.5).apply(SESSION).turns
    assert [len(turn.new) for turn in (first, second, third)] == [50, 10, 4]
    assert [len(turn.output) for turn in (first, second, third)] == [5, 3, 2]
    assert (second.reused, third.reused) == (first.context, second.context)


def test_a_turn_that_reused_only_half_reuses_half_of_the_scaled_context() -> None:
    broken = Turn("after_user", 54, (1, 2), (3,))
    scaled = Limits(scale=0.5).apply(Session("s", "", "held-out", (FIRST, broken)))
    assert scaled.turns[1].reused == 27


def test_shorter_outputs_shorten_what_the_next_turn_reuses() -> None:
    first, second, _ = Limits(output_tokens=4).apply(SESSION).turns
    assert (len(first.output), second.reused) == (4, 103)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(turns=3), "the first 3 at most"),
        (Limits(tokens=9000), "9,000 tokens"),
        (Limits(output_tokens=7), "at most 7 tokens"),
        (Limits(scale=0.25), "0.25"),
    ],
)
def test_every_limit_is_told(limits: Limits, words: str) -> None:
    (sentence,) = limits.described()
    assert words in sentence


def test_sessions_reach_another_process_unchanged(tmp_path: Path) -> None:
    prefixed = Session("p", "log", "development", (SECOND,), tuple(range(109)))
    write_sessions(tmp_path / "sessions.json", [SESSION, prefixed])
    assert read_sessions(tmp_path / "sessions.json") == [SESSION, prefixed]


def test_sessions_without_turns_belong_to_no_part() -> None:
    empty = Session("e", "", "held-out", ())
    assert list(of_part([empty, SESSION], "held-out")) == [SESSION]
