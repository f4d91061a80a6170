"""The CPU branch's constants from decode steps that an engine counted."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinatod.profiles.calibration import (
    COUNTED_STEPS,
    LayerTimes,
    LinkShare,
    cold_cost,
    fit_cpu_branch,
    fit_overlap,
    with_link_share,
)
from ostinatod.profiles.errors import CostModelError


def layer(alpha: float, beta: float, steps: tuple[int, ...], *, number: int = 0, expert_bytes: int = 100) -> LayerTimes:
    """Steps that took exactly alpha + beta r."""
    return LayerTimes(number, expert_bytes, steps, tuple(n * (alpha + beta * r) for r, n in enumerate(steps, 1)))


@given(
    st.floats(0, 1),
    st.floats(0, 1),
    st.lists(st.integers(0, 1000), min_size=2, max_size=8).filter(lambda steps: sum(n > 0 for n in steps) > 1),
)
def test_a_line_is_found_again(alpha: float, beta: float, steps: list[int]) -> None:
    (fit,) = fit_cpu_branch([layer(alpha, beta, tuple(steps))])
    assert fit.alpha_ms == pytest.approx(alpha, abs=1e-6)
    assert fit.beta_ms == pytest.approx(beta, abs=1e-6)
    assert fit.steps == sum(steps)
    assert fit.largest_error_ms < 1e-6


def test_the_paper_s_constants_are_found_from_counts_of_their_shape() -> None:
    # Paper 3.2: alpha = 0.140 and beta = 0.184 ms; 98 % of steps have at most 3 cold routes.
    (fit,) = fit_cpu_branch([layer(0.140, 0.184, (500, 250, 120, 10, 5, 1))])
    assert fit.alpha_ms + fit.beta_ms == pytest.approx(0.324)


def test_experts_of_two_sizes_are_calibrated_apart() -> None:
    # Paper, Appendix B: Qwen3-235B-A22B has experts of 10.6 and 12.2 MB with beta of 0.139 and 0.157 ms.
    small = layer(0.128, 0.139, (100, 50), expert_bytes=10_600_000)
    large = layer(0.129, 0.157, (60, 30), number=1, expert_bytes=12_200_000)
    fits = fit_cpu_branch([large, small])
    assert [(fit.expert_bytes, round(fit.beta_ms, 6)) for fit in fits] == [(10_600_000, 0.139), (12_200_000, 0.157)]
    assert fits[0].route_gbps == pytest.approx(10.6 / 0.139)
    cost = cold_cost(fits, None, layers=2, k=4, cold_routes=3.0)
    assert cost is not None
    assert cost.ms(3.0) == pytest.approx(3.0 * (0.139 * 150 + 0.157 * 90) / 240)


def test_with_one_number_of_cold_routes_all_time_is_theirs() -> None:
    (fit,) = fit_cpu_branch([LayerTimes(0, 100, (0, 10), (0.0, 4.0))])
    # 10 steps with 2 routes took 4 ms.
    assert (fit.alpha_ms, fit.beta_ms) == (0.0, pytest.approx(0.2))


def test_neither_constant_is_negative() -> None:
    falling = LayerTimes(0, 100, (10, 10), (4.0, 2.0))
    (fit,) = fit_cpu_branch([falling])
    assert (fit.alpha_ms, fit.beta_ms) == (pytest.approx(0.3), 0.0)
    assert fit.route_gbps is None
    steep = LayerTimes(0, 100, (10, 10), (1.0, 4.0))
    (fit,) = fit_cpu_branch([steep])
    assert fit.alpha_ms == 0.0
    assert fit.beta_ms == pytest.approx((0.1 * 1 + 0.4 * 2) / (1 + 4))


def waits(alpha: float, beta: float, gpu: float, steps: tuple[int, ...]) -> float:
    """Of a GPU whose branch takes so long, over such steps."""
    return sum(n * max(0.0, alpha + beta * r - gpu) for r, n in enumerate(steps, 1))


@given(
    st.floats(0, 1),
    st.floats(0.01, 1),
    st.lists(st.integers(1, 1000), min_size=2, max_size=8).map(tuple),
    st.floats(0, 0.99),
)
def test_the_gpu_branch_is_found_from_what_the_gpu_waited(
    alpha: float, beta: float, steps: tuple[int, ...], share: float
) -> None:
    gpu = share * (alpha + beta * len(steps))
    found = fit_overlap([layer(alpha, beta, steps)], waits(alpha, beta, gpu, steps))
    assert found is not None
    assert found.gpu_branch_ms == pytest.approx(gpu, abs=1e-6)
    busy = [(n, alpha + beta * r) for r, n in enumerate(steps, 1)]
    hidden = sum(n * min(cpu, gpu) for n, cpu in busy) / sum(n * cpu for n, cpu in busy)
    assert found.hidden_share == pytest.approx(hidden, abs=1e-6)


def test_with_the_paper_s_constants_a_cold_route_adds_beta_and_little_more() -> None:
    # Paper 3.2: alpha is 0.003 ms above G, which a layer's first cold route adds beside beta: half of the routes here.
    steps = (500, 250)
    found = fit_overlap([layer(0.140, 0.184, steps)], waits(0.140, 0.184, 0.137, steps))
    assert found is not None
    assert found.route_ms == pytest.approx(0.184 + 0.003 / 2)
    # A third of the CPU branch's time is hidden all the same: beta times the rest would be far off.
    assert found.hidden_share == pytest.approx(0.137 * 750 / (500 * 0.324 + 250 * 0.508))


def test_a_first_cold_route_that_the_gpu_hides_adds_nothing() -> None:
    # C(1) = 0.12 and C(2) = 0.22 against G = 0.15: waits of 0 and 0.07, which each of the two routes takes part in.
    found = fit_overlap([layer(0.02, 0.1, (60, 20))], 20 * 0.07)
    assert found is not None
    assert found.route_ms == pytest.approx((60 * 0 + 40 * 0.07) / 100)


def test_a_gpu_that_never_waits_hides_everything_and_one_that_waits_longer_nothing() -> None:
    counted = [layer(0.1, 0.2, (30, 10))]
    busy = 30 * 0.3 + 10 * 0.5
    never, longer = fit_overlap(counted, 0.0), fit_overlap(counted, busy + 40 * 0.05)
    assert never is not None
    assert (never.hidden_share, never.route_ms) == (1.0, pytest.approx(0.0))
    assert longer is not None
    assert (longer.hidden_share, longer.gpu_branch_ms) == (0.0, pytest.approx(-0.05))
    # 0.05 ms for the way there and back belong to a layer's first route.
    assert longer.route_ms == pytest.approx((30 * 0.35 + 20 * 0.2) / 50)


def test_experts_of_two_sizes_share_one_gpu_branch() -> None:
    small, large = layer(0.1, 0.2, (40, 10), expert_bytes=100), layer(0.1, 0.3, (20, 10), number=1, expert_bytes=150)
    waited = waits(0.1, 0.2, 0.25, (40, 10)) + waits(0.1, 0.3, 0.25, (20, 10))
    found = fit_overlap([large, small], waited)
    assert found is not None
    assert found.steps == 80
    assert found.gpu_branch_ms == pytest.approx(0.25)
    added = 40 * 0.05 + 20 * 0.2 + 20 * 0.15 + 20 * 0.3
    assert found.route_ms == pytest.approx(added / 100)


def test_nothing_measured_is_no_calibration() -> None:
    assert fit_overlap([LayerTimes(0, 100, (0, 0), (0.0, 0.0))], 0.0) is None
    assert fit_overlap([], 0.0) is None
    assert fit_cpu_branch([LayerTimes(0, 100, (0, 0), (0.0, 0.0))]) == ()
    assert cold_cost((), None, layers=2, k=4, cold_routes=3.0) is None


def shared_waits(alpha: float, beta: float, gpu: float, link: float, steps: tuple[int, ...]) -> float:
    """Of a GPU that computes a share of each cold expert itself, which takes it `link` ms."""
    return sum(n * max(0.0, alpha + beta * r - gpu - link * r) for r, n in enumerate(steps, 1))


@given(
    st.floats(0, 1),
    st.floats(0.01, 1),
    st.floats(0, 1),
    st.lists(st.integers(1, 1000), min_size=2, max_size=8).map(tuple),
    st.floats(0, 0.99),
)
def test_the_gpu_branch_is_found_beside_its_share_of_cold_experts(
    alpha: float, beta: float, link: float, steps: tuple[int, ...], share: float
) -> None:
    # Shorter than the longest that the GPU could have waited for, so that it waited at all.
    longest = max(alpha + (beta - link) * r for r in range(1, len(steps) + 1))
    gpu = share * longest if longest > 0 else longest - 0.1
    counted = [replace(layer(alpha, beta, steps), link_ms=link)]
    found = fit_overlap(counted, shared_waits(alpha, beta, gpu, link, steps))
    assert found is not None
    assert found.gpu_branch_ms == pytest.approx(gpu, abs=1e-6)
    cost = cold_cost(fit_cpu_branch(counted), found, layers=4, k=len(steps), cold_routes=0.0)
    assert cost is not None
    for r, ms in enumerate(cost.layer_ms[1:], 1):
        assert ms == pytest.approx(max(alpha + beta * r, gpu + link * r) - gpu, abs=1e-5)


def test_a_gpu_that_is_later_in_every_step_costs_what_its_share_does() -> None:
    # C(r) = 0.02 + 0.1 r never outlasts 0.05 + 0.12 r: nobody waits, and each cold route adds 0.12 ms all the same.
    counted = [replace(layer(0.02, 0.1, (60, 20, 5)), link_ms=0.12)]
    found = fit_overlap(counted, 0.0)
    assert found is not None
    assert (found.hidden_share, found.route_ms) == (1.0, pytest.approx(0.12))


def test_the_share_of_a_cold_expert_takes_what_its_bytes_do_in_place() -> None:
    # 700 of 2,048 columns of 13.4 MB at 40 GB/s; half of the 1,000 routes are of experts that it can read.
    (found,) = with_link_share([layer(0.0, 0.1, (1000,), expert_bytes=13_400_000)], LinkShare(700, 2048, 500, 40e9))
    assert found.link_ms == pytest.approx(700 / 2048 * 13.4e6 / 40e9 * 1000 / 2)
    for nothing in (LinkShare(0, 2048, 0, 0.0), LinkShare(700, 2048, 500, 0.0), LinkShare(0, 0, 0, 40e9)):
        (found,) = with_link_share([layer(0.0, 0.1, (1000,))], nothing)
        assert found.link_ms == 0.0


def test_layers_of_one_size_share_the_mean_of_what_their_gpus_take() -> None:
    one, other = replace(layer(0.1, 0.2, (30,)), link_ms=0.1), replace(layer(0.1, 0.2, (10,), number=1), link_ms=0.3)
    (fit,) = fit_cpu_branch([one, other])
    assert fit.link_ms == pytest.approx(0.15)


def binomial_steps(k: int, q: float, n: int) -> tuple[int, ...]:
    """Of n steps of a layer, those with 1 to k cold routes."""
    return tuple(round(n * math.comb(k, r) * q**r * (1 - q) ** (k - r)) for r in range(1, k + 1))


def test_what_lent_memory_serves_follows_from_the_steps_that_had_cold_routes() -> None:
    # 40 % of a layer's 6 routes are cold by the set, a quarter of them served: 30 % are computed.
    counted = [layer(0.02, 0.1, binomial_steps(6, 0.3, 100_000))]
    found = fit_overlap(counted, 0.0)
    cost = cold_cost(fit_cpu_branch(counted), found, layers=8, k=6, cold_routes=8 * 6 * 0.4)
    assert cost is not None
    assert cost.computed(8 * 6 * 0.4) == pytest.approx(8 * 6 * 0.3, rel=0.001)
    # A set with a quarter of the cold routes keeps half of the share.
    assert cost.computed(8 * 6 * 0.1) == pytest.approx(8 * 6 * 0.1 * (1 - 0.25 / 2), rel=0.001)


@pytest.mark.parametrize(("steps", "k"), [(COUNTED_STEPS - 1, 6), (10 * COUNTED_STEPS, 1)])
def test_few_steps_and_one_route_per_layer_tell_nothing_of_lent_memory(steps: int, k: int) -> None:
    counted = [layer(0.02, 0.1, (steps,))]
    cost = cold_cost(fit_cpu_branch(counted), fit_overlap(counted, 0.0), layers=8, k=k, cold_routes=4.0)
    assert cost is not None
    assert cost.lent == 0.0


@pytest.mark.parametrize(("steps", "cpu_ms"), [((1,), (1.0, 2.0)), ((-1,), (1.0,)), ((1,), (-1.0,))])
def test_columns_that_do_not_fit_are_refused(steps: tuple[int, ...], cpu_ms: tuple[float, ...]) -> None:
    with pytest.raises(CostModelError, match="layer 7"):
        LayerTimes(7, 100, steps, cpu_ms)
