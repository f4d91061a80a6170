"""This machine's RAM and CPU, and what the dashboard itself costs."""

from __future__ import annotations

import psutil

from ostinatod.client_dashboard_values import DaemonState
from ostinatod.tui.view.state import Host

START_WITHIN_S = 90.0
"""How far the daemon's own account of its start may be from this machine's, to be the same process. It counts from when
it serves, which on a busy machine is long after the process began."""


class HostMeter:
    """Measures between one call and the next."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._own.cpu_percent(None)
        psutil.cpu_percent(None)
        self._cores = psutil.cpu_count()

    def measure(self, daemon: DaemonState | None, now_s: float) -> Host:
        """The figures since the last call. Whether they are about the daemon's machine is checked, not assumed.

        An address on loopback may be the end of a tunnel; a process of that pid and age is the daemon.
        """
        memory = psutil.virtual_memory()
        return Host(
            own_cpu=self._own.cpu_percent(None) / 100,
            cpu=psutil.cpu_percent(None) / 100,
            cores=self._cores,
            ram_total_bytes=memory.total,
            ram_available_bytes=memory.available,
            is_daemons=daemon is not None and _is_here(daemon, now_s),
        )


def _is_here(daemon: DaemonState, now_s: float) -> bool:
    if daemon.pid is None or daemon.uptime_s is None:
        return False
    try:
        started_s = psutil.Process(daemon.pid).create_time()
    except (psutil.Error, OSError, ValueError, OverflowError):
        return False
    return abs(now_s - daemon.uptime_s - started_s) < START_WITHIN_S
