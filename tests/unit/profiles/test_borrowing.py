"""Borrowed slots, step by step, and what no rule may do on any sequence."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinatod.profiles.borrowing import (
    LENT_SHARE,
    LENT_SHARE_UNLEARNED,
    BorrowingOutcome,
    BorrowingRule,
    choose_borrowing,
    default_rule,
    simulate_borrowing,
    uploads_per_step,
)
from ostinatod.profiles.errors import CapacityError

ENGINE_RULE = Path(__file__).parents[3] / "kernels_patch" / "overlay" / "ostinato" / "borrowing.cpp"

rules = st.builds(
    BorrowingRule,
    slots=st.integers(0, 4),
    decay=st.floats(0.5, 1),
    hysteresis=st.floats(1, 4),
    admission=st.floats(0, 3),
    uploads_per_step=st.floats(0.2, 4),
    counts_served=st.booleans(),
    returned=st.none() | st.integers(0, 5),
)
requests = st.lists(st.lists(st.lists(st.integers(0, 9), max_size=6, unique=True), max_size=20), max_size=4)


def test_an_expert_serves_from_the_step_after_its_upload() -> None:
    rule = BorrowingRule(slots=1, decay=1.0, hysteresis=2.0)
    assert simulate_borrowing([[[7], [7], [7]]], rule) == BorrowingOutcome(3, 3, 2, 1, 1)


def test_a_slow_upload_serves_later() -> None:
    rule = BorrowingRule(slots=1, decay=1.0, hysteresis=2.0, uploads_per_step=0.5)
    assert simulate_borrowing([[[7], [7], [7]]], rule).served == 1


def test_a_prefill_returns_every_borrowed_slot() -> None:
    rule = BorrowingRule(slots=4, decay=1.0, hysteresis=2.0)
    one = simulate_borrowing([[[7], [7], [7]]], rule)
    two = simulate_borrowing([[[7], [7], [7]], [[7], [7], [7]]], rule)
    # The first step of the second request is served by the CPU again.
    assert two.served == 2 * one.served
    assert two.uploads == 2


def test_what_lies_behind_a_prefill_s_uploads_stays_borrowed() -> None:
    # Free slots are taken from the last: 1 has slot 1, 2 has slot 0, which the second request's prefill overwrites.
    first, second = [[1], [1], [2], [2]], [[1, 2], [1, 2]]
    rule = BorrowingRule(slots=2, decay=1.0, hysteresis=2.0, returned=1)
    assert simulate_borrowing([first], rule).served == 2
    assert simulate_borrowing([first, second], rule) == BorrowingOutcome(6, 8, 2 + 1 + 2, 3, 2)
    # An upload on its way is dropped wherever it goes.
    slow = dataclasses.replace(rule, uploads_per_step=0.5)
    assert simulate_borrowing([[[1]], [[1]], [[1]]], slow).served == 0


def test_a_newcomer_must_score_clearly_higher() -> None:
    steps = [[1], [2], [2]]  # 1 is borrowed with score 1; 2 reaches 2 with its second use.
    assert simulate_borrowing([steps], BorrowingRule(slots=1, decay=1.0, hysteresis=1.5)).uploads == 2
    assert simulate_borrowing([steps], BorrowingRule(slots=1, decay=1.0, hysteresis=2.0)).uploads == 1


def test_a_link_that_has_time_for_more_fills_more_slots() -> None:
    steps = [[1, 2, 3], [1, 2, 3]]
    one = BorrowingRule(slots=3, decay=1.0, hysteresis=2.0)
    assert simulate_borrowing([steps], one).served == 1
    # The first step's credit is 1 whatever the link can do; from the second on it is 3.
    assert simulate_borrowing([[*steps, [1, 2, 3]]], dataclasses.replace(one, uploads_per_step=3.0)).served == 1 + 3


def test_an_expert_is_not_admitted_before_it_was_used_often_enough() -> None:
    rule = BorrowingRule(slots=1, decay=1.0, hysteresis=1.0, admission=2.0)
    # Its second use makes it 2; it serves the third.
    assert simulate_borrowing([[[7], [7], [7]]], rule) == BorrowingOutcome(3, 3, 1, 1, 1)


def test_scores_decay_between_uses() -> None:
    # 1 was used three times, 2 twice but later: with a half per step, 1 scores 1.75 / 4 where 2 scores 1.5.
    steps = [[1], [1], [1], [2], [2], [2]]
    lasting = BorrowingRule(slots=1, decay=1.0, hysteresis=1.0)
    fading = BorrowingRule(slots=1, decay=0.5, hysteresis=1.0)
    assert simulate_borrowing([steps], lasting).uploads == 2
    assert simulate_borrowing([steps], fading).served > simulate_borrowing([steps], lasting).served


def test_what_serves_is_kept_where_serving_counts() -> None:
    # 1 is borrowed and serves; 2 comes up by two uses. Without counting, 1 still scores 1 and gives way.
    steps = [[1], [1], [1], [2], [2], [1]]
    rule = BorrowingRule(slots=1, decay=1.0, hysteresis=1.0)
    assert simulate_borrowing([steps], rule).uploads == 2
    assert simulate_borrowing([steps], dataclasses.replace(rule, counts_served=True)).uploads == 1


def test_scores_do_not_overflow() -> None:
    rule = BorrowingRule(slots=1, decay=0.5, hysteresis=1.0)
    outcome = simulate_borrowing([[[7]] * 5000], rule)
    assert outcome.served == 4999


def test_the_link_s_speed_tells_how_many_uploads_a_step_has_time_for() -> None:
    # A quarter of 54 GB/s for 20 ms are 270 MB: 20 experts of 13.4 MB.
    assert uploads_per_step(54.0, 20.0, 13_400_000) == pytest.approx(20.15, abs=0.01)


@settings(max_examples=40, deadline=None)
@given(requests, rules)
def test_no_rule_serves_more_than_there_is_or_lends_more_than_it_has(
    steps: list[list[list[int]]], rule: BorrowingRule
) -> None:
    outcome = simulate_borrowing(steps, rule)
    assert outcome.steps == sum(map(len, steps))
    assert outcome.cold_routes == sum(len(step) for request in steps for step in request)
    assert 0 <= outcome.served <= outcome.cold_routes
    assert outcome.peak_slots <= rule.slots
    # What the link has time for, and the credit that every request begins with.
    assert outcome.uploads <= outcome.steps * rule.uploads_per_step + len(steps)
    assert (outcome.served > 0) <= (outcome.uploads > 0)


@settings(max_examples=30, deadline=None)
@given(requests, st.lists(rules, min_size=1, max_size=4))
def test_the_chosen_rule_saves_most(steps: list[list[list[int]]], candidates: list[BorrowingRule]) -> None:
    _, best = choose_borrowing(steps, candidates, beta_ms=0.184, exposed_upload_ms=0.01)
    saved = [simulate_borrowing(steps, rule).saved_ms(0.184, 0.01) for rule in candidates]
    assert best.saved_ms(0.184, 0.01) == max(saved)


def test_uploads_that_the_gpu_must_wait_for_can_cost_more_than_they_save() -> None:
    # Paper 3.2 (Rule 2): an exposed upload takes 0.53 ms on an idle bus, a cold route 0.184 ms on the CPU.
    never, always = BorrowingRule(0, 1.0, 1.0), BorrowingRule(8, 1.0, 1.0)
    steps = [[[1], [2], [3], [1]]]
    assert choose_borrowing(steps, [always, never], beta_ms=0.184, exposed_upload_ms=0.53)[0] == never
    assert choose_borrowing(steps, [always, never], beta_ms=0.184, exposed_upload_ms=0.0)[0] == always


@pytest.mark.parametrize("values", [(-1, 1.0, 1.0), (1, 0.0, 1.0), (1, 1.1, 1.0), (1, 1.0, 0.9)])
def test_rules_that_cannot_be_are_refused(values: tuple[int, float, float]) -> None:
    with pytest.raises(CapacityError, match="expected slots"):
        BorrowingRule(*values)
    with pytest.raises(CapacityError, match="at least one rule"):
        choose_borrowing([], [], beta_ms=1, exposed_upload_ms=0)


def test_the_engine_lends_by_the_rule_that_was_chosen_here() -> None:
    source = ENGINE_RULE.read_text(encoding="utf-8")
    engine = dict(re.findall(r"static constexpr double (\w+) *= ([\d.]+);", source))
    rule = default_rule(slots=1, uploads=1.0)
    share = inspect.signature(uploads_per_step).parameters["share"].default
    assert {name: float(engine[name]) for name in ("DECAY", "HYSTERESIS", "SHARE")} == {
        "DECAY": rule.decay,
        "HYSTERESIS": rule.hysteresis,
        "SHARE": share,
    }


def test_the_engine_lends_the_shares_that_were_chosen_here() -> None:
    overlay = ENGINE_RULE.parent
    learned = re.search(r"staging_share = ([\d.]+);", (overlay / "placement.h").read_text(encoding="utf-8"))
    unlearned = re.search(r"LENT_UNLEARNED = ([\d.]+);", (overlay / "placement-sets.cpp").read_text(encoding="utf-8"))
    assert learned
    assert unlearned
    assert (float(learned[1]), float(unlearned[1])) == (LENT_SHARE, LENT_SHARE_UNLEARNED)
