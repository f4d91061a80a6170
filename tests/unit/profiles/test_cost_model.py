"""The cost model: the paper's numbers as goldens, the propositions of its Appendix B as properties."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ostinatod.profiles.cost_model import (
    CostModel,
    PrefillCosts,
    PrefillModel,
    break_even_tokens,
    expected_distinct,
    probability_bounds,
)
from ostinatod.profiles.coverage import expectations, step_cold_routes
from ostinatod.profiles.errors import CostModelError
from ostinatod.profiles.planner import ExpertPlaces, plan_hot

LAYERS, K = 43, 6


@pytest.fixture
def paper() -> CostModel:
    """DeepSeek-V4-Flash, paper 3.2: gamma0, alpha and beta; G at the middle of its range, 0.135-0.139 ms."""
    return CostModel.same_in_all_layers([0.137] * LAYERS, gamma0_ms=0.120, alpha_ms=0.140, beta_ms=0.184)


@pytest.fixture
def qwen3() -> CostModel:
    """Qwen3-235B-A22B, paper Appendix B "Calibration": 48 layers of 10.6 MB experts, 46 of 12.2 MB ones."""
    return CostModel(
        gamma0_ms=(0.118,) * 48 + (0.119,) * 46,
        alpha_ms=(0.128,) * 48 + (0.129,) * 46,
        beta_ms=(0.139,) * 48 + (0.157,) * 46,
        gpu_branch_ms=(0.113,) * 94,
    )


# Goldens


def test_a_layer_with_a_cold_route_takes_at_least_0_324_ms(paper: CostModel) -> None:
    # Paper 3.4: "the CPU branch takes at least alpha + beta = 0.324 ms, more than twice G".
    one = paper.cpu_branch_ms([1] * LAYERS)
    assert one.tolist() == pytest.approx([0.324] * LAYERS)
    assert (one > 2 * np.array(paper.gpu_branch_ms)).all()


def test_figure_3_draws_two_cold_routes_to_scale(paper: CostModel) -> None:
    # Figure 3 (b): C(2) = 0.140 + 2 * 0.184 = 0.508; concurrent max(C, G) ends at C, in turn C + G at 0.645.
    assert paper.cpu_branch_ms([2] * LAYERS)[0] == pytest.approx(0.508)
    assert paper.overlapped_ms([2] * LAYERS) / LAYERS == pytest.approx(0.508)
    assert paper.sequential_ms([2] * LAYERS) / LAYERS == pytest.approx(0.645)


def test_without_a_cold_route_the_gpu_branch_is_the_longer_one(paper: CostModel) -> None:
    # Appendix B: "On DeepSeek-V4-Flash, g = G".
    assert paper.floor_ms.tolist() == [0.137] * LAYERS
    assert paper.cpu_branch_ms([0] * LAYERS).tolist() == [0.120] * LAYERS


def test_the_residual_is_about_three_per_cent_of_beta() -> None:
    # Paper 3.2: delta between 0.0013 and 0.0056 ms, about 3 % of beta; 0.0056 / 0.184 = 3.04 %.
    cost = CostModel.same_in_all_layers([0.1387, 0.1344], gamma0_ms=0.120, alpha_ms=0.140, beta_ms=0.184)
    assert cost.residual_ms.tolist() == pytest.approx([0.0013, 0.0056])
    assert cost.residual_ms.max() / 0.184 == pytest.approx(0.0304, abs=1e-4)


def test_frequency_ranking_is_within_0_142_ms_of_the_best_set() -> None:
    # Appendix B: "With 4,864 resident experts, the development mean q = 0.589 bounds sum delta q by 0.142 ms";
    # 43 layers * at most 0.0056 ms * 0.589 = 0.1418.
    worst = CostModel.same_in_all_layers([0.140 - 0.0056] * LAYERS, gamma0_ms=0.120, alpha_ms=0.140, beta_ms=0.184)
    assert worst.distance_from_best_ms([0.589] * LAYERS) == pytest.approx(0.142, abs=5e-4)


def test_for_any_set_the_distance_is_at_most_the_sum_of_residuals() -> None:
    # Appendix B: "for any residency set the term is at most sum delta = 0.152 ms": a mean of 0.152 / 43 per layer.
    cost = CostModel.same_in_all_layers([0.140 - 0.152 / 43] * LAYERS, gamma0_ms=0.12, alpha_ms=0.14, beta_ms=0.184)
    assert cost.distance_from_best_ms([1.0] * LAYERS) == pytest.approx(0.152)


def test_growing_the_pool_saves_between_2_219_ms_and_the_paper_s_bound() -> None:
    # Appendix B, from 4,864 to 5,702 experts: dF0 = 2.219 ms, dF = 2.239 ms, factor 1 + 0.0056 / 0.184 = 1.030.
    worst = CostModel.same_in_all_layers([0.140 - 0.0056] * LAYERS, gamma0_ms=0.120, alpha_ms=0.140, beta_ms=0.184)
    saved_routes = np.full(LAYERS, 2.219 / 0.184 / LAYERS)  # 12.06 cold routes per step
    least, most = worst.growth_bounds_ms(saved_routes)
    assert least == pytest.approx(2.219)
    assert most / least == pytest.approx(1.030, abs=5e-4)
    assert least <= 2.239 <= most


def test_overlap_hides_86_9_per_cent_of_what_can_be_hidden() -> None:
    # Appendix B: 38.415 -> 33.538 ms per step, a saving of 4.877 ms, of U = 5.615 ms.
    assert pytest.approx(0.869, abs=5e-4) == (38.415 - 33.538) / 5.615
    # The model's U for a layer is min(C, G) = G wherever r >= 1, and min(gamma0, G) = gamma0 else: with all 43 layers
    # cold 43 * 0.137 = 5.891, with none 43 * 0.120 = 5.160; the measured 5.615 lies between.
    cost = CostModel.same_in_all_layers([0.137] * LAYERS, gamma0_ms=0.120, alpha_ms=0.140, beta_ms=0.184)
    assert cost.hideable_ms([[0] * LAYERS]) == pytest.approx(5.160)
    assert cost.hideable_ms([[1] * LAYERS]) == pytest.approx(5.891)
    assert cost.hideable_ms([[0] * LAYERS]) <= 5.615 <= cost.hideable_ms([[1] * LAYERS])


def test_the_fitted_line_follows_the_measured_branch() -> None:
    # Appendix B "Calibration": each further cold route adds 0.188 ms at r = 2 and 0.150 ms at r = 6; the line lies up
    # to 0.01 ms below the means for r <= 3 and 0.077 ms above at r = 6.
    cost = CostModel.same_in_all_layers([0.137], gamma0_ms=0.120, alpha_ms=0.140, beta_ms=0.184)
    line = [float(cost.cpu_branch_ms([r])[0]) for r in range(1, 7)]
    assert np.diff(line).tolist() == pytest.approx([0.184] * 5)
    assert 0.150 < 0.184 < 0.188
    assert line[5] - 0.077 < line[4] + 0.150


def test_qwen3_s_floor_is_the_cpu_branch_s(qwen3: CostModel) -> None:
    # Appendix B: G = 0.113 ms is below gamma0, so g = gamma0 and alpha - gamma0 is about 0.01 ms.
    assert qwen3.floor_ms.tolist() == list(qwen3.gamma0_ms)
    assert qwen3.residual_ms.tolist() == pytest.approx([0.010] * 94)
    with pytest.raises(CostModelError, match="same in all layers"):
        qwen3.distance_from_best_ms([0.5] * 94)  # Proposition 3.1 asks for one beta


def test_an_upload_pays_off_from_three_tokens() -> None:
    # Paper 2.1: 13.4 MB take 0.53 ms over PCIe 4.0, one token of the expert 0.18 ms on the CPU.
    assert break_even_tokens(0.53, 0.18) == pytest.approx(2.94, abs=0.01)
    assert pytest.approx(25.3, abs=0.1) == 13.4e6 / 0.53e-3 / 1e9  # GB/s, what PCIe 4.0 x16 gives


def test_a_large_pass_leaves_some_cold_experts_untouched() -> None:
    # Paper 2.3 (II): a pass of 2,048 tokens touches 117 of a layer's 143 cold experts (256 less 4,864 / 43 = 113).
    assert 256 - round(4864 / 43) == 143
    uniform = expected_distinct([0.96 / 143] * 143, 2048)  # 16 % of six routes, were they spread evenly
    assert 117 < uniform[-1] <= 143


def test_a_prefill_grows_half_as_fast_with_its_tokens_when_most_routes_are_hot() -> None:
    # Paper 4.4, the sweep of Figure 7 (b): 1.63 s with 128 new tokens and 3.98 s with 512 where the CPU computes all
    # six experts of each of 43 layers, 0.92 s and 2.16 s where it computes 0.94: slopes of 6.1 and 3.2 ms per token.
    slopes = [(3980 - 1630) / 384, (2160 - 920) / 384]
    assert slopes == pytest.approx([6.12, 3.23], abs=0.01)
    cold_route_ms = (slopes[0] - slopes[1]) / (43 * (6 - 0.94))
    token_ms = slopes[0] - 43 * 6 * cold_route_ms
    model = PrefillModel(920 - 128 * slopes[1], 0.0, token_ms, cold_route_ms, 0.0, 0.53)
    assert model.ttft_ms(512, 513, 43 * 0.94, 0.0) == pytest.approx(2160)
    assert model.ttft_ms(343, 512, 43 * 0.94, 0.0) == pytest.approx(920 + 215 * slopes[1])


# Properties

costs = st.builds(
    lambda gamma0, alpha, beta, gpu: CostModel.same_in_all_layers(
        [alpha + beta if g > alpha + beta else g for g in gpu], gamma0_ms=gamma0, alpha_ms=alpha, beta_ms=beta
    ),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1),
    st.lists(st.floats(0, 1), min_size=2, max_size=2),
)
"""Two layers for which Proposition B.1 holds."""


@st.composite
def traces(draw: st.DrawFn) -> NDArray[np.int64]:
    """Decode steps (N, 2 layers, k = 2) over 4 experts, jointly distributed in any way."""
    pairs = st.sampled_from(list(combinations(range(4), 2)))
    steps = draw(st.lists(st.tuples(pairs, pairs), min_size=1, max_size=12))
    return np.array(steps, np.int64)


def hot_sets(n_hot: int) -> list[NDArray[np.bool_]]:
    """All sets of that size over 2 layers of 4 experts."""
    sets = []
    for chosen in combinations(range(8), n_hot):
        hot = np.zeros(8, np.bool_)
        hot[list(chosen)] = True
        sets.append(hot.reshape(2, 4))
    return sets


@given(costs, traces(), st.lists(st.booleans(), min_size=8, max_size=8))
def test_equation_1_holds_for_every_joint_distribution(
    cost: CostModel, steps: NDArray[np.int64], flags: list[bool]
) -> None:
    """Proposition B.1."""
    cold = step_cold_routes(steps, np.array(flags).reshape(2, 4))
    mu, q = expectations(cold)
    assert cost.expected_step_ms(mu, q) == pytest.approx(float(cost.overlapped_ms(cold).mean()), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.1, 1), st.floats(0.01, 1), st.floats(0, 0.1), traces(), st.integers(1, 7))
def test_frequency_ranked_sets_are_as_close_to_the_best_as_promised(
    alpha: float, beta: float, below: float, steps: NDArray[np.int64], n_hot: int
) -> None:
    """Proposition 3.1: 0 <= F(HF) - F(H*) <= Q(HF) - Q(H*) <= Q(HF), against every set there is."""
    cost = CostModel.same_in_all_layers([alpha - below, alpha], gamma0_ms=0.0, alpha_ms=alpha, beta_ms=beta)
    rho = np.zeros((2, 4))
    for layer in range(2):
        np.add.at(rho[layer], steps[:, layer].ravel(), 1.0 / len(steps))
    ranked = plan_hot(rho, ExpertPlaces((0, 0), (1, 1), (4, 4)), [n_hot])

    def parts(hot: NDArray[np.bool_]) -> tuple[float, float, float]:
        mu, q = expectations(step_cold_routes(steps, hot))
        return float(mu.sum()), cost.distance_from_best_ms(q), cost.residency_ms(mu, q)

    routes, distance, time = parts(ranked)
    others = [parts(hot) for hot in hot_sets(n_hot)]
    best_distance, best_time = min(((item[1], item[2]) for item in others), key=lambda item: item[1])
    assert routes <= min(item[0] for item in others) + 1e-9
    assert -1e-9 <= time - best_time <= distance - best_distance + 1e-9
    assert distance - best_distance <= distance + 1e-9


@given(costs, traces(), st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_growing_a_set_saves_what_the_increments_say(
    cost: CostModel, steps: NDArray[np.int64], levels: list[int]
) -> None:
    """Proposition B.2 for nested sets: level 2 is hot in both, level 1 only in the larger."""
    if min(cost.beta_ms) <= 1e-3 or cost.residual_ms.min() < 0:
        return
    smaller, larger = np.array(levels).reshape(2, 4) == 2, np.array(levels).reshape(2, 4) >= 1
    mu, q = expectations(step_cold_routes(steps, smaller))
    mu_larger, q_larger = expectations(step_cold_routes(steps, larger))
    assert (q - q_larger >= -1e-12).all()
    assert (q - q_larger <= mu - mu_larger + 1e-12).all()
    saved = cost.residency_ms(mu, q) - cost.residency_ms(mu_larger, q_larger)
    least, most = cost.growth_bounds_ms(mu - mu_larger)
    assert least - 1e-9 <= saved <= most + 1e-9


@given(costs, st.lists(st.lists(st.integers(0, 6), min_size=2, max_size=2), min_size=1))
def test_overlapping_saves_exactly_what_can_be_hidden(cost: CostModel, cold: list[list[int]]) -> None:
    """Appendix B: C + G - max(C, G) = min(C, G)."""
    saved = float(np.mean(cost.sequential_ms(cold) - cost.overlapped_ms(cold)))
    assert saved == pytest.approx(cost.hideable_ms(cold), abs=1e-9)


@given(traces(), st.lists(st.booleans(), min_size=8, max_size=8))
def test_q_lies_between_the_bounds_that_mu_gives(steps: NDArray[np.int64], flags: list[bool]) -> None:
    mu, q = expectations(step_cold_routes(steps, np.array(flags).reshape(2, 4)))
    least, most = probability_bounds(mu, 2)
    assert (least - 1e-12 <= q).all()
    assert (q <= most + 1e-12).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.frozensets(st.integers(0, 7), max_size=3), min_size=1, max_size=12))
def test_distinct_cold_experts_grow_ever_more_slowly(period: list[frozenset[int]]) -> None:
    """Lemma B.3 on stationary sequences: a periodic one that starts at a random position."""
    n, length = 2 * len(period), len(period)
    distinct = np.zeros(n + 1)
    for start in range(length):
        seen: set[int] = set()
        for position in range(n):
            seen |= period[(start + position) % length]
            distinct[position + 1] += len(seen)
    distinct /= length
    increments = np.diff(distinct)
    assert (increments >= -1e-9).all()
    assert (np.diff(increments) <= 1e-9).all()
    assert distinct[-1] <= 8


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(1, 60))
def test_expected_distinct_has_the_shape_of_the_lemma(rates: list[float], n: int) -> None:
    distinct = expected_distinct(rates, n)
    assert distinct[0] == 0
    assert distinct[1] == pytest.approx(sum(rates))
    assert (np.diff(distinct) >= -1e-9).all()
    assert (np.diff(distinct, 2) <= 1e-9).all()
    assert distinct[-1] <= len(rates)


@settings(max_examples=40, deadline=None)
@given(
    st.floats(-10, -0.1),
    st.floats(0.1, 1),
    st.floats(0.01, 1),
    st.lists(st.floats(0, 1), min_size=1, max_size=20),
)
def test_prefill_switches_paths_once(setup: float, token: float, upload: float, rates: list[float]) -> None:
    """Proposition 3.2: the split path is cheaper below n*, the upload path above."""
    costs = PrefillCosts(setup, token, upload)
    # phi0 + phi1 n - phi2 * 20 >= 0 from n = (10 + 20) / 0.1 = 300 at the latest.
    distinct = expected_distinct(rates, 301)
    threshold = costs.threshold(distinct)
    difference = costs.difference_ms(distinct)
    assert threshold is not None
    assert threshold >= 1
    assert (difference[:threshold] < 0).all()
    assert (difference[threshold + 1 :] > 0).all()


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(*(st.floats(0.1, 5) for _ in range(4))),
    st.floats(0.1, 10),
    st.lists(st.floats(0, 1), min_size=1),
    st.data(),
)
def test_the_paths_differ_as_the_proposition_says(
    values: tuple[float, float, float, float], cold: float, rates: list[float], data: st.DataObject
) -> None:
    setup, token, route, upload = values
    model = PrefillModel(setup, setup + 1, token, 2 * route, route, upload)
    distinct = expected_distinct(rates, 50)
    n = data.draw(st.integers(0, 50))
    difference = model.split_ms(n, cold) - model.upload_ms(n, cold, distinct[n])
    assert difference == pytest.approx(float(model.difference(cold).difference_ms(distinct)[n]), abs=1e-6)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"beta_ms": -0.1}, "beta_ms: expected 0 or more"),
        ({"gpu": 0.5}, r"expected at most alpha \+ beta = 0.324, found 0.5"),
        ({"beta_ms": float("nan")}, "beta_ms: expected 0 or more"),
    ],
)
def test_costs_for_which_the_equation_does_not_hold_are_refused(values: dict[str, float], words: str) -> None:
    gpu = values.pop("gpu", 0.137)
    with pytest.raises(CostModelError, match=words):
        CostModel.same_in_all_layers([gpu], **{"gamma0_ms": 0.120, "alpha_ms": 0.140, "beta_ms": 0.184, **values})


def test_costs_of_another_number_of_layers_are_refused() -> None:
    with pytest.raises(CostModelError, match="beta_ms: expected 2 layers, found 1"):
        CostModel((0.1, 0.1), (0.1, 0.1), (0.1,), (0.1, 0.1))


def test_prefill_costs_that_cannot_be_are_refused() -> None:
    with pytest.raises(CostModelError, match="token_ms: expected 0 or more, found -1"):
        PrefillModel(0, 0, -1, 0, 0, 0)
    with pytest.raises(CostModelError, match="expected setup_ms below 0"):
        PrefillModel(1, 0, 1, 1, 0, 1).difference(6)
