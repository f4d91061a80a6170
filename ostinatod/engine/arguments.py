"""The command line of an engine process, as a pure function of the settings and the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ostinatod.config import Settings
from ostinatod.engine.gpu_experts import Backend, ExpertPlace
from ostinatod.store.records import ModelRecord

HOST_CACHE_MIB = 8192
"""Host memory for the prompt state of conversations that have lost their slot; a 64k-token conversation of a large
model takes several GiB, and reading it again takes minutes."""

EMBEDDING_BATCH_TOKENS = 8192
"""An embedding input must fit into one physical batch; larger batches only cost compute buffers."""

_FOREIGN_PREFIXES = ("LLAMA_ARG_", "AIP_")
_FOREIGN_NAMES = frozenset({"LLAMA_API_KEY", "LLAMA_SERVER_ROUTER_PORT", "HF_TOKEN"})


def context_tokens(settings: Settings, record: ModelRecord) -> int:
    """The context to load with: the setting, capped by what the model was trained for (0 there means unknown)."""
    trained = record.shape.context_tokens
    return min(settings.context_tokens, trained) if trained else settings.context_tokens


def engine_arguments(
    settings: Settings,
    record: ModelRecord,
    socket: Path,
    residency: Path | None = None,
    backend: Backend = "cpu",
    prompts: Path | None = None,
    experts: ExpertPlace = "stock",
) -> tuple[str, ...]:
    """Arguments after the program's name. `settings.engine_args` come last, so that they win.

    `experts` is what was chosen for the setting `gpu_experts` (`gpu_experts.ExpertChoice`).

    With a `residency` file the CPU backend must leave weights as they are stored: rows of rearranged ones can neither
    be copied into the expert pool nor multiplied one by one. With an expert pool on GPUs everything but the experts is
    on the GPU, those start in host memory, and the engine takes what memory is left; warming up would read all of them,
    and threads of llama.cpp's own would only spin beside those of the CPU branch.

    Chunk reuse by shifting the KV cache (`--cache-reuse`) stays off: it answers from state that was computed behind
    another prefix, which changes results. Exact prefixes are kept in slots and in host memory instead, and in the
    folder `prompts` while the engine does not run.
    """
    context = context_tokens(settings, record)
    arguments = [
        *("--model", str(record.parts[0])),
        *("--alias", record.name),
        *("--host", str(socket)),
        *("--ctx-size", str(context)),
        *("--parallel", str(settings.parallel)),
        "--kv-unified",
        *("--cache-ram", str(HOST_CACHE_MIB)),
        # Which prompts leave their slots, `overlay/ostinato/conversation-slots.h` decides.
        "--no-cache-idle-slots",
        "--no-context-shift",
        "--no-ui",
        "--offline",
        "--metrics",
        "--slots",
        # An origin that no browser sends: the server would otherwise allow every page.
        *("--cors-origins", "null"),
        "--no-cors-credentials",
        *("--sse-ping-interval", "-1"),
        *("--log-colors", "off"),
    ]
    if prompts is not None:
        arguments += ["--slot-save-path", str(prompts)]
    if settings.threads:
        arguments += ["--threads", str(settings.threads)]
    if record.shape.is_embedding:
        batch = str(min(context, EMBEDDING_BATCH_TOKENS))
        arguments += ["--embeddings", "--batch-size", batch, "--ubatch-size", batch]
    else:
        arguments += ["--jinja"]
    if record.shape.n_experts:
        arguments += ["--ostinato-count-routes", "--ostinato-fingerprint", record.digest]
        has_pool = backend == "cuda" and experts == "pool"
        if has_pool:
            arguments += ["--ostinato-branches", "--gpu-layers", "all", "--cpu-moe", "--fit", "off", "--no-warmup"]
            arguments += [] if settings.threads else ["--threads", "1"]
        if has_pool or (residency is not None and backend == "cpu"):
            arguments += ["--no-repack"]
            arguments += [] if residency is None else ["--ostinato-residency", str(residency)]
    return (*arguments, *settings.engine_args)


def engine_environment(environment: Mapping[str, str], library_directory: Path) -> dict[str, str]:
    """The daemon's environment without what would change the engine's settings, finding its own libraries first."""
    kept = {
        key: value
        for key, value in environment.items()
        if not key.startswith(_FOREIGN_PREFIXES) and key not in _FOREIGN_NAMES
    }
    search = [str(library_directory), *filter(None, [kept.get("LD_LIBRARY_PATH")])]
    return {**kept, "LD_LIBRARY_PATH": ":".join(search)}
