"""Stand-ins for systemctl, loginctl and launchctl: shell scripts that note what they were asked and keep a state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_SYSTEMCTL = """
echo "$*" >> {root}/asked
unit="$HOME/.config/systemd/user/ostinato.service"
wants="$HOME/.config/systemd/user/default.target.wants"
[ -e {root}/no-bus ] && {{ echo "Failed to connect to bus: No medium found" >&2; exit 1; }}
shift
case "$1" in
    show) echo Version=252;;
    enable) mkdir -p "$wants"; ln -sf "$unit" "$wants/ostinato.service";;
    disable) rm -f "$wants/ostinato.service" {root}/active;;
    start|restart)
        [ -e {root}/refuse ] && {{ echo "Job for ostinato.service failed" >&2; exit 1; }}
        touch {root}/active;;
    is-active) [ -e {root}/active ] && echo active || {{ echo inactive; exit 3; }};;
    is-enabled) [ -e "$wants/ostinato.service" ] && echo enabled || {{ echo disabled; exit 1; }};;
esac
"""

_LAUNCHCTL = """
echo "$*" >> {root}/asked
case "$1" in
    bootstrap) touch {root}/active;;
    bootout) rm -f {root}/active;;
    kickstart) [ -e {root}/active ] || exit 113;;
    print) [ -e {root}/active ] && echo "    state = running" || exit 113;;
esac
"""


@dataclass(frozen=True)
class ServiceTools:
    """The folder of the stand-ins, to be put on PATH; files in it change how they answer."""

    root: Path

    def asked(self) -> list[str]:
        """What the tools were asked to do, questions left out."""
        file = self.root / "asked"
        lines = file.read_text().splitlines() if file.exists() else []
        words = [line.removeprefix("--user ") for line in lines]
        return [line for line in words if line.split()[0] not in ("show", "is-active", "is-enabled", "print")]

    def set(self, name: str) -> None:
        """ "no-bus": the user's manager does not run; "refuse": starting fails; "linger": it runs on after log-out."""
        (self.root / name).touch()


def install_service_tools(root: Path) -> ServiceTools:
    """Writes the stand-ins."""
    root.mkdir(parents=True, exist_ok=True)
    loginctl = f"[ -e {root}/linger ] && echo yes || echo no"
    bodies = {
        "systemctl": _SYSTEMCTL.format(root=root),
        "launchctl": _LAUNCHCTL.format(root=root),
        "loginctl": loginctl,
    }
    for name, body in bodies.items():
        (root / name).write_text(f"#!/bin/sh\n{body}\n")
        (root / name).chmod(0o755)
    return ServiceTools(root)
