"""What learning needs to know of a model's files: its experts, and counts of an imatrix where there are some."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ostinatod.profiles.errors import HeaderError
from ostinatod.profiles.experts import ModelExperts, read_experts
from ostinatod.profiles.gguf_model import GgufModel, read_model
from ostinatod.profiles.imatrix import expert_counts, imatrix_files, read_expert_counts
from ostinatod.profiles.residency import ExpertLayout
from ostinatod.store.records import ModelRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """An MoE model as learning sees it."""

    layout: ExpertLayout
    experts: ModelExperts
    prior: NDArray[np.float64] | None
    """(L, E) activations counted by an imatrix; None without one."""


class ModelFiles:
    """Reads each model's headers once, as long as its fingerprint stays the same. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, ModelFacts | None] = {}

    def facts(self, record: ModelRecord) -> ModelFacts | None:
        """None for a dense model. Raises HeaderError or OSError where the files cannot be read as they were."""
        with self._lock:
            if record.digest not in self._known:
                self._known[record.digest] = _read(record)
            return self._known[record.digest]


def _read(record: ModelRecord) -> ModelFacts | None:
    model = read_model(record.parts)
    experts = read_experts(model)
    if experts is None or experts.k == 0:
        return None
    layout = ExpertLayout(record.digest, experts.layers, experts.width)
    return ModelFacts(layout, experts, _prior(record.parts[0], model, experts))


def _prior(file: Path, model: GgufModel, experts: ModelExperts) -> NDArray[np.float64] | None:
    """Counts inside the model's first file, or in an imatrix beside it; an unusable one is passed over and logged."""
    inside = expert_counts(model.parts[0], experts.layers, experts.width)
    if inside is not None:
        return inside
    for sidecar in imatrix_files(file):
        try:
            counts = read_expert_counts(sidecar, experts.layers, experts.width)
        except (HeaderError, OSError) as error:
            log.info("imatrix_passed_over file=%s reason=%r", sidecar, str(error))
            continue
        if counts is not None and counts.any():
            log.info("imatrix_used file=%s", sidecar)
            return counts
    return None
