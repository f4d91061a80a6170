"""A model store in memory, with downloads that a test steers."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timezone
from pathlib import Path

from ostinatod.errors import ModelNotFound, PullError
from ostinatod.store.leftovers import Leftovers
from ostinatod.store.records import ModelRecord, ModelShape, ProgressCallback

PullScript = Callable[[str, ProgressCallback, threading.Event], None]

SHAPE = ModelShape(
    architecture="qwen3moe",
    parameters=62_000_000,
    n_layers=2,
    n_embd=64,
    n_experts=8,
    k=2,
    context_tokens=131072,
    quantization="MXFP4",
    has_chat_template=True,
    is_embedding=False,
)


def record(name: str, *, size_bytes: int = 1000, path: Path | None = None, is_embedding: bool = False) -> ModelRecord:
    """A record of a model that may not exist."""
    return ModelRecord(
        name=name,
        digest=hashlib.sha256(str(path or name).encode()).hexdigest(),
        parts=(path or Path(f"/models/{name}.gguf"),),
        size_bytes=size_bytes,
        modified_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
        source="file",
        shape=dataclasses.replace(SHAPE, is_embedding=is_embedding),
    )


class MemoryStore:
    """Pulling runs `pull_script` and then registers the reference as a name."""

    def __init__(self, *records: ModelRecord) -> None:
        self.records = {item.name: item for item in records}
        self.pulls = 0
        self.pull_script: PullScript = lambda *_: None
        self.template: str | None = None
        self.unneeded = Leftovers((), ())
        self.prunings: list[tuple[Collection[Path] | None, Collection[Path]]] = []
        """What `prune` was asked for: paths, and what has to stay."""

    def resolve(self, name: str) -> ModelRecord:
        try:
            return self.records[name]
        except KeyError:
            raise ModelNotFound(f"model {name!r} not found", hint=f"Did you mean {sorted(self.records)[0]}?") from None

    def list(self) -> Sequence[ModelRecord]:
        return tuple(self.records.values())

    def pull(self, reference: str, on_progress: ProgressCallback, cancelled: threading.Event) -> ModelRecord:
        self.pulls += 1
        self.pull_script(reference, on_progress, cancelled)
        if cancelled.is_set():
            raise PullError("cancelled")
        self.records[reference] = record(reference)
        return self.records[reference]

    def add_file(self, path: Path, name: str | None = None) -> ModelRecord:
        added = record(name or path.stem, path=path)
        self.records[added.name] = added
        return added

    def copy(self, source: str, destination: str) -> ModelRecord:
        self.records[destination] = dataclasses.replace(self.resolve(source), name=destination)
        return self.records[destination]

    def chat_template(self, record: ModelRecord) -> str:
        return f"{{{{ messages }}}} of {record.name}" if self.template is None else self.template

    def remove(self, name: str) -> int:
        return self.records.pop(self.resolve(name).name).size_bytes

    def leftovers(self, in_use: Collection[Path] = ()) -> Leftovers:
        return self.unneeded

    def prune(self, only: Collection[Path] | None = None, in_use: Collection[Path] = ()) -> Leftovers:
        self.prunings.append((only, in_use))
        kept = self.unneeded
        gone = tuple(left for left in kept.entries if only is None or left.path in only)
        self.unneeded = Leftovers(tuple(left for left in kept.entries if left not in gone), kept.in_progress)
        return Leftovers(gone, kept.in_progress)
