"""How an engine computed the cold routes of a request's prompt, from its counters before and after. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class EngineWork:
    """What an engine has done since its model was loaded."""

    is_stock: bool
    """Whether it runs without a residency set, by llama.cpp's own nodes."""
    uploaded_experts: int = 0
    uploaded_bytes: int = 0
    cpu_routes: int = 0
    """Cold routes of passes of several tokens that the CPU branch computed."""


@dataclass(frozen=True, slots=True)
class PathTaken:
    """Of one request; see `records.PATHS`."""

    path: str
    uploaded_bytes: int


def read_engine_work(status: Mapping[str, Any] | None) -> EngineWork | None:
    """From the engine's status; None where that does not tell."""
    if status is None or not isinstance(status.get("residency"), dict):
        return None
    if status["residency"].get("state") != "applied":
        return EngineWork(is_stock=True)
    try:
        devices, branches = status["devices"], status["cpu_branch"]
        return EngineWork(
            is_stock=False,
            uploaded_experts=sum(int(device["uploaded"]) for device in devices),
            uploaded_bytes=sum(int(device["uploaded_bytes"]) for device in devices),
            cpu_routes=sum(int(branch["prefill"]["cpu_routes"]) for branch in branches),
        )
    except (KeyError, TypeError, ValueError):
        return None


class WorkLedger:
    """Tells requests' work from an engine's counters. What requests did at the same time cannot be told apart."""

    def __init__(self) -> None:
        self._last: EngineWork | None = None
        self._is_shared = False

    def restarted(self) -> None:
        """The engine died; its counters begin at zero."""
        self._last = None

    def take(self, now: EngineWork | None, *, alone: bool) -> PathTaken | None:
        """The path of the request that has just ended; None where another was in flight, or nothing is known.

        alone  whether no other request is in flight now
        """
        was_shared, self._is_shared = self._is_shared or not alone, not alone
        before, self._last = self._last, now
        if was_shared or now is None:
            return None
        if now.is_stock:
            return PathTaken("stock", 0)
        if before is None or before.uploaded_bytes > now.uploaded_bytes or before.cpu_routes > now.cpu_routes:
            before = EngineWork(is_stock=False)
        uploaded_bytes = now.uploaded_bytes - before.uploaded_bytes
        if now.uploaded_experts == before.uploaded_experts:
            return PathTaken("split", uploaded_bytes)
        return PathTaken("upload" if now.cpu_routes == before.cpu_routes else "choice", uploaded_bytes)
