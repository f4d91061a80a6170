"""Decides `gpu_experts` for a model: reads its header, asks what GPUs have free, and checks what an engine did."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ostinatod.config import Settings
from ostinatod.engine.arguments import context_tokens
from ostinatod.engine.client import EngineClient
from ostinatod.engine.gpu_experts import (
    STOCK_HINT,
    Backend,
    ExpertChoice,
    ModelNeeds,
    choose_by_memory,
    choose_unread,
    why_refused,
)
from ostinatod.machine.gpus import Gpu, list_gpus
from ostinatod.profiles.errors import HeaderError
from ostinatod.profiles.gguf_model import GgufModel, read_model
from ostinatod.profiles.load_estimate import LoadEstimate, estimate_load
from ostinatod.profiles.pool_support import why_no_pool
from ostinatod.store.records import ModelRecord

log = logging.getLogger(__name__)


class ExpertChooser:
    """Chooses for engines that start with `environment`. `gpus` is asked each time: other programs use them too."""

    def __init__(
        self,
        settings: Settings,
        environment: Mapping[str, str],
        gpus: Callable[[], Sequence[Gpu]] = list_gpus,
    ) -> None:
        self._settings = settings
        self._visible = environment.get("CUDA_VISIBLE_DEVICES")
        self._gpus = gpus

    def choose(self, record: ModelRecord, backend: Backend) -> ExpertChoice:
        """Where an engine that is started now has the experts. Blocks.

        A header that cannot be read leaves the placement to llama.cpp, which says what is wrong with the file.
        """
        if (choice := choose_unread(self._settings, backend, record.shape.n_experts)) is not None:
            return choice
        try:
            model = read_model(record.parts)
            needs = model_needs(model, estimate_load(model, context_tokens(self._settings, record)))
        except (HeaderError, OSError) as error:
            return ExpertChoice("stock", f"the model's header cannot be read: {error}")
        return self._by_memory(needs)

    def choose_for(self, model: GgufModel, estimate: LoadEstimate, backend: Backend) -> ExpertChoice:
        """The same for a model whose header was read already. Blocks."""
        unread = choose_unread(self._settings, backend, model.expert_count)
        return unread or self._by_memory(model_needs(model, estimate))

    def _by_memory(self, needs: ModelNeeds) -> ExpertChoice:
        return choose_by_memory(needs, free_bytes_seen(self._gpus(), self._visible))


async def confirmed(choice: ExpertChoice, name: str, client: EngineClient) -> ExpertChoice:
    """The choice, and why a loaded engine does not do it, which the log tells too."""
    status = await client.get_json("/ostinato/status") if choice.chosen == "pool" else None
    refused = why_refused(status) if isinstance(status, dict) else None
    if refused is None:
        return choice
    log.warning("expert_pool_refused model=%s reason=%r hint=%r", name, refused, STOCK_HINT)
    return replace(choice, refused=refused, hint=STOCK_HINT)


def model_needs(model: GgufModel, estimate: LoadEstimate) -> ModelNeeds:
    """What the decision needs of a model. Raises HeaderError."""
    return ModelNeeds(
        experts_bytes=estimate.expert_weights_bytes,
        resident_bytes=estimate.dense_weights_bytes + estimate.kv_cache_bytes,
        compute_bytes=estimate.compute_bytes,
        no_pool_reason=why_no_pool(model),
    )


def free_bytes_seen(gpus: Sequence[Gpu], visible: str | None) -> tuple[int, ...] | None:
    """Free memory of each GPU that CUDA shows the engine; None where the driver tells of none.

    visible  CUDA_VISIBLE_DEVICES: numbers in the driver's order, or (beginnings of) UUIDs; as for CUDA, the first entry
             that names no GPU ends the list. None shows all. Parts of a GPU (MIG) have memory that is not told here.
    """
    if not gpus:
        return None
    if visible is None:
        return tuple(gpu.free_bytes for gpu in gpus)
    seen: list[Gpu] = []
    for entry in (item.strip() for item in visible.split(",")):
        if entry.startswith("MIG-"):
            return None
        found = [gpu for gpu in gpus if _is_named(gpu, entry)]
        if len(found) != 1 or found[0] in seen:
            break
        seen += found
    return tuple(gpu.free_bytes for gpu in seen)


def _is_named(gpu: Gpu, entry: str) -> bool:
    return str(gpu.index) == entry or (entry.startswith("GPU-") and gpu.uuid.startswith(entry))
