"""Which models learning should look at now: those that were used, and have been left alone or have gone since. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ostinatod.loaded import LoadedModel
from ostinatod.store.records import ModelRecord


class UnseenUse:
    """Remembers the models that were used since they were last due. Not thread-safe."""

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._used: dict[str, ModelRecord] = {}
        self._looked_at: dict[str, float] = {}
        """When the idleness began during which a model was due."""

    def due(self, models: Sequence[LoadedModel], now: float) -> list[ModelRecord]:
        """Models that have been idle for the set time or have left memory, each once per use.

        models  all that are in memory now
        now     by the clock of `LoadedModel.idle_since_s`
        """
        due = []
        for model in models:
            key, since = model.record.digest, model.idle_since_s
            if model.state != "ready" or not model.record.shape.n_experts:
                continue
            if since is not None and self._looked_at.get(key) == since:
                continue
            self._used[key] = model.record
            if since is not None and now - since >= self._idle_s:
                self._looked_at[key] = since
                due.append(self._used.pop(key))
        present = {model.record.digest for model in models}
        gone = [key for key in self._used if key not in present]
        return [*due, *(self._used.pop(key) for key in gone)]
