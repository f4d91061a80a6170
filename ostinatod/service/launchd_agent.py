"""The launchd property list. Pure functions."""

from __future__ import annotations

import plistlib
from typing import Any

from ostinatod.service.plan import STOP_TIMEOUT_S, ServicePlan

LABEL = "ostinato.daemon"
MARK = b"<!-- Written by `ostinato service install`; `ostinato service uninstall` removes it. -->"
"""By which the file is known again. No key of ours: launchd reports those that it does not know."""

_HEAD_END = b'<plist version="1.0">'


def agent_plist(plan: ServicePlan) -> bytes:
    """The whole file."""
    output = str(plan.log_dir / "daemon.log")
    values: dict[str, Any] = {
        "Label": LABEL,
        "ProgramArguments": list(plan.command),
        "EnvironmentVariables": dict(plan.environment),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 10,
        "ExitTimeOut": STOP_TIMEOUT_S,
        # Background processes get slow cores and throttled disks; a person waits for this one.
        "ProcessType": "Interactive",
        "Umask": 0o077,
        "SoftResourceLimits": {"NumberOfFiles": 65536},
        "StandardOutPath": output,
        "StandardErrorPath": output,
    }
    return plistlib.dumps(values).replace(_HEAD_END, MARK + b"\n" + _HEAD_END, 1)
