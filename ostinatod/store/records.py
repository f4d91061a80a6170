"""What the store tells the rest of the daemon about a model. Values only; no I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

Source = Literal["bundled", "hub", "file"]
"""bundled: ships with the package; hub: downloaded by `pull`; file: adopted where the user keeps it."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a GGUF header says about the model; counts are 0 where the architecture has no such thing."""

    architecture: str
    parameters: int
    n_layers: int
    n_embd: int
    n_experts: int
    k: int
    """Experts selected per token and layer."""
    context_tokens: int
    """Context the model was trained for."""
    quantization: str
    has_chat_template: bool
    is_embedding: bool


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """One registered name. Several names may share the same files."""

    name: str
    digest: str
    """Hex SHA-256 over the headers of all parts: the model fingerprint that routing data is keyed by."""
    parts: tuple[Path, ...]
    """GGUF parts in order; the engine is given the first."""
    size_bytes: int
    modified_at: datetime
    source: Source
    shape: ModelShape
    reference: str | None = None
    """Where it came from, as the user typed it: hub reference or path."""


@dataclass(frozen=True, slots=True)
class PullProgress:
    """One step of a pull. `completed_bytes` of a file never goes backwards, also across a restart."""

    status: str
    """"resolving", "downloading", "verifying", "registering" or "success"."""
    file: str | None = None
    completed_bytes: int = 0
    total_bytes: int = 0
    all_completed_bytes: int = 0
    """Over all files of the pull."""
    all_total_bytes: int = 0
    detail: dict[str, str | int] = field(default_factory=dict)


ProgressCallback = Callable[[PullProgress], None]
