"""Has engines save the prompts they hold before they end, and read them again when they start.

Saving is a favour to the next turn, so nothing here raises: what goes wrong is told in the log, and the prompt is read
anew. The engine keeps one prompt in each slot and the others in host memory; a slot that is empty takes the latest of
those when it is saved, and a prompt's checkpoints go into its file (`overlay/ostinato/cached-prompt.h`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import shutil
from pathlib import Path

import httpx

from ostinatod.config import Settings
from ostinatod.engine.arguments import context_tokens
from ostinatod.engine.client import EngineClient
from ostinatod.engine.gpu_experts import ExpertPlace
from ostinatod.engine.saved_prompts import SavedPrompt, SavedPrompts
from ostinatod.store.records import ModelRecord

log = logging.getLogger(__name__)

SAVE_WITHIN_S = 60.0
"""How long unloading a model may take for the sake of its prompts: tens of GiB at a disk's speed."""

LEAST_TOKENS = 256
"""Shorter prompts, such as those of side requests, are read again sooner than they are restored."""

_FAULTS = (OSError, httpx.TransportError, RuntimeError, ValueError, KeyError)
"""RuntimeError: the client was closed because the engine had to end at once."""


class PromptKeeper:
    """Without a `directory` nothing is kept; with a setting of 0 bytes nothing is, and what was is deleted."""

    def __init__(self, directory: Path | None, settings: Settings) -> None:
        self._files = SavedPrompts(directory, settings.prompt_state_bytes) if directory else None
        self._settings = settings
        self._withheld: set[str] = set()
        """Models of which something was forgotten while they were in memory: nothing of them is saved."""

    def open(self) -> None:
        """Bring what earlier runs left within the setting. Blocks."""
        if self._files is None:
            return
        try:
            self._files.keep_limit() if self._files.limit_bytes else self._files.forget(None)
        except OSError as error:
            log.warning("saved_prompts_not_deleted reason=%r", str(error))

    def folder(self, record: ModelRecord) -> Path | None:
        """Where the engine of this model saves its prompts; None where it saves none. Blocks."""
        if self._files is None or not self._files.limit_bytes or record.shape.is_embedding:
            return None
        try:
            return self._files.folder(record.digest)
        except OSError as error:
            log.warning("prompts_not_kept model=%s reason=%r", record.name, str(error))
            return None

    async def restore(self, record: ModelRecord, build_digest: str, experts: ExpertPlace, client: EngineClient) -> None:
        """Give a fresh engine the prompts that were saved, as many as it has slots, and delete the files."""
        self._withheld.discard(record.digest)
        if self._files is None or await asyncio.to_thread(self.folder, record) is None:
            return
        restored = 0
        try:
            key = await asyncio.to_thread(state_key, self._settings, record, build_digest, experts)
            prompts = await asyncio.to_thread(self._files.read_list, record.digest, key)
            for slot, prompt in enumerate(prompts[: self._settings.parallel]):
                answer = await client.act_on_slot(slot, "restore", prompt.file)
                if answer.is_success:
                    restored += prompt.n_tokens
                else:
                    log.warning("saved_prompt_ignored model=%s reason=%r", record.name, answer.text)
            if prompts:
                log.info("prompts_restored model=%s n=%d tokens=%d", record.name, len(prompts), restored)
        except _FAULTS as error:
            log.warning("prompts_not_restored model=%s reason=%r", record.name, error)
        await asyncio.to_thread(self._clear, record)

    async def save(self, record: ModelRecord, build_digest: str, experts: ExpertPlace, client: EngineClient) -> None:
        """Have an engine without requests save its prompts, the latest first, as many as it has slots."""
        if self._files is None or await asyncio.to_thread(self.folder, record) is None:
            return
        if record.digest in self._withheld:
            log.info("prompts_not_saved model=%s reason='something of it was forgotten'", record.name)
            return
        try:
            key = await asyncio.to_thread(state_key, self._settings, record, build_digest, experts)
            await asyncio.wait_for(self._save(self._files, record, key, client), SAVE_WITHIN_S)
        except (asyncio.TimeoutError, *_FAULTS) as error:
            log.warning("prompts_not_saved model=%s reason=%r", record.name, error)

    async def forget(self, model: str | None, loaded: list[ModelRecord]) -> None:
        """Delete what is saved of a model, or all; what those of them that are `loaded` hold will not be saved."""
        self._withheld.update(record.digest for record in loaded if model in (None, record.digest))
        if self._files is not None:
            await asyncio.to_thread(self._files.forget, model)

    async def saved(self) -> dict[Path, int]:
        """The folder of each model that something is saved of, named by its fingerprint, and its bytes."""
        if self._files is None:
            return {}
        sizes = await asyncio.to_thread(self._files.sizes)
        return {self._files.directory / model: size for model, size in sizes.items()}

    async def _save(self, files: SavedPrompts, record: ModelRecord, key: str, client: EngineClient) -> None:
        kept: list[SavedPrompt] = []
        slots = await _idle_slots(client)
        # Slots first, then what is in host memory, through one that is empty by then.
        for number, slot in enumerate([*slots, *slots[:1] * 4 * self._settings.parallel]):
            room_bytes = await asyncio.to_thread(files.room_bytes, record.digest)
            if len(kept) == self._settings.parallel or not await asyncio.to_thread(self._has_space, record, room_bytes):
                break
            file = f"{number}.state"
            answer = await client.act_on_slot(slot, "save", file)
            if not answer.is_success:
                raise OSError(answer.text)
            n_tokens = int(answer.json()["n_saved"])
            prompt = await asyncio.to_thread(files.describe, record.digest, file, n_tokens)
            if n_tokens < LEAST_TOKENS or prompt.n_bytes > room_bytes:
                (files.directory / record.digest / file).unlink()
            else:
                kept.append(prompt)
                await asyncio.to_thread(files.write_list, record.digest, key, kept)
            if n_tokens == 0 and number >= len(slots):
                break
            await client.act_on_slot(slot, "erase", file)
        await asyncio.to_thread(files.keep_limit, record.digest)
        total = sum(prompt.n_tokens for prompt in kept)
        log.info("prompts_saved model=%s n=%d tokens=%d", record.name, len(kept), total)

    def _has_space(self, record: ModelRecord, room_bytes: int) -> bool:
        """Whether the disk has at least what the prompts may take; how large the next one is, nobody knows before."""
        assert self._files is not None
        free_bytes = shutil.disk_usage(self._files.directory).free
        if free_bytes > room_bytes > 0:
            return True
        if room_bytes > 0:
            log.warning("prompts_not_saved model=%s reason='%d bytes are free'", record.name, free_bytes)
        return False

    def _clear(self, record: ModelRecord) -> None:
        assert self._files is not None
        try:
            self._files.clear(record.digest)
        except OSError as error:
            log.warning("saved_prompts_not_deleted model=%s reason=%r", record.name, str(error))


def state_key(settings: Settings, record: ModelRecord, build_digest: str, experts: ExpertPlace) -> str:
    """Equal for two engines only if one can go on where the other stopped. Blocks; raises OSError.

    The fingerprint covers headers; a file with other weights behind the same header has another time.
    """
    files = [(stat.st_size, stat.st_mtime_ns) for stat in (part.stat() for part in record.parts)]
    decides = [record.digest, files, build_digest, context_tokens(settings, record)]
    told = json.dumps([*decides, experts, settings.engine_args])
    return hashlib.sha256(told.encode()).hexdigest()


async def _idle_slots(client: EngineClient) -> list[int]:
    """The slots that work on nothing, those that served the latest requests first."""
    slots = [slot for slot in await client.get_json("/slots") or () if not slot["is_processing"]]
    return [slot["id"] for slot in sorted(slots, key=lambda slot: not slot.get("n_prompt_tokens"))]
