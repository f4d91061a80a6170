"""Whether learning can help, told in one sentence, and never on chance alone."""

from __future__ import annotations

import numpy as np
import pytest

from ostinatod.profiles.skew import check_skew

UNIFORM = np.full(64, 1 / 64)


def drawn(routes: int, probabilities: np.ndarray, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).multinomial([routes] * 8, probabilities)


@pytest.mark.parametrize("routes", [50, 500, 50_000])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_uniform_routing_is_not_taken_for_skew(routes: int, seed: int) -> None:
    skew = check_skew(drawn(routes, UNIFORM, seed), 0.44)
    assert not skew.useful
    assert "learn" in skew.sentence


def test_few_routes_look_skewed_by_chance() -> None:
    # 50 routes over 64 experts: the 28 most selected of a layer seem to take most of them, whatever the router does.
    skew = check_skew(drawn(50, UNIFORM), 0.44)
    assert skew.gain > 0.3
    assert skew.null_gain > 0.3
    assert skew.sentence == "So far the routes look no different from chance, so a learned set would not help yet."


def test_skewed_routing_is_found_and_told() -> None:
    # Half of the experts take 90 % of the routes.
    skew = check_skew(drawn(20_000, np.repeat([0.9 / 32, 0.1 / 32], 32)), 0.5)
    assert skew.useful
    assert skew.gain == pytest.approx(0.4, abs=0.02)
    assert skew.sentence == "The most used 50% of the experts take 90% of the routes; keeping them hot helps."


def test_a_real_but_small_skew_is_called_too_small() -> None:
    skew = check_skew(drawn(1_000_000, np.repeat([0.51 / 32, 0.49 / 32], 32)), 0.5)
    assert skew.null_gain < skew.gain < 0.05
    assert not skew.useful
    assert "only 51% of the routes, so learning cannot help much" in skew.sentence


@pytest.mark.parametrize(("share", "words"), [(0.0, "no expert fits"), (1.0, "every expert fits")])
def test_without_a_choice_there_is_nothing_to_learn(share: float, words: str) -> None:
    skew = check_skew(drawn(100, UNIFORM), share)
    assert not skew.useful
    assert words in skew.sentence


def test_an_empty_log_is_told_as_such() -> None:
    assert "No routes have been counted yet" in check_skew(np.zeros((8, 64), np.int64), 0.44).sentence
    with pytest.raises(ValueError, match="from 0 to 1"):
        check_skew(np.zeros((8, 64), np.int64), 1.5)
