"""Prompt state on disk between two runs of an engine: conversations that were read and need not be read again.

A folder per model, mode 0700, with one file per conversation, which the engine writes, and a list of them. A folder is
read once, when its model is loaded, and emptied then: what lies there belongs to models that are not in memory. The
files hold tokens of prompts and answers. Functions block.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

LIST_NAME = "prompts.json"
_LIST_FORMAT = 1
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SavedPrompt:
    """The state of one conversation."""

    file: str
    """Its name in the model's folder."""
    n_tokens: int
    n_bytes: int
    checksum: str
    """BLAKE2b of the file: what is damaged would not be refused by the engine, but change answers."""


class SavedPrompts:
    """The folders below `directory`, which together take no more than `limit_bytes`; with 0 there are none."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self.directory = directory
        self.limit_bytes = limit_bytes

    def folder(self, model: str) -> Path:
        """Where the engine of a model writes. Made on demand. Raises OSError."""
        folder = self.directory / model
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for made in (self.directory, folder):
            made.chmod(0o700)
        return folder

    def describe(self, model: str, file: str, n_tokens: int) -> SavedPrompt:
        """A file that the engine has just written, from now on readable by its owner only. Raises OSError."""
        path = self.directory / model / file
        path.chmod(0o600)
        return SavedPrompt(file, n_tokens, path.stat().st_size, _checksum(path))

    def write_list(self, model: str, key: str, prompts: Sequence[SavedPrompt]) -> None:
        """Note what a folder holds, the latest first, and under which `key` it may be used. Raises OSError."""
        told = {"format": _LIST_FORMAT, "key": key, "prompts": [asdict(prompt) for prompt in prompts]}
        path = self.directory / model / LIST_NAME
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(told, stream)

    def read_list(self, model: str, key: str) -> list[SavedPrompt]:
        """What may be used of a model's folder. What may not is told in the log and left out."""
        path = self.directory / model / LIST_NAME
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            prompts = _prompts_of(told)
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("saved_prompts_ignored model=%s reason=%r", model[:12], f"the list cannot be read: {error!r}")
            return []
        if told["key"] != key:
            reason = "the model's files, the engine or its settings have changed since"
            log.warning("saved_prompts_ignored model=%s n=%d reason=%r", model[:12], len(prompts), reason)
            return []
        return [prompt for prompt in prompts if self._is_whole(model, prompt)]

    def clear(self, model: str) -> None:
        """Delete what a model's folder holds; the folder stays for its engine."""
        folder = self.directory / model
        for path in folder.iterdir() if folder.is_dir() else ():
            path.unlink(missing_ok=True)

    def forget(self, model: str | None) -> None:
        """Delete the folder of a model, or all of them. Raises OSError."""
        folder = self.directory / model if model else self.directory
        if folder.exists():
            shutil.rmtree(folder)

    def sizes(self) -> dict[str, int]:
        """Bytes that each model's folder takes, empty ones left out. Raises OSError."""
        folders = [path for path in self.directory.iterdir() if path.is_dir()] if self.directory.is_dir() else []
        sizes = {folder.name: sum(path.stat().st_size for path in folder.iterdir()) for folder in folders}
        return {model: size for model, size in sizes.items() if size}

    def room_bytes(self, model: str) -> int:
        """How much more a model's folder may take before those of others are deleted to make room for it."""
        folder = self.directory / model
        own = sum(path.stat().st_size for path in folder.iterdir()) if folder.is_dir() else 0
        return self.limit_bytes - own

    def keep_limit(self, latest: str | None = None) -> None:
        """Delete the folders that were written first until the rest fits; that of the model `latest` stays."""
        if not self.directory.is_dir():
            return
        folders = sorted((path for path in self.directory.iterdir() if path.is_dir()), key=_written_at, reverse=True)
        folders.sort(key=lambda folder: folder.name != latest)
        taken = 0
        for folder in folders:
            taken += sum(path.stat().st_size for path in folder.iterdir())
            if taken > self.limit_bytes and folder.name != latest:
                log.info("saved_prompts_deleted model=%s reason='prompt_state_bytes is reached'", folder.name[:12])
                shutil.rmtree(folder)

    def _is_whole(self, model: str, prompt: SavedPrompt) -> bool:
        path = self.directory / model / prompt.file
        try:
            whole = path.stat().st_size == prompt.n_bytes and _checksum(path) == prompt.checksum
            reason = "the file is damaged"
        except OSError as error:
            whole, reason = False, str(error)
        if not whole:
            log.warning("saved_prompt_ignored model=%s tokens=%d reason=%r", model[:12], prompt.n_tokens, reason)
        return whole


def _prompts_of(told: Any) -> list[SavedPrompt]:
    if told["format"] != _LIST_FORMAT or not isinstance(told["key"], str):
        raise ValueError(f"format {told['format']!r}")
    prompts = [SavedPrompt(**prompt) for prompt in told["prompts"]]
    for prompt in prompts:
        if Path(prompt.file).name != prompt.file:
            raise ValueError(f"file name {prompt.file!r}")
    return prompts


def _written_at(folder: Path) -> float:
    written = folder / LIST_NAME
    return written.stat().st_mtime if written.exists() else 0.0


def _checksum(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=32)
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
