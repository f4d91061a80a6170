"""Time of a decode step and of a prefill under a residency set (paper 3.2 and Appendix B).

Per layer: the GPU branch takes G whatever is hot, the CPU branch takes gamma0 without a cold route and
alpha + beta * r with r of them, and overlapped branches take the longer of the two. Costs are measured inside the
engine; nothing here guesses one. Refuses costs for which Proposition B.1 does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import CostModelError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CostModel:
    """Milliseconds per layer and decode step; one value per MoE layer in each field.

    Raises CostModelError where lengths differ, beta is negative, or some G exceeds alpha + beta: Equation (1) needs
    both.
    """

    gamma0_ms: tuple[float, ...]
    """CPU branch without a cold route."""
    alpha_ms: tuple[float, ...]
    """Fixed cost of a CPU branch with cold routes."""
    beta_ms: tuple[float, ...]
    """Cost of each cold route."""
    gpu_branch_ms: tuple[float, ...]
    """GPU branch, zero slots included."""

    def __post_init__(self) -> None:
        n_layers = len(self.gpu_branch_ms)
        for name in ("gamma0_ms", "alpha_ms", "beta_ms"):
            if len(getattr(self, name)) != n_layers:
                raise CostModelError(f"{name}: expected {n_layers} layers, found {len(getattr(self, name))}")
        for layer, (alpha, beta, gpu) in enumerate(zip(self.alpha_ms, self.beta_ms, self.gpu_branch_ms, strict=True)):
            if not beta >= 0:
                raise CostModelError(f"layer {layer}: beta_ms: expected 0 or more, found {beta}")
            if not gpu <= alpha + beta:
                raise CostModelError(
                    f"layer {layer}: gpu_branch_ms: expected at most alpha + beta = {alpha + beta:g}, found {gpu}"
                )

    @classmethod
    def same_in_all_layers(
        cls, gpu_branch_ms: Sequence[float], *, gamma0_ms: float, alpha_ms: float, beta_ms: float
    ) -> CostModel:
        """Costs of a model whose experts have one size."""
        n_layers = len(gpu_branch_ms)
        return cls((gamma0_ms,) * n_layers, (alpha_ms,) * n_layers, (beta_ms,) * n_layers, tuple(gpu_branch_ms))

    @property
    def floor_ms(self) -> Floats:
        """(L,) g: what a layer without a cold route takes, max(gamma0, G)."""
        return np.maximum(self.gamma0_ms, self.gpu_branch_ms)

    @property
    def residual_ms(self) -> Floats:
        """(L,) delta: alpha - g, the part of the fixed cost that the GPU branch does not hide."""
        residual: Floats = np.asarray(self.alpha_ms) - self.floor_ms
        return residual

    def cpu_branch_ms(self, cold_routes: ArrayLike) -> Floats:
        """C(r) of each layer for cold routes (..., L)."""
        r = np.asarray(cold_routes)
        return np.where(r > 0, np.asarray(self.alpha_ms) + np.asarray(self.beta_ms) * r, self.gamma0_ms)

    def overlapped_ms(self, cold_routes: ArrayLike) -> Floats:
        """(...) one decode step with overlapped branches, summed over layers, for cold routes (..., L)."""
        total: Floats = np.maximum(self.cpu_branch_ms(cold_routes), self.gpu_branch_ms).sum(axis=-1)
        return total

    def sequential_ms(self, cold_routes: ArrayLike) -> Floats:
        """(...) the same with one branch after the other."""
        total: Floats = (self.cpu_branch_ms(cold_routes) + np.asarray(self.gpu_branch_ms)).sum(axis=-1)
        return total

    def hideable_ms(self, cold_routes: ArrayLike) -> float:
        """U: the most that overlapping can hide per step, mean over steps of the sum of min(C, G) (Appendix B)."""
        hidden = np.minimum(self.cpu_branch_ms(cold_routes), self.gpu_branch_ms).sum(axis=-1)
        return float(np.mean(hidden))

    def residency_ms(self, mu: ArrayLike, q: ArrayLike) -> float:
        """F: the part of a step that depends on residency, beta * mu + delta * q over the layers.

        mu  (L,) expected cold routes of each layer
        q   (L,) probability that the layer has any
        """
        return float(np.dot(self.beta_ms, np.asarray(mu)) + np.dot(self.residual_ms, np.asarray(q)))

    def expected_step_ms(self, mu: ArrayLike, q: ArrayLike) -> float:
        """Equation (1) summed over the layers, whatever the joint distribution of a step's routes."""
        return float(self.floor_ms.sum()) + self.residency_ms(mu, q)

    def distance_from_best_ms(self, q: ArrayLike) -> float:
        """Proposition 3.1: a frequency-ranked set is within this of the best static set, per step.

        Raises CostModelError where some alpha is below max(gamma0, G), or layers differ in beta.
        """
        residual = self.residual_ms
        if residual.size and np.min(residual) < 0:
            raise CostModelError(f"alpha - g: expected 0 or more in every layer, found {np.min(residual):g}")
        if len(set(self.beta_ms)) > 1:
            raise CostModelError("beta_ms: expected the same in all layers")
        return float(np.dot(residual, np.asarray(q)))

    def growth_bounds_ms(self, saved_routes: ArrayLike) -> tuple[float, float]:
        """Proposition B.2: what a larger set that keeps the smaller one saves per step, at least and at most.

        saved_routes  (L,) expected cold routes that the growth removes

        Raises CostModelError where beta is 0 or a residual is negative.
        """
        beta, residual = np.asarray(self.beta_ms), self.residual_ms
        if beta.size and (np.min(beta) <= 0 or np.min(residual) < 0):
            raise CostModelError("expected beta above 0 and alpha at least g in every layer")
        least = float(np.dot(beta, np.asarray(saved_routes)))
        return least, least * (1 + float(np.max(residual / beta, initial=0.0)))


