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

# Ending takes its time, as in macOS: what was taken out is listed for a while, and its name is free later still.
_LAUNCHCTL = """
echo "$*" >> {root}/asked
count() {{ cat {root}/$1 2>/dev/null || echo 0; }}
refuse() {{ echo "Bootstrap failed: $1: $2" >&2; exit $1; }}
case "$1" in
    bootstrap)
        [ -e {root}/never-free ] && refuse 5 "Input/output error"
        [ -e {root}/no-domain ] && refuse 125 "Domain does not support specified action"
        [ -e {root}/active ] && refuse 37 "Operation already in progress"
        held=$(count held)
        [ "$held" -gt 0 ] && {{ echo $((held - 1)) > {root}/held; refuse 5 "Input/output error"; }}
        touch {root}/active;;
    bootout)
        [ -e {root}/active ] || exit 3
        echo 2 > {root}/leaving; echo 1 > {root}/held
        echo "Boot-out failed: 36: Operation now in progress" >&2; exit 36;;
    kickstart)
        [ "$2" = -k ] && touch {root}/killed
        [ -e {root}/active ] || exit 113
        rm -f {root}/idle;;
    print)
        [ -e {root}/idle ] && {{ echo "    state = not running"; exit 0; }}
        leaving=$(count leaving)
        if [ "$leaving" -gt 0 ]; then
            [ -e {root}/stuck ] && {{ echo "    state = SIGTERMed"; exit 0; }}
            [ "$leaving" -eq 1 ] && rm -f {root}/active
            echo $((leaving - 1)) > {root}/leaving
            echo "    state = SIGTERMed"
        else
            [ -e {root}/active ] && echo "    state = running" || exit 113
        fi;;
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
        """ "no-bus": the user's manager does not run; "refuse": starting fails; "linger": it runs on after log-out;
        "no-domain": nobody is logged in at launchd's screen; "never-free": launchd does not let go of the name;
        "stuck": an agent does not end; "idle": it ended by itself."""
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
