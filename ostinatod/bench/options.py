"""What a user may choose about a comparison, whatever the model and the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ostinatod.bench.sessions import Limits
from ostinatod.bench.settings import Setting, SettingKind


@dataclass(frozen=True, slots=True)
class Options:
    """How sessions are replayed, and what is tried on them.

    shapes       sessions of which only lengths are known: id, part and turns of (kind, reused, new, output)
    limits       what of a session is replayed
    gpu_bytes    memory of all GPUs together that may be used; None where experts are given memory of their own
    threads      of the CPU, 0 for all cores
    uploads      thresholds that ostinato is tried with, see `settings.ostinato_candidates`
    candidates   settings in place of those that would be searched
    kinds        what is compared
    times_all    time every candidate, in place of the best one of each kind
    trial_turns  of each development session, which candidates are tried with; with 0, a kind's only one is not tried
    pin_bytes    host memory that ostinato may page-lock, 0 for what the system can spare
    staging_experts  for which the staging buffer has room at least, in memory of its own; 0 for the engine's choice
    seconds      for all of it, of which at most `comparison.SEARCH_SHARE` for trying candidates; None for no limit
    """

    shapes: Sequence[Mapping[str, Any]] = ()
    limits: Limits = field(default_factory=Limits)
    gpu_bytes: int | None = None
    threads: int = 0
    uploads: Sequence[int] = (0,)
    candidates: Sequence[Setting] | None = None
    kinds: Sequence[SettingKind] = ("ostinato", "stock")
    times_all: bool = False
    repeats: int = 1
    trial_turns: int | None = None
    pin_bytes: int = 0
    staging_experts: int = 0
    seconds: float | None = None
