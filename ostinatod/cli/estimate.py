"""`ostinato load --estimate-only`: the memory that a model will take, by use, before any of it is taken."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import psutil

from ostinatod.cli.local_store import open_store
from ostinatod.cli.models import local_path
from ostinatod.cli.output import print_json, print_text, say
from ostinatod.cli.text import human_bytes, table
from ostinatod.config import Settings
from ostinatod.errors import EngineNotBuilt, ModelFormatError

if TYPE_CHECKING:
    from pathlib import Path

    from ostinatod.engine.gpu_experts import ExpertChoice
    from ostinatod.profiles.gguf_model import GgufModel
    from ostinatod.profiles.load_estimate import LoadEstimate


def tell_estimate(settings: Settings, model: str, *, as_json: bool) -> None:
    """Print the estimate. Raises ModelNotFound, or ModelFormatError for a file that is no model."""
    from ostinatod.doctor.nvidia import ask_driver

    header, estimate = _estimate(settings, model)
    experts = _expert_choice(settings, header, estimate)
    available = psutil.virtual_memory().available
    driver = ask_driver()
    gpu_free = sum(gpu.free_bytes for gpu in driver.gpus) if driver else 0
    if as_json:
        print_json(estimate_facts(model, estimate, available, gpu_free, experts))
        return
    rows = [(use, human_bytes(size), how) for use, size, how in _rows(estimate)]
    print_text(table(("USE", "SIZE", "HOW IT IS KNOWN"), rows))
    verdict = "fits" if estimate.total_bytes <= available + gpu_free else "does not fit"
    place = f"{human_bytes(available)} of memory available now"
    if gpu_free:
        place += f" and the {human_bytes(gpu_free)} free on GPUs"
    print_text(f"\n{human_bytes(estimate.total_bytes)} {verdict} in the {place}")
    if experts is not None and estimate.n_experts:
        print_text(f"experts: {experts.chosen}, as {experts.reason}")
    for note in estimate.notes:
        say(f"note: {note}")


def estimate_facts(
    model: str, estimate: LoadEstimate, available_bytes: int, gpu_free_bytes: int, experts: ExpertChoice | None
) -> dict[str, Any]:
    """The estimate as JSON holds it."""
    return {
        "model": model,
        **asdict(estimate),
        "total_bytes": estimate.total_bytes,
        "read_per_token_bytes": estimate.read_per_token_bytes,
        "available_bytes": available_bytes,
        "gpu_free_bytes": gpu_free_bytes,
        "gpu_experts": None if experts is None else {"chosen": experts.chosen, "reason": experts.reason},
    }


def _expert_choice(settings: Settings, header: GgufModel, estimate: LoadEstimate) -> ExpertChoice | None:
    """Where the engine would have the experts if it were started now; None where no engine is built."""
    from ostinatod.engine.expert_chooser import ExpertChooser
    from ostinatod.installer.engine_build import find_engine

    try:
        build = find_engine()
    except EngineNotBuilt:
        return None
    return ExpertChooser(settings, os.environ).choose_for(header, estimate, build.backend)


def _estimate(settings: Settings, model: str) -> tuple[GgufModel, LoadEstimate]:
    from ostinatod.engine.arguments import HOST_CACHE_MIB
    from ostinatod.profiles.errors import HeaderError
    from ostinatod.profiles.gguf_model import read_model
    from ostinatod.profiles.load_estimate import estimate_load

    try:
        header = read_model(_parts(settings, model))
        trained = header.context_length
        context = min(settings.context_tokens, trained) if trained else settings.context_tokens
        estimate = estimate_load(header, context)
    except HeaderError as error:
        raise ModelFormatError(error.message, hint="The file is damaged or not a model; fetch it again.") from error
    except OSError as error:
        raise ModelFormatError(f"cannot read the model: {error}") from error
    kept = (
        f"up to {HOST_CACHE_MIB / 1024:.0f} GiB of memory keeps the prompts of earlier conversations; that is left out"
    )
    return header, replace(estimate, notes=(*estimate.notes, kept))


def _parts(settings: Settings, model: str) -> tuple[Path, ...]:
    path = local_path(model)
    if path is None:
        return open_store(settings).resolve(model).parts
    from ostinatod.store.gguf_files import parts_of

    return parts_of(path)


def _rows(estimate: LoadEstimate) -> list[tuple[str, int, str]]:
    rows = []
    if estimate.n_experts:
        experts = (
            f"exact: {estimate.n_moe_layers} layers of {estimate.n_experts} experts of "
            f"{human_bytes(estimate.expert_bytes)}, {estimate.k} selected per token"
        )
        rows.append(("expert weights", estimate.expert_weights_bytes, experts))
    rows += [
        ("dense weights", estimate.dense_weights_bytes, "exact"),
        ("KV cache", estimate.kv_cache_bytes, f"for a context of {estimate.context_tokens} tokens, see notes"),
        ("compute buffers", estimate.compute_bytes, "estimate"),
        ("together", estimate.total_bytes, ""),
        ("read per token", estimate.read_per_token_bytes, "weights that a decode step goes through"),
    ]
    return rows
