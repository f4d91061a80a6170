"""Completion scripts in the places where bash, zsh and fish look for them, each marked as this program's own.

A file without the mark is somebody else's: it is neither replaced nor removed. No shell's start-up file is touched.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ostinatod.errors import ConfigError

SHELLS = ("bash", "zsh", "fish")

_MARK = "# Installed by `ostinato completion install`; `ostinato completion uninstall` removes it."


def completion_file(shell: str, environment: Mapping[str, str] | None = None) -> Path:
    """Where the script of `shell` belongs in this user's home."""
    env = os.environ if environment is None else environment
    data = Path(env.get("XDG_DATA_HOME") or Path(env.get("HOME", "~")).expanduser() / ".local" / "share")
    config = Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "~")).expanduser() / ".config")
    return {
        "bash": data / "bash-completion" / "completions" / "ostinato",
        "zsh": data / "zsh" / "site-functions" / "_ostinato",
        "fish": config / "fish" / "completions" / "ostinato.fish",
    }[shell]


def is_ours(file: Path) -> bool:
    """Whether the file carries the mark."""
    try:
        return _MARK in file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def install_script(shell: str, script: str, environment: Mapping[str, str] | None = None) -> tuple[Path, bool]:
    """Write the script to its place; the place, and whether that changed anything.

    Raises ConfigError for a file of somebody else's, or for a place that cannot be written.
    """
    file = completion_file(shell, environment)
    if file.exists() and not is_ours(file):
        raise ConfigError(
            f"{file} exists and was not installed by this program", hint=f"Move it away first: mv {file}{{,.old}}"
        )
    # The first line stays the first: zsh reads there what the file completes.
    first, _, rest = script.strip().partition("\n")
    text = f"{first}\n{_MARK}\n{rest}\n"
    try:
        if file.exists() and file.read_text(encoding="utf-8") == text:
            return file, False
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error}", hint="Print it instead: ostinato completion show") from error
    return file, True


def installed_scripts(environment: Mapping[str, str] | None = None) -> list[Path]:
    """The scripts of this program that are in place."""
    return [file for shell in SHELLS if is_ours(file := completion_file(shell, environment))]


def remove_scripts(environment: Mapping[str, str] | None = None) -> list[Path]:
    """Remove every installed script, and nothing else; what was removed."""
    removed = installed_scripts(environment)
    for file in removed:
        file.unlink()
    return removed
