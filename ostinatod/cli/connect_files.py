"""Changes to a client's JSON file that can be taken back: merged in, with what was there before kept beside it.

What is kept is the whole former file, and taking back restores only what the merge touched, so that anything the user
or the client has changed since then stays.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ostinatod.cli.connect_clients import FileChange
from ostinatod.errors import ConfigError

_SUFFIX = ".before-ostinato"
_NOTHING = "null\n"
"""Kept in place of a file that did not exist."""


def merged(existing: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """`existing` with `values` in it. Objects are merged key by key; everything else is replaced."""
    result = copy.deepcopy(dict(existing))
    for key, value in values.items():
        inner = result.get(key)
        if isinstance(inner, dict) and isinstance(value, Mapping):
            result[key] = merged(inner, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def taken_back(current: Mapping[str, Any], values: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """`current` with everything that `values` set as it was `before`; objects that this leaves empty are removed."""
    result = copy.deepcopy(dict(current))
    for key, value in values.items():
        if key not in result:
            continue
        had = before.get(key, {})
        if isinstance(value, Mapping) and isinstance(result[key], dict) and isinstance(had, dict):
            result[key] = taken_back(result[key], value, had)
            if not result[key] and key not in before:
                del result[key]
        elif key in before:
            result[key] = copy.deepcopy(had)
        else:
            del result[key]
    return result


def apply(change: FileChange) -> bool:
    """Write the change; False if the file says all of it already. Raises ConfigError for a file that is not JSON."""
    existing = {} if change.own else _read(change.path) or {}
    wanted = merged(existing, change.values)
    if change.path.exists() and wanted == _read(change.path):
        return False
    kept = _kept(change.path)
    if not change.own and not kept.exists():
        before = change.path.read_text(encoding="utf-8") if change.path.exists() else _NOTHING
        _write(kept, before)
    _write(change.path, json.dumps(wanted, indent=2, ensure_ascii=False) + "\n")
    return True


def undo(change: FileChange) -> bool:
    """Take the change back; False if there is nothing to take back."""
    if change.own:
        existed = change.path.exists()
        change.path.unlink(missing_ok=True)
        return existed
    kept = _kept(change.path)
    if not kept.exists():
        return False
    before = _read(kept)
    left = taken_back(_read(change.path) or {}, change.values, before or {})
    if left or before is not None:
        _write(change.path, json.dumps(left, indent=2, ensure_ascii=False) + "\n")
    else:
        change.path.unlink(missing_ok=True)
    kept.unlink()
    return True


def _kept(path: Path) -> Path:
    return path.with_name(path.name + _SUFFIX)


def _read(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if there is no file, or `null` in it."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot change {path}, which is not plain JSON: {error}",
            hint="See what belongs into it: ostinato launch CLIENT --print",
        ) from error
    if told is not None and not isinstance(told, dict):
        raise ConfigError(f"cannot change {path}: expected a JSON object, found {type(told).__name__}")
    return told


def _write(path: Path, content: str) -> None:
    """Replace the file in one step, readable by its owner only as it may hold a key."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(content)
        if path.exists():
            beside.chmod(path.stat().st_mode & 0o777)
        # A file that the user keeps elsewhere and links to stays a link.
        beside.replace(path.resolve())
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error}") from error