@dataclass(frozen=True, slots=True)
class PrefillCosts:
    """Difference between the split and the upload path of a prefill pass, in milliseconds (Proposition 3.2).

    Raises CostModelError unless the set-up difference is negative and both other costs are positive.
    """

    setup_ms: float
    """phi0: set-up of the split path minus that of the upload path."""
    token_ms: float
    """phi1: CPU time of a token's cold routes minus the GPU's for the same."""
    upload_ms: float
    """phi2: uploading one expert."""

    def __post_init__(self) -> None:
        if not (self.setup_ms < 0 < self.token_ms and self.upload_ms > 0):
            raise CostModelError(
                "expected setup_ms below 0, token_ms and upload_ms above 0, "
                f"found {self.setup_ms}, {self.token_ms}, {self.upload_ms}"
            )

    def difference_ms(self, distinct_cold: ArrayLike) -> Floats:
        """(N,) Phi(n), split minus upload, for passes of 0..N-1 tokens that select `distinct_cold` (N,) experts."""
        distinct = np.asarray(distinct_cold, np.float64)
        return self.setup_ms + self.token_ms * np.arange(distinct.size) - self.upload_ms * distinct

    def threshold(self, distinct_cold: ArrayLike) -> int | None:
        """n*: the first size from which the upload path is no slower; None where the split path wins throughout."""
        reached = np.flatnonzero(self.difference_ms(distinct_cold) >= 0)
        return int(reached[0]) if reached.size else None


@dataclass(frozen=True, slots=True)
class PrefillModel:
    """Milliseconds of one prefill pass on either path, linear in its tokens and cold experts (Appendix B).

    Raises CostModelError for a negative cost.
    """

    split_setup_ms: float
    """Preparation and joins of the split path that nothing hides."""
    upload_setup_ms: float
    """The same of the upload path."""
    token_ms: float
    """What a token costs whatever its routes: attention, the GPU's work on hot routes."""
    cold_route_ms: float
    """What the CPU takes for a cold route, in the split path."""
    cold_route_gpu_ms: float
    """What the GPU takes for it once its expert has been uploaded."""
    expert_upload_ms: float
    """Uploading one expert."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if not getattr(self, name) >= 0:
                raise CostModelError(f"{name}: expected 0 or more, found {getattr(self, name)}")

    def split_ms(self, n_tokens: int, cold_routes_per_token: float) -> float:
        """Pi_split: the CPU computes the cold routes after the GPU has computed the hot ones."""
        cold = n_tokens * cold_routes_per_token * self.cold_route_ms
        return self.split_setup_ms + n_tokens * self.token_ms + cold

    def upload_ms(self, n_tokens: int, cold_routes_per_token: float, distinct_cold: float) -> float:
        """Pi_up: each distinct cold expert is uploaded once and everything runs on the GPU."""
        cold = n_tokens * cold_routes_per_token * self.cold_route_gpu_ms
        return self.upload_setup_ms + n_tokens * self.token_ms + cold + distinct_cold * self.expert_upload_ms

    def ttft_ms(self, n_tokens: int, threshold: int, cold_routes_per_token: float, distinct_cold: float) -> float:
        """Expected time to first token of a turn that reads `n_tokens` in one pass, on the path that Np chooses.

        threshold              Np: passes of this many tokens or more take the upload path
        cold_routes_per_token  over all layers
        distinct_cold          expected distinct cold experts of the pass, over all layers
        """
        if n_tokens < threshold:
            return self.split_ms(n_tokens, cold_routes_per_token)
        return self.upload_ms(n_tokens, cold_routes_per_token, distinct_cold)

    def difference(self, cold_routes_per_token: float) -> PrefillCosts:
        """The two paths compared, in the form of Proposition 3.2. Raises CostModelError where it does not apply."""
        return PrefillCosts(
            setup_ms=self.split_setup_ms - self.upload_setup_ms,
            token_ms=cold_routes_per_token * (self.cold_route_ms - self.cold_route_gpu_ms),
            upload_ms=self.expert_upload_ms,
        )


def break_even_tokens(upload_ms: float, cpu_ms_per_token: float) -> float:
    """Tokens of a pass that must route to an expert before uploading it is cheaper than the CPU (paper 2.1)."""
    return upload_ms / cpu_ms_per_token


def expected_distinct(rates: ArrayLike, n_tokens: int) -> Floats:
    """(N + 1,) expected distinct experts among the first 0..N tokens, where tokens select independently.

    rates  (X,) probability that a token selects the expert, each from 0 to 1

    Nondecreasing, concave and bounded by X, as Lemma B.3 has it for every stationary sequence.
    """
    unselected = 1.0 - np.clip(np.asarray(rates, np.float64).ravel(), 0.0, 1.0)
    sizes = np.arange(n_tokens + 1)
    return np.array([float(np.sum(1.0 - unselected**n)) for n in sizes])


def probability_bounds(mu: ArrayLike, k: int) -> tuple[Floats, Floats]:
    """(L,) and (L,): the least and the most that q can be where only mu is known, not the joint routes of a step.

    A step has at most k cold routes in a layer, so mu <= k q; and a count is at least 1 where it is not 0, so q <= mu.
    """
    expected = np.asarray(mu, np.float64)
    return expected / k, np.minimum(expected, 1.0)
