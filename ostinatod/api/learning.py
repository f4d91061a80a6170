"""Routes about learning: the plan of a model and its history, the set in use, the profile of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal

from fastapi import APIRouter

from ostinatod.api.ollama_requests import ModelName
from ostinatod.api.state import Services, ServicesDep
from ostinatod.errors import PlanUnavailable
from ostinatod.learning.generations import Generation
from ostinatod.learning.model_files import ModelFacts
from ostinatod.learning.planning import Proposal
from ostinatod.learning.service import Learned
from ostinatod.machine.profile import machine_profile
from ostinatod.profiles.errors import PlanError
from ostinatod.store.records import ModelRecord

router = APIRouter()


class PlanAction(ModelName):
    """What to do with the plan of a model."""

    action: Literal["apply", "undo"]


@router.get("/ostinato/plan")
async def plan(model: str, services: ServicesDep) -> dict[str, Any]:
    """What has been learned about a model, what is proposed, and every set it was given."""
    record = await asyncio.to_thread(services.store.resolve, model)
    return describe_plan(record.name, await services.learning.learned(record))


@router.post("/ostinato/plan")
async def change(wanted: PlanAction, services: ServicesDep) -> dict[str, Any]:
    """Apply the proposal, or return to the set before."""
    record = await asyncio.to_thread(services.store.resolve, wanted.model)
    learning = services.learning
    applied = await (learning.apply(record) if wanted.action == "apply" else learning.undo(record))
    return {"status": "success", **asdict(applied)}


@router.get("/ostinato/residency")
async def residency(model: str, services: ServicesDep) -> dict[str, Any]:
    """The set that the engine of a model runs with now."""
    record = await asyncio.to_thread(services.store.resolve, model)
    try:
        facts = await asyncio.to_thread(services.residencies.facts, record)
    except (PlanError, OSError) as error:
        raise PlanUnavailable(f"the files of {record.name} cannot be read: {error}") from error
    return await _residency(services, record, facts)


@router.get("/ostinato/profile")
async def profile(services: ServicesDep, refresh: bool = False) -> dict[str, Any]:
    """This machine, as measured, and what engines measured on it; `refresh` measures the machine again.

    `calibrations_reason` says why what engines measured could not be read, else it is null.
    """
    found = await asyncio.to_thread(lambda: machine_profile(services.machine_profile, refresh=refresh))
    try:
        calibrations = await asyncio.to_thread(services.learning.calibrations)
    except PlanUnavailable as error:
        return {**found, "calibrations": [], "calibrations_reason": error.message}
    return {**found, "calibrations": calibrations, "calibrations_reason": None}


def describe_plan(model: str, learned: Learned) -> dict[str, Any]:
    """The answer of `GET /ostinato/plan`."""
    skew, proposal = learned.plan.skew, learned.plan.proposal
    return {
        "model": model,
        "sessions": learned.plan.sessions,
        "skew": {"gain": skew.gain, "useful": skew.useful, "sentence": skew.sentence},
        "in_use": learned.in_use,
        "proposal": None if proposal is None else _proposal(proposal, learned),
        "reasons": list(learned.plan.reasons),
        "timing": learned.plan.timing.as_json(),
        "history": [_generation(item) for item in learned.history],
    }


def _proposal(proposal: Proposal, learned: Learned) -> dict[str, Any]:
    check = learned.plan.timing.check
    return {
        "generation": learned.next_generation,
        "hot_experts": proposal.hot_experts,
        "moved": proposal.moved,
        "coverage_now": proposal.coverage_now,
        "coverage_held_out": proposal.coverage_held_out,
        "coverage_uniform": proposal.coverage_uniform,
        "coverage_hindsight": proposal.coverage_hindsight,
        "cold_routes_per_token_now": proposal.cold_routes_per_token_now,
        "cold_routes_per_token": proposal.cold_routes_per_token,
        "tpot_ms_now": proposal.tpot_ms_now,
        "tpot_ms_predicted": proposal.tpot_ms_predicted,
        "tpot_ms_margin": proposal.tpot_ms_margin,
        "tpot_error": check.median_error if check else None,
        "reasons": list(proposal.reasons),
    }


def _generation(item: Generation) -> dict[str, Any]:
    told = asdict(item)
    del told["origin"]
    return told


async def _residency(services: Services, record: ModelRecord, facts: ModelFacts | None) -> dict[str, Any]:
    client = services.loaded.engine_client(record)
    if facts is None or client is None:
        reason = f"{record.name} has no routed experts" if facts is None else f"{record.name} is not loaded"
        return _residency_body(facts, None, None, reason)
    status, told = await asyncio.gather(client.get_json("/ostinato/status"), client.get_json("/ostinato/residency"))
    state = status.get("residency") if isinstance(status, dict) else None
    state = state if isinstance(state, dict) else {}
    return _residency_body(
        facts, told if isinstance(told, dict) else None, state.get("pool_bytes"), state.get("reason")
    )


def _residency_body(
    facts: ModelFacts | None, told: Mapping[str, Any] | None, pool_bytes: object, reason: object
) -> dict[str, Any]:
    hot = dict(zip(told.get("layers", ()), told.get("hot", ()), strict=False)) if told else {}
    layers = []
    if facts is not None:
        experts = facts.experts
        layers = [
            {"layer": layer, "experts": n_experts, "k": experts.k, "hot": hot.get(layer, [])}
            for layer, n_experts in zip(experts.layers, experts.n_experts, strict=True)
        ]
    return {
        "generation": told.get("generation") if told else None,
        "layers": layers,
        "pool_bytes": pool_bytes if told else None,
        "reason": reason or None,
    }
