"""Models as JSON in the dialects of OpenAI and Ollama. Pure functions.

The context told everywhere is the one a request can use: as loaded, or as the model would be loaded now. What the model
was trained for has a field of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostinatod.config import Settings
from ostinatod.engine.arguments import context_tokens
from ostinatod.loaded import LoadedModel
from ostinatod.store.records import ModelRecord

_GPU_USES = ("dense_bytes", "kv_bytes", "compute_bytes", "pool_bytes", "borrowed_bytes", "staging_bytes")
_SCALES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))


def usable_context_tokens(record: ModelRecord, settings: Settings, loaded: LoadedModel | None) -> int:
    """The loaded context; where it is not loaded, the one it would be loaded with."""
    return loaded.context_tokens if loaded else context_tokens(settings, record)


def capabilities(record: ModelRecord) -> list[str]:
    """Ollama's words for what the model can do."""
    if record.shape.is_embedding:
        return ["embedding"]
    return ["completion", "tools"] if record.shape.has_chat_template else ["completion"]


def openai_model(record: ModelRecord, settings: Settings, loaded: LoadedModel | None) -> dict[str, Any]:
    """One entry of `/v1/models`, with the context under every name that clients look for."""
    context = usable_context_tokens(record, settings, loaded)
    return {
        "id": record.name,
        "object": "model",
        "created": int(record.modified_at.timestamp()),
        "owned_by": "ostinato",
        "max_model_len": context,
        "context_length": context,
        "context_window": context,
        "capabilities": capabilities(record),
        "meta": {
            "n_ctx": context,
            "n_ctx_train": record.shape.context_tokens,
            "n_params": record.shape.parameters,
            "size": record.size_bytes,
        },
    }


def listing(record: ModelRecord, settings: Settings, loaded: LoadedModel | None) -> dict[str, Any]:
    """One entry of `/api/tags`."""
    return {
        **_identity(record),
        "modified_at": record.modified_at.isoformat(),
        "source": record.source,
        "n_experts": record.shape.n_experts,
        "k": record.shape.k,
        "context_tokens": usable_context_tokens(record, settings, loaded),
    }


def running(loaded: LoadedModel, engine: Mapping[str, Any] | None) -> dict[str, Any]:
    """One entry of `/api/ps`; `engine` is what the engine tells of itself, if it does.

    A crashed engine that the next request restarts counts as stopping.
    """
    state = "stopping" if loaded.state == "dead" else loaded.state
    return {
        **_identity(loaded.record),
        "expires_at": loaded.expires_at.isoformat() if loaded.expires_at else None,
        "size_vram": _gpu_bytes(loaded, engine),
        "context_length": loaded.context_tokens,
        "state": state,
        "progress": loaded.progress,
        "in_flight": loaded.in_flight,
        "queued": loaded.queued,
        "pid": loaded.pid,
        "rss_bytes": loaded.rss_bytes,
        "backend": loaded.backend,
        "gpu_experts": loaded.experts.as_json(),
    }


def shown(record: ModelRecord, template: str, settings: Settings, loaded: LoadedModel | None) -> dict[str, Any]:
    """The answer of `/api/show`."""
    context = usable_context_tokens(record, settings, loaded)
    shape, architecture = record.shape, record.shape.architecture
    return {
        "modelfile": "",
        "parameters": f"num_ctx {context}",
        "template": template,
        "details": _details(record),
        "model_info": {
            "general.architecture": architecture,
            "general.parameter_count": shape.parameters,
            f"{architecture}.block_count": shape.n_layers,
            f"{architecture}.embedding_length": shape.n_embd,
            f"{architecture}.expert_count": shape.n_experts,
            f"{architecture}.expert_used_count": shape.k,
            f"{architecture}.context_length": context,
            "ostinato.trained_context_length": shape.context_tokens,
        },
        "capabilities": capabilities(record),
        "modified_at": record.modified_at.isoformat(),
        "source": record.source,
        "reference": record.reference,
        "digest": record.digest,
        "size": record.size_bytes,
        "parts": [str(part) for part in record.parts],
    }


def status_entry(loaded: LoadedModel, engine: Mapping[str, Any] | None) -> dict[str, Any]:
    """One loaded model in `/ostinato/status`; `engine` is what the engine tells of itself, if it does."""
    return {
        "name": loaded.record.name,
        "digest": loaded.record.digest,
        "state": loaded.state,
        "load": {"progress": loaded.progress},
        "pid": loaded.pid,
        "rss_bytes": loaded.rss_bytes,
        "context_tokens": loaded.context_tokens,
        "slots": loaded.parallel,
        "in_flight": loaded.in_flight,
        "queued": loaded.queued,
        "expires_at": loaded.expires_at.isoformat() if loaded.expires_at else None,
        "backend": loaded.backend,
        "gpu_experts": loaded.experts.as_json(),
        "engine": engine,
    }


def _gpu_bytes(loaded: LoadedModel, engine: Mapping[str, Any] | None) -> int | None:
    """What the engine has allocated on GPUs; None where it does not tell."""
    if loaded.backend == "cpu":
        return 0
    memory = engine.get("memory") if engine else None
    if not isinstance(memory, dict):
        return None
    return sum(int(device.get(use, 0)) for device in memory.get("devices", []) for use in _GPU_USES)


def _identity(record: ModelRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "model": record.name,
        "size": record.size_bytes,
        "digest": record.digest,
        "details": _details(record),
    }


def _details(record: ModelRecord) -> dict[str, Any]:
    return {
        "format": "gguf",
        "family": record.shape.architecture,
        "families": [record.shape.architecture],
        "parameter_size": _count(record.shape.parameters),
        "quantization_level": record.shape.quantization,
    }


def _count(number: int) -> str:
    for scale, letter in _SCALES:
        if number >= scale:
            return f"{number / scale:.3g}{letter}"
    return str(number)
