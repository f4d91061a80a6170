"""The service as a launchd agent of the user."""

from __future__ import annotations

import os
import plistlib
import time
from pathlib import Path
from typing import ClassVar
from xml.parsers.expat import ExpatError

from ostinatod.errors import ConfigError, ServiceError
from ostinatod.service.host import Kind, ServiceState, ask, said, write_file
from ostinatod.service.launchd_agent import LABEL, MARK, agent_plist
from ostinatod.service.plan import STOP_TIMEOUT_S, ServicePlan

_WITHOUT = "Run it yourself: ostinato serve"
_LEAVE_S = STOP_TIMEOUT_S + 10.0
"""How long an agent that was taken out may take to end: launchd kills it after STOP_TIMEOUT_S."""
_RELEASE_S = 15.0
"""How long launchd may hold on to the name of an agent that has ended."""
_NOT_YET = frozenset({5, 37})
"""EIO and EALREADY, by which launchd refuses an agent whose name it has not let go of."""


class Launchd:
    """launchd of the logged-in user whose folder is `home`. It is asked again every `poll_s` while it ends an agent."""

    kind: ClassVar[Kind] = "launchd"

    def __init__(self, home: Path, *, poll_s: float = 0.25) -> None:
        self._directory = home / "Library" / "LaunchAgents"
        self._domain = f"gui/{os.getuid()}"
        self._poll_s = poll_s

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
        if changed or not self._is_loaded():
            self._take_out()
            self._put_in()
        elif not self.state().active:
            self._do("kickstart", self._target)
        return changed

    def uninstall(self) -> list[Path]:
        """Stop the agent and remove its file; the files removed."""
        if not self.file.exists():
            return []
        if not self._is_ours():
            raise ConfigError(
                f"{self.file} was not written by this program, so it stays", hint=f"Remove it yourself: rm {self.file}"
            )
        self._take_out()
        self.file.unlink()
        return [self.file]

    def restart(self) -> None:
        """End the daemon in order and start it again. Raises ServiceError if it is not installed."""
        if not self.file.exists():
            raise ServiceError("the service is not installed", hint="Install it: ostinato service install")
        # `kickstart -k` would do it in one step, and kill the daemon instead of asking it to end.
        self._take_out()
        self._put_in()

    def state(self) -> ServiceState:
        """How the agent stands."""
        installed = self._is_ours()
        done = ask(["launchctl", "print", self._target])
        loaded = done is not None and done.returncode == 0
        running = loaded and done is not None and "state = running" in done.stdout
        detail = "running" if running else "loaded" if loaded else "not loaded" if installed else "not installed"
        # An agent belongs to the graphical session and ends with it.
        return ServiceState("launchd", self.file, installed, installed and loaded, running, detail, False)

    def starts(self, program: Path) -> bool:
        """Whether the agent is installed and starts this very program."""
        try:
            agent = plistlib.loads(self._content())
        except (ValueError, ExpatError):
            return False
        words = agent.get("ProgramArguments") if isinstance(agent, dict) else None
        return isinstance(words, list) and words[:1] == [str(program)]

    def _is_ours(self) -> bool:
        return MARK in self._content()

    def _content(self) -> bytes:
        try:
            return self.file.read_bytes()
        except OSError:
            return b""

    def _is_loaded(self) -> bool:
        done = ask(["launchctl", "print", self._target])
        return done is not None and done.returncode == 0

    def _take_out(self) -> None:
        """Have launchd end the agent in order and forget it, and wait until it has. Raises ServiceError."""
        if not self._is_loaded():
            return
        # Fails with "operation now in progress" where the agent takes its time, and goes on all the same.
        ask(["launchctl", "bootout", self._target])
        deadline = time.monotonic() + _LEAVE_S
        while self._is_loaded():
            if time.monotonic() >= deadline:
                raise ServiceError(
                    f"the service did not end within {_LEAVE_S:.0f} s",
                    hint=f"See its state: launchctl print {self._target}",
                )
            time.sleep(self._poll_s)

    def _put_in(self) -> None:
        """Have launchd take the agent's file, and start it. Raises ServiceError."""
        deadline = time.monotonic() + _RELEASE_S
        while True:
            done = ask(["launchctl", "bootstrap", self._domain, str(self.file)])
            if done is not None and done.returncode == 0:
                break
            if done is None or done.returncode not in _NOT_YET or time.monotonic() >= deadline:
                raise ServiceError(
                    f"launchctl bootstrap {self._domain} {self.file} failed: {said(done)}", hint=_WITHOUT
                )
            time.sleep(self._poll_s)
        # While the session is being restored, launchd puts off what is only to run at load. Fails if it runs already.
        ask(["launchctl", "kickstart", self._target])

    def _do(self, *words: str) -> None:
        done = ask(["launchctl", *words])
        if done is None or done.returncode != 0:
            raise ServiceError(f"launchctl {' '.join(words)} failed: {said(done)}", hint=_WITHOUT)
