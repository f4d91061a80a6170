"""The model store: which models are on this machine, under which names, and how more get here.

`ModelStore` is loaded on first use, so that a command that only needs the values in `records` starts without the
database and the hub client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostinatod.store.model_store import ModelStore

__all__ = ["ModelStore"]


def __getattr__(name: str) -> Any:
    if name != "ModelStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ostinatod.store.model_store import ModelStore

    return ModelStore
