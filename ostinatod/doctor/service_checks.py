"""Check of the background service."""

from __future__ import annotations

from ostinatod.doctor.findings import Finding, ok, skipped, warning
from ostinatod.service.host import ServiceState


def check_service(state: ServiceState) -> Finding:
    """The service runs where it is installed."""
    if not state.installed:
        return skipped("service", f"not installed ({state.detail}); `ostinato service install` would")
    if not state.active:
        return warning(
            "service",
            f"{state.file} is installed, and the service does not run: {state.detail}",
            "See why: ostinato logs daemon. Then: ostinato service restart",
        )
    return ok("service", f"{state.kind}: {state.detail}")
