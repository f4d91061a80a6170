"""What the development sessions decide: the hot experts, and which setting of each kind is timed (paper 4.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinatod.bench.settings import Setting, as_json, from_json
from ostinatod.profiles.experts import ModelExperts
from ostinatod.profiles.planner import plan_hot
from ostinatod.profiles.rates import Forgetting, learned_rates
from ostinatod.profiles.residency import hot_lists
from ostinatod.profiles.route_log import SessionRoutes

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Learned:
    """The hot experts.

    pool_bytes  memory that experts may take, on a GPU with the staging buffer; stock's whole layers may take the same
    coverage    share of the routes of the development sessions
    """

    pool_bytes: int
    hot: Mask
    coverage: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was decided before anything was timed.

    settings  the timed ones
    search    every candidate with its time on the development sessions, or why it has none
    timed     turns of each held-out session that are timed, by its id; None for all
    """

    learned: Learned
    settings: tuple[Setting, ...]
    search: tuple[Mapping[str, Any], ...]
    timed: Mapping[str, int] | None = None

    def as_json(self) -> dict[str, Any]:
        """For the file of results."""
        return {
            "pool_bytes": self.learned.pool_bytes,
            "hot": hot_lists(self.learned.hot),
            "n_experts": self.learned.hot.shape[1],
            "coverage": self.learned.coverage,
            "settings": [as_json(setting) for setting in self.settings],
            "search": list(self.search),
            "timed": None if self.timed is None else dict(self.timed),
        }


def chosen_from_json(values: Mapping[str, Any]) -> Chosen:
    """What `Chosen.as_json` wrote."""
    hot = np.zeros((len(values["hot"]), values["n_experts"]), np.bool_)
    for row, experts in zip(hot, values["hot"], strict=True):
        row[experts] = True
    learned = Learned(values["pool_bytes"], hot, values["coverage"])
    return Chosen(learned, tuple(map(from_json, values["settings"])), tuple(values["search"]), values["timed"])


def learn(counted: Sequence[SessionRoutes], experts: ModelExperts, pool_bytes: int, hot_bytes: int) -> Learned:
    """The experts that the daemon's planner would keep hot after these sessions, in `hot_bytes` of `pool_bytes`."""
    rho = learned_rates(counted, experts.k, Forgetting())
    hot = plan_hot(rho, experts.places(), [hot_bytes])
    counts = sum((session.prefill + session.decode for session in counted), np.zeros(hot.shape, np.int64))
    return Learned(pool_bytes, hot, int(counts[hot].sum()) / max(1, int(counts.sum())))


def session_routes(event: Mapping[str, Any], number: int) -> SessionRoutes:
    """The routes that a job has counted of its session number `number`."""
    return SessionRoutes(
        session=event["session"],
        started_at=float(number),
        last_at=float(number),
        requests=event["turns"],
        layers=tuple(event["layers"]),
        prefill=np.array(event["prefill"], np.int64),
        decode=np.array(event["decode"], np.int64),
        new_tokens=event["new_tokens"],
        output_tokens=event["output_tokens"],
    )
