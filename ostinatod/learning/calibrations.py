"""What engines have measured of themselves on this machine: kept per machine, build and model, for the time before the
next engine has measured anew, and checked against what it measures then.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ostinatod.learning.database import LearningDatabase
from ostinatod.profiles.calibration import (
    CpuBranch,
    DecodeOverlap,
    LayerTimes,
    LinkShare,
    cold_cost,
    fit_cpu_branch,
    fit_overlap,
    with_link_share,
)
from ostinatod.profiles.cold_cost import ColdCost
from ostinatod.profiles.errors import CostModelError
from ostinatod.transactions import immediate

ENOUGH_STEPS = 1000
"""Decode steps of single layers from which a measurement replaces one that had as many or more."""
_SPEEDS = {
    "cpu_row": "cpu_row_bytes_per_s",
    "cpu_rows": "cpu_rows_bytes_per_s",
    "link": "link_bytes_per_s",
    "in_place": "in_place_bytes_per_s",
}


@dataclass(frozen=True, slots=True)
class DeviceSpeeds:
    """What an engine measured of one GPU's cold experts when it was loaded: 1e9 bytes per second, None where it did
    not."""

    name: str
    """Of the GPU, and of the kind of experts where several were measured."""
    cpu_row_gbps: float | None
    """By the CPU, one row per expert: bound by memory."""
    cpu_rows_gbps: float | None
    """With 16 rows per expert: bound by arithmetic."""
    link_gbps: float | None
    """To the GPU, from page-locked memory."""
    in_place_gbps: float | None = None
    """Of what the GPU itself computes of them in decode, reading host memory in place beside the CPU."""


@dataclass(frozen=True, slots=True)
class UploadCosts:
    """What an engine has learned of layers with uploads, in passes of so many tokens up to the next power of two."""

    name: str
    """Of the GPU."""
    tokens: int
    link_gbps: float
    """While the CPU branch reads the same memory: 1e9 bytes per second."""
    hot_ms: float
    """Of the GPU for a layer's hot experts, beside both."""
    chain_ms: float
    """And for those uploaded, behind the last upload."""
    cpu_factor: float
    """What the CPU branch takes over what its own speeds say, beside uploads."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Costs of one model in one build's engine on one machine."""

    cpu_branch: tuple[CpuBranch, ...] = ()
    """C(r) in decode, by size of expert."""
    speeds: tuple[DeviceSpeeds, ...] = ()
    prefill_error: float | None = None
    """What the CPU branch took in prefill over what the speeds had predicted, less 1; None where nothing was."""
    overlap: DecodeOverlap | None = None
    """Of the branches in decode; None where nothing tells how long the GPUs waited."""
    foreseen_share: float | None = None
    """Of the experts copied before their layer's router had run, those that it chose; None where none were."""
    upload_error: float | None = None
    """What layers with uploads took over what the choice of them had expected, less 1; None where none had any."""
    uploads: tuple[UploadCosts, ...] = ()
    """By size of passes; those that the choice counts with by now."""

    def cold_cost(self, *, layers: int, k: int, cold_routes: float) -> ColdCost | None:
        """What cold routes add to a token's time; None where it was not measured. See `calibration.cold_cost`."""
        return cold_cost(self.cpu_branch, self.overlap, layers=layers, k=k, cold_routes=cold_routes)

    @property
    def steps(self) -> int:
        """Decode steps of single layers that were measured."""
        return sum(item.steps for item in self.cpu_branch)

    def as_json(self) -> dict[str, Any]:
        """As it is stored and told."""
        told: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return told


def read_calibration(status: Mapping[str, Any] | None) -> Calibration | None:
    """What a loaded engine tells: `cpu_branch` and `devices`. None where it has measured nothing yet."""
    if status is None or not isinstance(told := status.get("cpu_branch"), list):
        return None
    try:
        gpus = [device for device in status["devices"] if device["gpu"]]
        by_name = {device["name"]: device for device in gpus}
        layers = [times for device in told for times in _layers(device["decode"], by_name.get(device["name"], {}))]
        predicted = sum(float(device["prefill"]["cpu_ms_predicted"]) for device in told)
        taken = sum(float(device["prefill"]["cpu_ms"]) for device in told)
        found = Calibration(
            fit_cpu_branch(layers),
            _speeds(gpus),
            round(taken / predicted - 1, 4) if predicted > 0 else None,
            _overlap(layers, gpus),
            _foreseen_share(gpus),
            _upload_error(told),
            _upload_costs(told),
        )
    except (KeyError, TypeError, ValueError, CostModelError):
        return None
    return found if found != Calibration() else None


@dataclass(frozen=True, slots=True)
class Kept:
    """A stored calibration. Times are unix seconds."""

    since: float
    """Requests before this ran on another machine or build; 0 where there was none before."""
    updated_at: float
    build: str
    calibration: Calibration


