"""The models on this machine without a daemon, for commands that only read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinatod import locations
from ostinatod.config import Settings

if TYPE_CHECKING:
    from ostinatod.store import ModelStore
    from ostinatod.store.records import ModelRecord


def open_store(settings: Settings) -> ModelStore:
    """The store that a daemon with these settings uses; several programs may have it open at once."""
    from ostinatod.store import ModelStore

    return ModelStore(locations.database_file(), locations.hub_cache_dir(), settings.hub_endpoint)


def registered(store: ModelStore, name: str) -> ModelRecord:
    """The record of that name, whether or not its files are still there. Raises ModelNotFound with suggestions."""
    from ostinatod.store.names import parse_name

    key = parse_name(name).key
    found = next((record for record in store.list() if record.name.lower() == key), None)
    return found or store.resolve(name)
