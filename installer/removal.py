"""`python3 installer uninstall`: removes exactly what was made, after asking. Standard library only."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

from .environment import Environment
from .steps import InstallError

_BUILD_ENTRIES = ("types", "virtualenv", "aider", "installer.log")
"""What the installer and the tests leave in the checkout's build folder."""
_CHECK_CACHES = (".hypothesis", ".import_linter_cache", ".mypy_cache", ".pytest_cache", ".ruff_cache")
"""What `installer test` leaves in the checkout."""


def uninstall(environment: Environment, *, purge: bool, assume_yes: bool) -> int:
    """Ends the service and the daemon, and removes them, completion, the environment and the engine builds; returns 0.

    `purge` also removes settings, logs and data.

    Raises InstallError when it can neither ask nor was told not to.
    """
    doomed = [environment.checkout / "build" / name for name in _BUILD_ENTRIES]
    doomed += [environment.checkout / name for name in _CHECK_CACHES]
    doomed += environment.checkout.glob("*.egg-info")
    owned = _owned_paths(environment)
    integration = [Path(path) for path in owned.get("integration", [])]
    doomed += integration
    doomed += [Path(path) for path in owned.get("builds", [])]
    if purge:
        doomed += [Path(path) for path in owned.get("data", [])]
    if environment.is_ours:
        doomed.append(environment.directory)
    elif environment.directory.exists():
        print(f"Kept {environment.directory}: this installer did not make it.")
    doomed = [path for path in doomed if path.exists()]
    if not doomed:
        print("Nothing to remove.")
        return 0
    print("This removes:")
    for path in doomed:
        print(f"    {path}")
    if not assume_yes and not _confirmed():
        print("Nothing was removed.")
        return 1
    _withdraw(environment)
    for path in doomed:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for cache in list(environment.checkout.rglob("__pycache__")):
        shutil.rmtree(cache, ignore_errors=True)
    # The innermost first; those that hold something are somebody's.
    for folder in sorted(map(Path, owned.get("folders", [])), key=lambda path: -len(path.parts)):
        with contextlib.suppress(OSError):
            folder.rmdir()
    kept = "Models in the shared hub cache are kept." if purge else "Settings, data and models are kept."
    print(f"Removed. {kept}")
    return 0


def _owned_paths(environment: Environment) -> dict[str, list[str]]:
    """What the environment itself says belongs to it; {} with a notice when it no longer runs."""
    try:
        done = subprocess.run(
            [environment.python, "-m", "ostinatod.installer.owned_paths"], capture_output=True, text=True, check=True
        )
        paths: dict[str, list[str]] = json.loads(done.stdout)
        return paths
    except (OSError, subprocess.CalledProcessError, ValueError):
        if environment.directory.exists():
            print("The environment does not run, so its service and its engine builds are not found; they stay.")
        return {}


def _withdraw(environment: Environment) -> None:
    """Lets the installation end its service and its daemon in order, while it still can."""
    with contextlib.suppress(OSError):
        subprocess.run([environment.python, "-m", "ostinatod.installer.integration"], check=False)


def _confirmed() -> bool:
    if not sys.stdin.isatty():
        raise InstallError("uninstall asks before it removes anything; add --yes where it cannot ask")
    try:
        return input("Remove them? [y/N] ").strip().lower() in {"y", "yes"}
    except EOFError:
        return False