class Calibrations:
    """Stored calibrations of this machine. Methods block and raise PlanUnavailable."""

    def __init__(
        self, database: LearningDatabase, machine: Callable[[], str], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._machine = machine
        self._clock = clock

    def keep(self, fingerprint: str, build: str, calibration: Calibration | None) -> Kept:
        """What holds for a model in a build now: `calibration` where the engine has measured one, else the last."""
        key, now = (self._machine(), build, fingerprint), self._clock()
        with self._database.open() as db, immediate(db):
            rows = {
                (row["machine"], row["build"]): row
                for row in db.query("select * from calibrations where fingerprint = ?", [fingerprint])
            }
            own = rows.get(key[:2])
            before = None if own is None else _kept(own)
            kept = Kept(
                since=before.since if before else (now if rows else 0.0),
                updated_at=now,
                build=build,
                calibration=_better(before.calibration if before else None, calibration),
            )
            if before is None or before.calibration != kept.calibration:
                measured = json.dumps(kept.calibration.as_json())
                db.table("calibrations").upsert(
                    dict(zip(("machine", "build", "fingerprint"), key, strict=True))
                    | {"since": kept.since, "updated_at": now, "measured": measured},
                    pk=("machine", "build", "fingerprint"),
                )
        return kept

    def latest(self, fingerprint: str | None = None) -> dict[str, Kept]:
        """By model, what was measured last on this machine."""
        with self._database.open() as db:
            rows = db.query(
                "select * from calibrations where machine = ? and (? is null or fingerprint = ?) order by updated_at",
                [self._machine(), fingerprint, fingerprint],
            )
            return {row["fingerprint"]: _kept(row) for row in rows}


def _better(before: Calibration | None, measured: Calibration | None) -> Calibration:
    """The newer one, once it has seen enough; an engine that was just loaded has seen nearly nothing."""
    if before is None or measured is None:
        return measured or before or Calibration()
    return measured if measured.steps >= min(ENOUGH_STEPS, before.steps) else before


def _kept(row: Mapping[str, Any]) -> Kept:
    told = json.loads(row["measured"])
    calibration = Calibration(
        tuple(CpuBranch(**item) for item in told["cpu_branch"]),
        tuple(DeviceSpeeds(**item) for item in told["speeds"]),
        told["prefill_error"],
        DecodeOverlap(**overlap) if (overlap := told.get("overlap")) else None,
        told.get("foreseen_share"),
        told.get("upload_error"),
        tuple(UploadCosts(**item) for item in told.get("uploads", ())),
    )
    return Kept(row["since"], row["updated_at"], row["build"], calibration)


def _speeds(gpus: Sequence[Mapping[str, Any]]) -> tuple[DeviceSpeeds, ...]:
    found = []
    for device in gpus:
        name = str(device["name"])
        kinds = [kind for number, kind in enumerate(device.get("kinds", ())) if kind["measured"] == number]
        told = {f"{name}, {kind['types']}": kind["speeds"] for kind in kinds}
        for of, speeds in (told if len(told) > 1 else {name: device.get("speeds")}).items():
            if isinstance(speeds, dict):
                gbps = {
                    f"{item}_gbps": round(speeds[key] / 1e9, 3) if speeds.get(key) else None
                    for item, key in _SPEEDS.items()
                }
                found.append(DeviceSpeeds(of, **gbps))
    return tuple(found)


def _layers(decode: Sequence[Mapping[str, Any]], gpu: Mapping[str, Any]) -> list[LayerTimes]:
    """The decode steps of a GPU's layers, with what it takes for its share of their cold experts."""
    layers = [
        LayerTimes(int(item["layer"]), int(item["expert_bytes"]), tuple(item["steps"]), tuple(item["cpu_ms"]))
        for item in decode
    ]
    if "link_columns" not in gpu:
        return layers
    share = LinkShare(
        int(gpu["link_columns"]),
        int(gpu["hidden_columns"]),
        int(gpu["linked"]),
        float(gpu["speeds"]["in_place_bytes_per_s"]),
    )
    return with_link_share(layers, share)


def _overlap(layers: Sequence[LayerTimes], gpus: Sequence[Mapping[str, Any]]) -> DecodeOverlap | None:
    waited = [float(device["decode_waited_ms"]) for device in gpus if "decode_waited_ms" in device]
    return fit_overlap(layers, sum(waited)) if waited else None


def _foreseen_share(gpus: Sequence[Mapping[str, Any]]) -> float | None:
    ahead = sum(int(device.get("prefetched", 0)) for device in gpus)
    return round(sum(int(device.get("foreseen", 0)) for device in gpus) / ahead, 4) if ahead else None


def _upload_error(branches: Sequence[Mapping[str, Any]]) -> float | None:
    told = [branch["uploads"] for branch in branches if "uploads" in branch]
    expected = sum(float(item["ms_expected"]) for item in told)
    return round(sum(float(item["ms"]) for item in told) / expected - 1, 4) if expected > 0 else None


def _upload_costs(branches: Sequence[Mapping[str, Any]]) -> tuple[UploadCosts, ...]:
    return tuple(
        UploadCosts(
            str(branch["name"]),
            int(item["tokens"]),
            round(float(item["link_bytes_per_s"]) / 1e9, 3),
            round(float(item["hot_ms"]), 4),
            round(float(item["chain_ms"]), 4),
            round(float(item["cpu"]), 3),
        )
        for branch in branches
        for item in branch.get("uploads", {}).get("costs", ())
    )
