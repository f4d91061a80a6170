"""What the service runs: the command, and of the environment what says where things lie and how they are set."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from ostinatod.config import Settings, variable_name
from ostinatod.errors import ConfigError

STOP_TIMEOUT_S = 105
"""The daemon lets answers in progress end for 20 s, its engines save prompts for 60 s; then they are ended."""

_PLACES = ("OSTINATO_HOME", "OSTINATO_ENGINE_CACHE", "HF_HOME", "HF_HUB_CACHE")
_OTHERS = ("OSTINATO_HOST", "HF_ENDPOINT", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """One program and its environment."""

    program: Path
    """`ostinato` of the environment that installs the service."""
    environment: Mapping[str, str]
    """Settings and places of the shell that installs it. No secrets: the file can be read by backups."""
    log_dir: Path

    @property
    def command(self) -> tuple[str, ...]:
        """What is started."""
        return (str(self.program), "serve")


def plan_service(
    environment: Mapping[str, str], log_dir: Path, *, host: str | None = None, scripts: Path | None = None
) -> ServicePlan:
    """The service that corresponds to running `ostinato serve` here and now.

    host     stands in for OSTINATO_HOST
    scripts  the folder with `ostinato`; by default this interpreter's
    Raises ConfigError if that program is not there, or a value has a line end in it.
    """
    program = (scripts or Path(sys.executable).parent) / "ostinato"
    if not os.access(program, os.X_OK):
        raise ConfigError(
            f"expected the program {program}, found none", hint="Install it: python3 installer, in the checkout"
        )
    settings = [variable_name(field.name) for field in fields(Settings)]
    kept = {name: environment[name] for name in (*_PLACES, *settings, *_OTHERS) if environment.get(name)}
    if host:
        kept["OSTINATO_HOST"] = host
    for name in _PLACES:
        if name in kept:
            kept[name] = os.path.abspath(os.path.expanduser(kept[name]))
    for name, value in kept.items():
        if not value.isprintable():
            raise ConfigError(f"{name} has a character in it that a service cannot be given: {value!r}")
    return ServicePlan(program, dict(sorted(kept.items())), log_dir)
