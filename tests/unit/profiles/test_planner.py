"""Plans keep what is routed to most, within each GPU's memory and size classes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinatod.profiles import planner
from ostinatod.profiles.errors import CapacityError
from ostinatod.profiles.planner import ExpertPlaces, moved, plan_hot, spread_evenly


def places(n_layers: int, n_experts: int, *, sizes: tuple[int, ...] = (), gpus: tuple[int, ...] = ()) -> ExpertPlaces:
    return ExpertPlaces(gpus or (0,) * n_layers, sizes or (1,) * n_layers, (n_experts,) * n_layers)


def test_layers_share_the_memory_of_their_gpu() -> None:
    rho = np.array([[0.9, 0.8, 0.7, 0.1], [0.4, 0.3, 0.2, 0.1]])
    hot = plan_hot(rho, places(2, 4), [4])
    # The four largest rates: 0.9, 0.8, 0.7 of the first layer and 0.4 of the second.
    assert hot.tolist() == [[True, True, True, False], [True, False, False, False]]


def test_each_gpu_ranks_its_own_layers() -> None:
    rho = np.array([[0.9, 0.8], [0.2, 0.1]])
    hot = plan_hot(rho, places(2, 2, gpus=(0, 1)), [1, 1])
    assert hot.tolist() == [[True, False], [True, False]]


def test_a_small_expert_may_be_worth_more_than_a_large_one() -> None:
    # 6 bytes: one large (0.5) and one small (0.5) cover 1.0, three small 0.4 + 0.5 + 0.2 = 1.1.
    rho = np.array([[0.5, 0.0, 0.0], [0.4, 0.5, 0.2]])
    hot = plan_hot(rho, places(2, 3, sizes=(4, 2)), [6])
    assert hot.tolist() == [[False, False, False], [True, True, True]]


def test_ties_always_give_the_same_set() -> None:
    rho = np.ones((3, 8))
    first = plan_hot(rho, places(3, 8), [7])
    assert (plan_hot(rho, places(3, 8), [7]) == first).all()
    assert first.sum() == 7


def test_the_paper_s_pools_fit_its_slots() -> None:
    # Paper 4.5 and 3.2: 4,864 and 5,702 of 43 x 256 experts, 44.2 % and 51.8 %; 133 per layer on average (4.2).
    rho = np.random.default_rng(1).random((43, 256))
    for slots, share in ((4864, 0.442), (5702, 0.518)):
        hot = plan_hot(rho, places(43, 256), [slots])
        assert hot.sum() == slots
        assert hot.mean() == pytest.approx(share, abs=5e-4)
    assert pytest.approx(133, abs=0.5) == 5702 / 43
    # Paper 1: the routed experts take 137 GiB, 13.4 MB each.
    assert places(43, 256, sizes=(13_400_000,) * 43).total_bytes / 2**30 == pytest.approx(137, abs=0.5)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, ExpertPlaces, int]:
    """Three layers of three experts in up to three sizes on one GPU, and a budget."""
    rates = draw(st.lists(st.floats(0, 1), min_size=9, max_size=9))
    sizes = tuple(draw(st.lists(st.integers(1, 5), min_size=3, max_size=3)))
    return np.array(rates).reshape(3, 3), places(3, 3, sizes=sizes), draw(st.integers(0, 45))


def best_coverage(rho: np.ndarray, where: ExpertPlaces, budget: int) -> float:
    """Over every set there is."""
    best = 0.0
    for flags in product((False, True), repeat=9):
        hot = np.array(flags).reshape(3, 3)
        if where.hot_bytes(hot) <= budget:
            best = max(best, float(rho[hot].sum()))
    return best


@settings(max_examples=25, deadline=None)
@given(problems())
def test_no_set_that_fits_covers_more(problem: tuple[np.ndarray, ExpertPlaces, int]) -> None:
    rho, where, budget = problem
    hot = plan_hot(rho, where, [budget])
    assert where.hot_bytes(hot) <= budget
    assert float(rho[hot].sum()) == pytest.approx(best_coverage(rho, where, budget), abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(problems())
def test_too_many_splits_to_enumerate_cost_less_than_one_expert(
    problem: tuple[np.ndarray, ExpertPlaces, int],
) -> None:
    rho, where, budget = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "MAX_SPLITS", 0)
        hot = plan_hot(rho, where, [budget])
    assert where.hot_bytes(hot) <= budget
    assert float(rho[hot].sum()) >= best_coverage(rho, where, budget) - float(rho.max()) - 1e-9


@settings(max_examples=50, deadline=None)
@given(problems(), st.integers(0, 20))
def test_more_memory_never_covers_less(problem: tuple[np.ndarray, ExpertPlaces, int], more: int) -> None:
    rho, where, budget = problem
    covered = [float(rho[plan_hot(rho, where, [size])].sum()) for size in (budget, budget + more)]
    assert covered[1] >= covered[0] - 1e-9


@settings(max_examples=50, deadline=None)
@given(problems())
def test_an_even_set_fits_and_treats_layers_alike(problem: tuple[np.ndarray, ExpertPlaces, int]) -> None:
    _, where, budget = problem
    hot = spread_evenly(where, [budget])
    assert where.hot_bytes(hot) <= budget
    assert hot.sum(axis=1).max() - hot.sum(axis=1).min() <= 1


def test_an_even_set_is_not_the_first_experts() -> None:
    assert np.flatnonzero(spread_evenly(places(1, 8), [4])[0]).tolist() == [0, 2, 4, 6]


def test_what_moves_is_what_has_to_be_copied() -> None:
    before, after = np.array([[True, True, False]]), np.array([[True, False, True]])
    assert moved(before, after) == 1
    assert moved(None, after) == 2


@pytest.mark.parametrize(
    ("rho", "pool", "words"),
    [
        (np.zeros((1, 4)), [1], "expected rates of 2 layers by 4 experts"),
        (np.full((2, 4), np.nan), [1], "expected rates of 0 or more"),
        (np.zeros((2, 4)), [], "expected memory of 0 or more for 1 GPUs"),
        (np.zeros((2, 4)), [-1], "expected memory of 0 or more"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(rho: np.ndarray, pool: list[int], words: str) -> None:
    with pytest.raises(CapacityError, match=words):
        plan_hot(rho, places(2, 4), pool)
