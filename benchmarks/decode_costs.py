"""What an engine counted of its decode steps in this process, and the cost of cold routes that follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ostinatod.bindings import Bindings, DeviceStatus
from ostinatod.profiles.calibration import (
    LayerTimes,
    LinkShare,
    cold_cost,
    fit_cpu_branch,
    fit_overlap,
    with_link_share,
)
from ostinatod.profiles.cold_cost import ColdCost


@dataclass(frozen=True, slots=True)
class DecodeCounters:
    """Of one GPU, since its model was loaded or between two moments."""

    layers: tuple[LayerTimes, ...]
    waited_ms: float
    lent_experts: int
    """Copied to lent memory."""
    share: LinkShare | None
    """Of cold experts, since the model was loaded; None without a device."""

    def since(self, before: DecodeCounters) -> DecodeCounters:
        """What was counted after `before`."""
        layers = [
            replace(
                now,
                steps=tuple(a - b for a, b in zip(now.steps, then.steps, strict=True)),
                cpu_ms=tuple(max(0.0, a - b) for a, b in zip(now.cpu_ms, then.cpu_ms, strict=True)),
            )
            for now, then in zip(self.layers, before.layers, strict=True)
        ]
        waited_ms, lent_experts = self.waited_ms - before.waited_ms, self.lent_experts - before.lent_experts
        return DecodeCounters(tuple(layers), waited_ms, lent_experts, self.share)

    def cost(self, *, k: int, cold_routes: float) -> ColdCost | None:
        """As the daemon derives it; see `calibration.cold_cost`."""
        overlap = fit_overlap(self.layers, self.waited_ms)
        return cold_cost(fit_cpu_branch(self.layers), overlap, layers=len(self.layers), k=k, cold_routes=cold_routes)

    def described(self, tokens: int) -> dict[str, Any]:
        """alpha, beta, gamma and G of these steps, and what a token had of cold routes that were computed."""
        overlap = fit_overlap(self.layers, self.waited_ms)
        steps, cpu_ms = (
            [sum(column) for column in zip(*(getattr(item, name) for item in self.layers), strict=True)]
            for name in ("steps", "cpu_ms")
        )
        return {
            "computed_routes_per_token": round(sum(item.routes for item in self.layers) / tokens, 3),
            "layers_with_any_per_token": round(sum(sum(item.steps) for item in self.layers) / tokens, 3),
            "waited_ms_per_token": round(self.waited_ms / tokens, 4),
            "lent_experts_per_token": round(self.lent_experts / tokens, 3),
            "steps_with_1_2_routes": steps,
            "cpu_ms_with_1_2_routes": [round(value, 3) for value in cpu_ms],
            "link": None if self.share is None else asdict(self.share),
            "cpu_branch": [_rounded(asdict(fit)) for fit in fit_cpu_branch(self.layers)],
            "overlap": None if overlap is None else _rounded(asdict(overlap)),
        }


def read_counters(bindings: Bindings, model: int, devices: Sequence[DeviceStatus]) -> DecodeCounters:
    """Of the model's first device."""
    layers = bindings.decode_times(model)
    if not devices:
        return DecodeCounters(tuple(layers), 0.0, 0, None)
    gpu = devices[0]
    share = LinkShare(gpu.link_columns, gpu.hidden_columns, gpu.linked, gpu.in_place_bytes_per_s)
    timed = tuple(with_link_share(layers, share))
    return DecodeCounters(timed, gpu.decode_waited_ns / 1e6, gpu.borrowed_uploads, share)


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 5) if isinstance(value, float) else value for name, value in values.items()}
