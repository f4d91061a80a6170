from __future__ import annotations

from ostinatod.bench.results import TurnResult
from ostinatod.bench.sessions import Kind
from ostinatod.bench.statistics import BUCKETS, median_turns, summarize, versus


def turn(
    setting: str,
    session: str,
    number: int,
    *,
    ttft: float = 100,
    tpot: float | None = 10,
    output: int = 11,
    new: int = 200,
    kind: Kind = "after_tool",
    repeat: int = 0,
    token: int | None = 1,
    hot: int | None = None,
) -> TurnResult:
    total = ttft + (tpot or 0) * (output - 1)
    return TurnResult(setting, session, number, repeat, kind, 0, new, output, ttft, tpot, total, token, hot, hot and 10)


def test_a_setting_is_the_sum_of_its_requests() -> None:
    turns = [
        turn("o", "a", 0, kind="first", ttft=900, new=3000),
        turn("o", "a", 1, ttft=100, new=127),
        turn("o", "b", 0, kind="first", ttft=500, tpot=None, output=1, new=1500),
        turn("o", "b", 1, ttft=200, new=128),
        turn("o", "b", 2, ttft=400, new=1024, tpot=20),
    ]
    summary = summarize(turns, "o")
    assert (summary.total_ms, summary.prefill_ms, summary.decode_ms) == (2600, 2100, 500)
    assert summary.sessions == {"a": 1200, "b": 1400}
    assert {kind: (group.turns, group.ttft_ms) for kind, group in summary.by_kind.items()} == {
        "first": (2, 700),
        "after_tool": (3, 200),
        "after_user": (0, None),
    }
    assert [(group.turns, group.ttft_ms) for group in summary.by_new_tokens] == [
        (1, 100),
        (1, 200),
        (0, None),
        (0, None),
        (1, 400),
    ]
    assert summary.tpot_ms == 10


def test_every_number_of_new_tokens_is_in_one_bucket() -> None:
    for new in (1, 127, 128, 255, 256, 511, 512, 1023, 1024, 100_000):
        assert sum(group.turns for group in summarize([turn("o", "a", 0, new=new)], "o").by_new_tokens) == 1
    assert BUCKETS[0][0] == 1


def test_repeats_count_once_with_their_median() -> None:
    turns = [turn("o", "a", 0, ttft=ttft, repeat=n) for n, ttft in enumerate((100, 900, 200))]
    (only,) = median_turns(turns)
    assert (only.ttft_ms, only.total_ms) == (200, 300)


def test_a_setting_that_takes_twice_as_long_is_compared_turn_by_turn() -> None:
    base = [turn("o", session, n, ttft=100 + 50 * n) for session in "abc" for n in range(4)]
    slow = [turn("s", session, n, ttft=200 + 100 * n, tpot=20) for session in "abc" for n in range(4)]
    found = versus([*base, *slow], "s", "o")
    assert found is not None
    assert (found.turns, found.sessions, found.sessions_won) == (12, 3, 3)
    for estimate in (found.total, found.ttft_after_tool, found.tpot, found.by_new_tokens[1]):
        assert estimate is not None
        assert (estimate.value, estimate.low, estimate.high) == (2, 2, 2)
    assert found.saved.value == 0.5
    assert found.by_new_tokens[0] is None


def test_the_interval_holds_the_value_and_widens_with_how_sessions_differ() -> None:
    factors = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 2.0}
    base = [turn("o", session, n) for session in factors for n in range(3)]
    other = [turn("s", session, n, ttft=100 * f, tpot=10 * f) for session, f in factors.items() for n in range(3)]
    found = versus([*base, *other], "s", "o")
    assert found is not None
    assert found.total.low is not None
    assert found.total.high is not None
    assert 1 <= found.total.low < found.total.value == 2 < found.total.high <= 3


def test_one_session_has_no_interval() -> None:
    found = versus([turn("o", "a", 0), turn("s", "a", 0, ttft=300)], "s", "o")
    assert found is not None
    assert (found.total.value, found.total.low, found.total.high) == (2, None, None)


def test_turns_that_only_one_has_are_not_compared() -> None:
    turns = [turn("o", "a", 0), turn("s", "a", 0), turn("s", "a", 1, ttft=9000)]
    found = versus(turns, "s", "o")
    assert found is not None
    assert (found.turns, found.total.value) == (1, 1)
    assert versus([turn("s", "a", 1), turn("o", "b", 0)], "s", "o") is None


def test_faster_settings_than_the_base_are_told_as_such() -> None:
    found = versus([turn("o", "a", 0, ttft=300), turn("s", "a", 0, ttft=100)], "s", "o")
    assert found is not None
    assert (found.sessions_won, found.total.value, found.saved.value) == (0, 0.5, -1)


def test_agreement_is_counted_where_both_tell_what_they_would_have_said() -> None:
    turns = [
        *(turn("o", "a", n, token=token) for n, token in enumerate((1, 2, 3, None))),
        *(turn("s", "a", n, token=token) for n, token in enumerate((1, 2, 9, 4))),
    ]
    found = versus(turns, "s", "o")
    assert found is not None
    assert found.same_token == 2 / 3


def test_coverage_is_over_routes_and_unknown_where_none_were_counted() -> None:
    assert summarize([turn("o", "a", 0, hot=8), turn("o", "a", 1, hot=6)], "o").coverage_prefill == 0.7
    assert summarize([turn("o", "a", 0)], "o").coverage_prefill is None
