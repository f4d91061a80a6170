"""What every kind of service can do, and which kind this machine has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from ostinatod.errors import ServiceError
from ostinatod.service.plan import ServicePlan

Kind = Literal["systemd", "launchd"]

_TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True)
class ServiceState:
    """How the service stands."""

    kind: Kind | None
    """None where this machine has no service manager that is known here."""
    file: Path | None
    installed: bool
    enabled: bool
    """Whether it starts by itself at log-in."""
    active: bool
    detail: str
    """One sentence for people."""
    survives_logout: bool | None = None
    """None where it is not known."""


class ServiceHost(Protocol):
    """A service manager of this user. Every method may raise ServiceError."""

    @property
    def kind(self) -> Kind: ...
    @property
    def file(self) -> Path: ...
    def install(self, plan: ServicePlan) -> bool: ...
    def uninstall(self) -> list[Path]: ...
    def restart(self) -> None: ...
    def state(self) -> ServiceState: ...
    def starts(self, program: Path) -> bool: ...


def find_host(environment: Mapping[str, str], platform: str = sys.platform) -> ServiceHost:
    """The service manager of this machine. Raises ServiceError, saying how to go without, where there is none."""
    from ostinatod.service.launchd import Launchd
    from ostinatod.service.systemd import Systemd

    home = Path(environment.get("HOME") or Path.home())
    if platform == "darwin":
        return Launchd(home)
    if platform.startswith("linux"):
        return Systemd(Path(environment.get("XDG_CONFIG_HOME") or home / ".config"))
    raise ServiceError(f"no service manager is known for {platform}", hint="Run it yourself: ostinato serve")


def ask(command: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """Run a short command of the service manager; None where it is not installed or hangs."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def write_file(file: Path, content: bytes) -> bool:
    """Write what differs; whether anything did. Raises ServiceError."""
    try:
        if file.exists() and file.read_bytes() == content:
            return False
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f".{file.name}.partial")
        partial.write_bytes(content)
        partial.replace(file)
    except OSError as error:
        raise ServiceError(f"cannot write {file}: {error}", hint="Run it yourself: ostinato serve") from error
    return True


def said(done: subprocess.CompletedProcess[str] | None) -> str:
    """What a failed command said, in one line."""
    if done is None:
        return "the command is missing or does not answer"
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"status {done.returncode}"
