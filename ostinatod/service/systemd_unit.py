"""The systemd user unit as text. Pure functions."""

from __future__ import annotations

from ostinatod.service.plan import STOP_TIMEOUT_S, ServicePlan

UNIT_NAME = "ostinato.service"
MARK = "# Written by `ostinato service install`; `ostinato service uninstall` removes it."

# Sandboxing that works through mount namespaces (ProtectSystem, PrivateDevices, ...) is left out on purpose: in a
# user's manager it implies PrivateUsers, which drops the groups that may open /dev/nvidia* and /dev/dri. Memory that is
# both writable and executable stays allowed, because CUDA compiles kernels when it loads them. The system calls refused
# are those of administrators; mlock, mbind, ioctl and scheduling stay.
_HARDENING = """\
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=~@clock @cpu-emulation @module @mount @obsolete @raw-io @reboot @swap
SystemCallErrorNumber=EPERM"""


def unit_text(plan: ServicePlan) -> str:
    """The whole unit file."""
    command = " ".join(quoted_argument(word) for word in plan.command)
    variables = [f"Environment={quoted(f'{name}={value}')}" for name, value in plan.environment.items()]
    return "\n".join(
        [
            MARK,
            "[Unit]",
            "Description=Ostinato, a local daemon for mixture-of-experts models",
            # Five quick failures in a row are not worth a sixth: the log says why.
            "StartLimitIntervalSec=120",
            "StartLimitBurst=5",
            "",
            "[Service]",
            "Type=exec",
            f"ExecStart={command}",
            *variables,
            "WorkingDirectory=~",
            "Restart=on-failure",
            "RestartSec=3",
            # A wrong setting stays wrong.
            "RestartPreventExitStatus=2",
            # The daemon alone is told to stop; it ends its engines after the answers in progress.
            "KillMode=mixed",
            f"TimeoutStopSec={STOP_TIMEOUT_S}",
            # Engines lock cold experts into memory and hold many files; both are cut to what the user may have.
            "LimitMEMLOCK=infinity",
            "LimitNOFILE=65536",
            # An engine that was killed for want of memory is the daemon's to tell of, and no reason to end it too.
            "OOMPolicy=continue",
            _HARDENING,
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def quoted(text: str) -> str:
    """`text` as one word of a setting: no specifier and no separator of systemd's has an effect in it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def quoted_argument(text: str) -> str:
    """`text` as one word of a command, in which systemd would also put variables for dollars."""
    return quoted(text.replace("$", "$$"))
