"""The service as a systemd user unit."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from pathlib import Path
from typing import ClassVar

from ostinatod.errors import ConfigError, ServiceError
from ostinatod.service.host import Kind, ServiceState, ask, said, write_file
from ostinatod.service.plan import ServicePlan
from ostinatod.service.systemd_unit import MARK, UNIT_NAME, quoted_argument, unit_text

_WITHOUT = (
    "Run it yourself: ostinato serve. To start it with the machine, let cron do it (crontab -e): @reboot ostinato serve"
)


class Systemd:
    """The user's systemd. `config` is the folder that holds `systemd/user`."""

    kind: ClassVar[Kind] = "systemd"

    def __init__(self, config: Path) -> None:
        self._directory = config / "systemd" / "user"

    @property
    def file(self) -> Path:
        """The unit."""
        return self._directory / UNIT_NAME

    @property
    def _links(self) -> list[Path]:
        """What enabling makes."""
        return [path for path in self._directory.glob(f"*.wants/{UNIT_NAME}") if path.is_symlink()]

    def install(self, plan: ServicePlan) -> bool:
        """Write the unit, enable it and have it run this very text; whether the unit changed.

        Raises ServiceError where systemd does not run for this user, and ConfigError for somebody else's unit.
        """
        self._require_bus()
        if self.file.exists() and not self._is_ours():
            raise ConfigError(
                f"{self.file} exists and was not written by this program",
                hint=f"Move it away first: mv {self.file}{{,.old}}",
            )
        changed = write_file(self.file, unit_text(plan).encode())
        self._do("daemon-reload")
        self._do("enable", UNIT_NAME)
        # A unit that failed too often is not started again before it is told that it may.
        ask(["systemctl", "--user", "reset-failed", UNIT_NAME])
        self._do("restart" if changed else "start", UNIT_NAME)
        return changed

    def uninstall(self) -> list[Path]:
        """Stop and disable the unit, and remove it; the files removed. Also works where systemd no longer runs."""
        if self.file.exists() and not self._is_ours():
            raise ConfigError(
                f"{self.file} was not written by this program, so it stays", hint=f"Remove it yourself: rm {self.file}"
            )
        has_bus = self._fault() is None
        if has_bus and self.file.exists():
            ask(["systemctl", "--user", "disable", "--now", UNIT_NAME])
        removed = [path for path in [*self._links, self.file] if path.exists() or path.is_symlink()]
        for path in removed:
            path.unlink(missing_ok=True)
        if has_bus and removed:
            ask(["systemctl", "--user", "daemon-reload"])
            ask(["systemctl", "--user", "reset-failed", UNIT_NAME])
        return removed

    def restart(self) -> None:
        """End the daemon in order and start it again. Raises ServiceError if it is not installed."""
        self._require_bus()
        if not self.file.exists():
            raise ServiceError("the service is not installed", hint="Install it: ostinato service install")
        ask(["systemctl", "--user", "reset-failed", UNIT_NAME])
        self._do("restart", UNIT_NAME)

    def state(self) -> ServiceState:
        """How the unit stands."""
        installed = self.file.exists() and self._is_ours()
        if fault := self._fault():
            return ServiceState("systemd", self.file, installed, bool(self._links), False, fault)
        active = _word(ask(["systemctl", "--user", "is-active", UNIT_NAME]))
        enabled = _word(ask(["systemctl", "--user", "is-enabled", UNIT_NAME]))
        linger = ask(["loginctl", "show-user", getpass.getuser(), "--property=Linger", "--value"])
        return ServiceState(
            kind="systemd",
            file=self.file,
            installed=installed,
            enabled=enabled == "enabled",
            active=active == "active",
            detail=f"{active}, {enabled}" if installed else "not installed",
            survives_logout=linger.stdout.strip() == "yes" if linger and linger.returncode == 0 else None,
        )

    def starts(self, program: Path) -> bool:
        """Whether the unit is installed and starts this very program."""
        return f"ExecStart={quoted_argument(str(program))} " in self._text()

    def _is_ours(self) -> bool:
        return MARK in self._text()

    def _text(self) -> str:
        try:
            return self.file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def _fault(self) -> str | None:
        """Why the user's systemd cannot be asked; None if it can."""
        if shutil.which("systemctl") is None:
            return "this machine has no systemd"
        done = ask(["systemctl", "--user", "show", "--property=Version"])
        if done is None or done.returncode != 0:
            return f"systemd does not run for this user: {said(done)}"
        return None

    def _require_bus(self) -> None:
        if fault := self._fault():
            raise ServiceError(fault, hint=_WITHOUT)

    def _do(self, *words: str) -> None:
        done = ask(["systemctl", "--user", *words])
        if done is None or done.returncode != 0:
            raise ServiceError(
                f"systemctl --user {' '.join(words)} failed: {said(done)}",
                hint=f"See why: journalctl --user -u {UNIT_NAME} -n 20",
            )


def _word(done: subprocess.CompletedProcess[str] | None) -> str:
    text = done.stdout.strip() if done else ""
    return text.splitlines()[0] if text else "unknown"
