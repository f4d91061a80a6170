"""The service as a launchd agent of the user."""

from __future__ import annotations

import os
import plistlib
from pathlib import Path
from typing import ClassVar

from ostinatod.errors import ConfigError, ServiceError
from ostinatod.service.host import Kind, ServiceState, ask, said, write_file
from ostinatod.service.launchd_agent import LABEL, MARK, agent_plist
from ostinatod.service.plan import ServicePlan

_WITHOUT = "Run it yourself: ostinato serve"


class Launchd:
    """launchd of the logged-in user whose folder is `home`."""

    kind: ClassVar[Kind] = "launchd"

    def __init__(self, home: Path) -> None:
        self._directory = home / "Library" / "LaunchAgents"
        self._domain = f"gui/{os.getuid()}"

    @property
    def file(self) -> Path:
        """The property list."""
        return self._directory / f"{LABEL}.plist"

    @property
    def _target(self) -> str:
        return f"{self._domain}/{LABEL}"

    def install(self, plan: ServicePlan) -> bool:
        """Write the agent and have it run; whether the file changed. Raises ServiceError, or ConfigError."""
        if self.file.exists() and not self._is_ours():
            raise ConfigError(
                f"{self.file} exists and was not written by this program",
                hint=f"Move it away first: mv {self.file}{{,.old}}",
            )
        plan.log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        changed = write_file(self.file, agent_plist(plan))
        if self._is_loaded():
            if not changed:
                self._do("kickstart", self._target)
                return False
            self._do("bootout", self._target)
        self._do("bootstrap", self._domain, str(self.file))
        return changed

    def uninstall(self) -> list[Path]:
        """Stop the agent and remove its file; the files removed."""
        if not self.file.exists():
            return []
        if not self._is_ours():
            raise ConfigError(
                f"{self.file} was not written by this program, so it stays", hint=f"Remove it yourself: rm {self.file}"
            )
        ask(["launchctl", "bootout", self._target])
        self.file.unlink()
        return [self.file]

    def restart(self) -> None:
        """End the daemon in order and start it again. Raises ServiceError if it is not installed."""
        if not self.file.exists():
            raise ServiceError("the service is not installed", hint="Install it: ostinato service install")
        self._do("kickstart", "-k", self._target)

    def state(self) -> ServiceState:
        """How the agent stands."""
        installed = self._is_ours()
        done = ask(["launchctl", "print", self._target])
        loaded = done is not None and done.returncode == 0
        running = loaded and done is not None and "state = running" in done.stdout
        detail = "running" if running else "loaded" if loaded else "not loaded" if installed else "not installed"
        # An agent belongs to the graphical session and ends with it.
        return ServiceState("launchd", self.file, installed, installed and loaded, running, detail, False)

    def _is_ours(self) -> bool:
        try:
            return MARK in plistlib.loads(self.file.read_bytes())
        except (OSError, plistlib.InvalidFileException, ValueError):
            return False

    def _is_loaded(self) -> bool:
        done = ask(["launchctl", "print", self._target])
        return done is not None and done.returncode == 0

    def _do(self, *words: str) -> None:
        done = ask(["launchctl", *words])
        if done is None or done.returncode != 0:
            raise ServiceError(f"launchctl {' '.join(words)} failed: {said(done)}", hint=_WITHOUT)
