"""What cold routes are expected to cost, by their number."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinatod.profiles.cold_cost import MOST_SERVED, ColdCost, routes_with_any
from ostinatod.profiles.errors import CostModelError

layers_of_cost = st.lists(st.floats(0, 1), min_size=1, max_size=8).map(
    lambda added: (0.0, *(float(value) for value in np.cumsum(added)))
)
"""Times of a layer that grow with its cold routes."""


@given(st.integers(1, 60), st.floats(0, 1), st.integers(1, 10), st.floats(0, 1))
def test_where_every_route_costs_the_same_a_token_pays_for_each(layers: int, ms: float, k: int, share: float) -> None:
    cost = ColdCost(layers, tuple(ms * r for r in range(k + 1)), 0.0, 0.15)
    assert cost.ms(share * layers * k) == pytest.approx(ms * share * layers * k, abs=1e-9)


def test_a_layer_s_fixed_cost_is_paid_as_often_as_it_has_any_cold_route() -> None:
    # Equation (1): 8 layers with 6 routes each, of which 18 in all are cold.
    cost = ColdCost(8, (0.0, *(0.1 + 0.05 * r for r in range(1, 7))), 0.0, 0.15)
    assert cost.ms(18.0) == pytest.approx(0.05 * 18 + 0.1 * 8 * (1 - (1 - 18 / 48) ** 6))


@given(layers_of_cost, st.floats(0, 1), st.lists(st.floats(0, 50), min_size=2, max_size=20))
def test_fewer_cold_routes_never_cost_more(layer_ms: tuple[float, ...], lent: float, cold: list[float]) -> None:
    cost = ColdCost(7, layer_ms, lent, 0.15)
    assert (np.diff(cost.ms(np.sort(cold))) >= -1e-9).all()
    assert cost.ms(0.0) == 0.0
    assert (cost.computed(cold) <= cold).all()


def test_lent_memory_serves_a_share_that_goes_with_the_root_of_the_cold_routes() -> None:
    cost = ColdCost.served_by_lent_memory(0.3, 25.0, 8, (0.0, 0.1), 0.15)
    assert cost.computed([25.0, 4.0]) == pytest.approx([25 * 0.7, 4 * (1 - 0.3 * 2 / 5)])
    # However much it served of few, it will not serve nearly all of many.
    assert cost.computed(1000.0) == pytest.approx(1000 * (1 - MOST_SERVED))
    assert ColdCost.served_by_lent_memory(0.0, 0.0, 8, (0.0, 0.1), 0.15).computed(5.0) == 5.0
    # And with the root of the memory.
    assert cost.with_memory_lent(1 / 4).computed(25.0) == pytest.approx(25 * (1 - 0.3 / 2))


@given(st.integers(2, 16), st.floats(0.001, 0.999))
def test_how_many_a_token_had_follows_from_the_layers_that_had_any(k: int, q: float) -> None:
    mean = k * q / -math.expm1(k * math.log1p(-q))
    assert routes_with_any(mean, k) == pytest.approx(k * q, rel=1e-6)


@pytest.mark.parametrize(
    "values",
    [
        (0, (0.0, 1.0), 0.0, 0.1),
        (1, (0.0,), 0.0, 0.1),
        (1, (0.1, 1.0), 0.0, 0.1),
        (1, (0.0, -1.0), 0.0, 0.1),
        (1, (0.0, 1.0), -0.1, 0.1),
        (1, (0.0, 1.0), 0.0, 0.0),
    ],
)
def test_what_no_machine_costs_is_refused(values: tuple[int, tuple[float, ...], float, float]) -> None:
    with pytest.raises(CostModelError, match="found ColdCost"):
        ColdCost(*values)
