"""What a log made to mislead can do: real and wild sessions, and the set that is in use after each of them."""

from __future__ import annotations

import pytest

from ostinatod.store.records import ModelRecord
from tests.unit.learning.conftest import Learning, RunLearning, favours, load, logged

REAL, WILD = [0, 1], [2, 3]
"""Experts that sessions route to. The default set has one of each."""
GOOD, BAD, DEFAULT = [[0, 1]] * 2, [[2, 3]] * 2, [[0, 2]] * 2


async def serve(learning: Learning, model: ModelRecord, script: str) -> list[list[list[int]] | None]:
    """Log a real session for each "r" and a wild one for each "w", with a look after each; the sets in use by then."""
    sets = []
    for kind in script:
        learning.clock.now += 1
        learning.log.append(logged(REAL if kind == "r" else WILD, at=learning.clock.now))
        learning.clock.now += 1
        await learning.service.consider(model)
        sets.append(running(learning, model))
    return sets


def running(learning: Learning, model: ModelRecord) -> list[list[int]] | None:
    return favours(learning.residencies.running(model.digest))


async def load_after(learning: Learning, model: ModelRecord, script: str) -> None:
    """Load the model for the first time, with a log that begins like this."""
    learning.log += [logged(REAL if kind == "r" else WILD, at=at) for at, kind in enumerate(script, 1)]
    await load(learning, model)


@pytest.mark.parametrize("wild", [1, 3, 8])
def test_on_the_first_day_any_number_of_wild_sessions_costs_one_real_one(
    learn: RunLearning, model: ModelRecord, wild: int
) -> None:
    async def body(learning: Learning) -> None:
        await load(learning, model)
        assert (await serve(learning, model, "w" * wild))[-1] == BAD
        assert await serve(learning, model, "r") == [DEFAULT]

    learn(body)


def test_a_quarter_of_wild_sessions_does_not_cost_a_set_that_was_learned_from_several(
    learn: RunLearning, model: ModelRecord
) -> None:
    async def body(learning: Learning) -> None:
        await load_after(learning, model, "rrrr")
        assert await serve(learning, model, "wrrr" * 4) == [GOOD] * 16

    learn(body)


@pytest.mark.parametrize("between", range(3))
def test_a_set_is_left_after_its_second_session_below_the_default(
    learn: RunLearning, model: ModelRecord, between: int
) -> None:
    async def body(learning: Learning) -> None:
        await load_after(learning, model, "wwww")
        sets = await serve(learning, model, "r" + "w" * between + "r")
        assert sets == [BAD] * (between + 1) + [DEFAULT]

    learn(body)


def test_what_follows_on_going_back_is_left_after_one_session(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        await load_after(learning, model, "wwww")
        assert (await serve(learning, model, "rr"))[-1] == DEFAULT
        assert (await serve(learning, model, "wwww"))[-1] == BAD
        assert await serve(learning, model, "r") == [DEFAULT]

    learn(body)


def test_after_a_return_to_the_default_it_takes_three_new_sessions_to_change_again(
    learn: RunLearning, model: ModelRecord
) -> None:
    async def body(learning: Learning) -> None:
        await load_after(learning, model, "w")
        assert await serve(learning, model, "rrrr") == [DEFAULT] * 3 + [GOOD]

    learn(body)


def test_no_set_is_applied_that_one_of_the_newest_four_sessions_would_have_had_below_the_default(
    learn: RunLearning, model: ModelRecord
) -> None:
    async def body(learning: Learning) -> None:
        await load(learning, model)
        learning.log += [logged(REAL, at=1), logged(WILD, at=2), logged(WILD, at=3)]
        learned = await learning.service.learned(model)
        assert learned.plan.proposal is not None
        assert favours(learned.plan.proposal.hot) == BAD
        assert "is not applied by itself" in learned.plan.proposal.reasons[-1]
        assert await learning.service.consider(model) is None
        # The real session is not held against it for ever.
        assert await serve(learning, model, "ww") == [DEFAULT, BAD]

    learn(body)


def test_no_model_begins_with_a_set_that_one_of_the_newest_four_sessions_would_have_had_below_the_default(
    learn: RunLearning, model: ModelRecord
) -> None:
    async def body(learning: Learning) -> None:
        await load_after(learning, model, "rww")
        assert running(learning, model) == DEFAULT

    learn(body)


def test_a_set_before_that_is_below_the_default_is_not_gone_back_to(learn: RunLearning, model: ModelRecord) -> None:
    async def body(learning: Learning) -> None:
        await load_after(learning, model, "w")
        learning.log += [logged(REAL, at=at) for at in range(2, 10)]
        await learning.service.apply(model)
        assert running(learning, model) == GOOD
        # Three sessions that the bad set would have served a little better.
        for _ in range(3):
            learning.clock.now += 1
            even = logged(REAL, at=learning.clock.now, times=1)
            even.decode[:, WILD] += 5
            learning.log.append(even)
        assert await learning.service.consider(model) is None
        assert running(learning, model) == GOOD

    learn(body, learn_min_gain=0.99)
