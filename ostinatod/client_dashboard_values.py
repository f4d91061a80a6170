"""What the daemon tells the dashboard, as values: one frozen dataclass per kind of answer.

A figure that the daemon did not tell is None, never 0. Strings are untrusted and kept as told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ostinatod.client_json import Json
from ostinatod.client_values import ModelListing

T = TypeVar("T")

USES = ("dense", "kv", "pool", "borrowed", "staging", "compute", "margin")
"""What an engine uses a device's memory for, in the order of the memory plan; staging is where uploads land."""
HOST_USES = ("weights", "kv", "compute")
"""What an engine uses host memory for."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A part that the daemon did not give, why, and the next command if there is one."""

    reason: str
    hint: str | None = None


Part: TypeAlias = T | Unavailable

NOT_ASKED = Unavailable("not asked for yet")


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One GPU's memory as the engine accounts for it; `used_bytes` by the names of `USES`, those that were told."""

    name: str
    total_bytes: int | None
    free_bytes: int | None
    used_bytes: tuple[tuple[str, int], ...]
    pool_used_bytes: int | None = None
    """Of the expert pool: slots that hold an expert."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """One model in memory."""

    name: str
    state: str
    progress: float | None
    """Of the load, 0 to 1."""
    pid: int | None
    rss_bytes: int | None
    context_tokens: int | None
    slots: int | None
    in_flight: int | None
    queued: int | None
    backend: str
    generation: int | None
    hot_experts: int | None
    pool_bytes: int | None
    residency_state: str | None
    """none, applied or refused; None where the engine does not say."""
    residency_reason: str | None
    devices: tuple[DeviceMemory, ...]
    host_bytes: tuple[tuple[str, int], ...] = ()
    """By the names of `HOST_USES`, those that were told."""


@dataclass(frozen=True, slots=True)
class DaemonState:
    """The daemon and what it has in memory."""

    pid: int | None
    version: str
    uptime_s: float | None
    build_backend: str | None
    """None where no engine is built."""
    models: tuple[ModelState, ...]


@dataclass(frozen=True, slots=True)
class PrefixBreak:
    """Why a turn had to read again what had been read."""

    reason: str
    detail: str
    lost_tokens: int | None


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Times are milliseconds, coverages shares between 0 and 1."""

    id: str
    session: str
    turn: int | None
    model: str
    dialect: str
    kind: str
    status: str
    started_at_s: float | None
    queue_ms: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    total_ms: float | None
    new_tokens: int | None
    reused_tokens: int | None
    output_tokens: int | None
    prefix_break: PrefixBreak | None
    generation: int | None
    path: str | None
    cold_routes: int | None
    routes: int | None
    coverage_prefill: float | None
    coverage_decode: float | None

    @property
    def is_open(self) -> bool:
        """Whether it is still queued or being answered."""
        return self.status in ("running", "queued")


@dataclass(frozen=True, slots=True)
class Session:
    """One agent session; times are medians in milliseconds."""

    id: str
    model: str
    source: str
    started_at_s: float | None
    last_at_s: float | None
    turns: int | None
    new_tokens: int | None
    reused_tokens: int | None
    output_tokens: int | None
    ttft_ms_p50: float | None
    tpot_ms_p50: float | None
    wait_after_tool_ms_p50: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """The engine's route counts since the model was loaded.

    prefill, decode  (L, E) routes per layer and expert; row i belongs to layer `layers[i]`
    """

    layers: tuple[int, ...]
    prefill: NDArray[np.int64]
    decode: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LayerResidency:
    """One layer of the residency set in use; `hot` are expert ids."""

    layer: int
    n_experts: int
    k: int | None
    hot: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Residency:
    """The residency set that the engine runs with; without one `layers` is empty and `reason` may say why."""

    generation: int | None
    layers: tuple[LayerResidency, ...]
    pool_bytes: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Proposal:
    """The residency set that planning proposes. Coverages are shares between 0 and 1."""

    generation: int | None
    hot_experts: int | None
    moved: int | None
    coverage_now: float | None
    coverage_held_out: float | None
    coverage_uniform: float | None
    coverage_hindsight: float | None
    cold_routes_per_token_now: float | None
    cold_routes_per_token: float | None
    tpot_ms_predicted: float | None
    reasons: tuple[str, ...]
    tpot_error: float | None = None
    """By how much predictions of the latest requests were off, as a share."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation of a model's residency set."""

    generation: int | None
    created_at_s: float | None
    source: str
    state: str
    sessions: int | None
    hot_experts: int | None
    moved: int | None
    coverage_held_out: float | None
    coverage_measured: float | None
    tpot_ms_measured: float | None
    note: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What has been learned about a model, and what planning would do next. `history` is newest first."""

    model: str
    sessions: int | None
    gain: float | None
    """Of a learned set over a uniform one, in coverage."""
    useful: bool | None
    sentence: str
    proposal: Proposal | None
    history: tuple[Generation, ...]

    @property
    def active(self) -> Generation | None:
        """The generation in use."""
        return next((entry for entry in self.history if entry.state == "active"), None)


@dataclass(frozen=True, slots=True)
class Reading:
    """One round of answers."""

    at_s: float
    """Wall clock."""
    daemon: DaemonState
    listings: Part[tuple[ModelListing, ...]] = NOT_ASKED
    requests: Part[tuple[Request, ...]] = NOT_ASKED
    """Those in flight, then the others newest first."""
    sessions: Part[tuple[Session, ...]] = NOT_ASKED
    routes: Part[Routes] = NOT_ASKED
    residency: Part[Residency] = NOT_ASKED
    plan: Part[Plan] = NOT_ASKED
    profile: Part[Json] = NOT_ASKED
    logs: Part[tuple[str, ...]] = NOT_ASKED
