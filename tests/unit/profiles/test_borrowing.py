"""Borrowed slots, step by step, and what no rule may do on any sequence."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinatod.profiles.borrowing import BorrowingOutcome, BorrowingRule, choose_borrowing, simulate_borrowing
from ostinatod.profiles.errors import CapacityError

rules = st.builds(
    BorrowingRule,
    slots=st.integers(0, 4),
    decay=st.floats(0.5, 1),
    hysteresis=st.floats(1, 4),
    upload_steps=st.integers(1, 3),
)
requests = st.lists(st.lists(st.lists(st.integers(0, 9), max_size=6, unique=True), max_size=20), max_size=4)


def test_an_expert_serves_from_the_step_after_its_upload() -> None:
    rule = BorrowingRule(slots=1, decay=1.0, hysteresis=2.0)
    assert simulate_borrowing([[[7], [7], [7]]], rule) == BorrowingOutcome(3, 3, 2, 1, 1)


def test_a_slow_upload_serves_later() -> None:
    rule = BorrowingRule(slots=1, decay=1.0, hysteresis=2.0, upload_steps=2)
    assert simulate_borrowing([[[7], [7], [7]]], rule).served == 1


def test_a_prefill_returns_every_borrowed_slot() -> None:
    rule = BorrowingRule(slots=4, decay=1.0, hysteresis=2.0)
    one = simulate_borrowing([[[7], [7], [7]]], rule)
    two = simulate_borrowing([[[7], [7], [7]], [[7], [7], [7]]], rule)
    # The first step of the second request is served by the CPU again.
    assert two.served == 2 * one.served
    assert two.uploads == 2


def test_a_newcomer_must_score_clearly_higher() -> None:
    steps = [[1], [2], [2]]  # 1 is borrowed with score 1; 2 reaches 2 with its second use.
    assert simulate_borrowing([steps], BorrowingRule(slots=1, decay=1.0, hysteresis=1.5)).uploads == 2
    assert simulate_borrowing([steps], BorrowingRule(slots=1, decay=1.0, hysteresis=2.0)).uploads == 1


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
    # One upload at a time, each as long as the rule says.
    assert outcome.uploads <= outcome.steps
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
