"""Rows as processes report them, with small numbers."""

from __future__ import annotations

from typing import Any

from ostinatod.bench.settings import Setting, as_json
from ostinatod.profiles.experts import ModelExperts

EXPERTS = ModelExperts(layers=(0, 1, 2, 3), expert_bytes=(1000,) * 4, n_experts=(8,) * 4, k=2)
"""32 kB in 4 layers."""


def device(**values: Any) -> dict[str, Any]:
    """As the bindings tell it. The CPU reads 8 MB/s with one row and 1 MB/s with 16, the link 2 MB/s."""
    known = {
        "cpu_row_bytes_per_s": 8e6,
        "cpu_rows_bytes_per_s": 1e6,
        "link_bytes_per_s": 2e6,
        "pool_used": 14_000,
        "staging_bytes": 2_000,
    }
    return {**known, **values}


def row(name: str, kind: Any = "ostinato", *, step_ms: float = 1.0, **values: Any) -> dict[str, Any]:
    """One row behind a context of 64 tokens."""
    own: dict[str, Any] = {"hot": 0.5, "devices": [device()]} if kind == "ostinato" else {"devices": []}
    setting = Setting(name, kind, cpu_layer_ids=values.pop("cpu_layer_ids", ()))
    depth = {
        "steps": 200,
        "decode_ms": step_ms,
        "decode_ms_spread": [step_ms / 2, step_ms * 2],
        "per_step": {"cold_routes": 3.0, "waited_ns": 5e5, "cpu_busy_ns": 25e4} if kind == "ostinato" else {},
        **values,
    }
    return {
        **own,
        "setting": as_json(setting),
        "gpu_bytes_loaded": [3_000_000_000],
        "gpu_bytes_used": [3_500_000_000],
        "depths": {"64": depth},
    }
