"""One model in this process under one setting, with one context: what every timing of the engine goes through."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinatod.bench.settings import Setting
from ostinatod.bindings import EXPERT_TENSORS, Bindings, DeviceStatus, PlacementOptions, UploadCosts
from ostinatod.errors import EngineError, EngineLoadError

PASS_TOKENS = 2048
"""Tokens of a forward pass: llama.cpp's --ubatch-size."""
COUNTED_PASS_TOKENS = 256
"""Tokens of a pass whose logits are all wanted, which take memory."""
ALL_LAYERS = 99
LOG_LEVEL_DEBUG, LOG_LEVEL_ERROR, LOG_LEVEL_CONTINUED = 1, 4, 5
"""GGML_LOG_LEVEL_DEBUG, GGML_LOG_LEVEL_ERROR, GGML_LOG_LEVEL_CONT"""

_BUFFER = re.compile(r"(\S+) +(?:model|KV|compute) buffer size = +([\d.]+) MiB")
_HOST = re.compile(r"CPU|_Host|_Mapped")


class EngineLog:
    """Collects what llama.cpp logs, in place of stderr, where errors still go: they may be the process's last words.
    Leaves out what is for debugging, which has no end.
    """

    def __init__(self, core: Any) -> None:
        self._lines: list[str] = []
        self._level = LOG_LEVEL_DEBUG
        self._callback = core.llama_log_callback(self._keep)
        core.llama_log_set(self._callback, None)

    def _keep(self, level: int, text: bytes, _: object) -> None:
        if level != LOG_LEVEL_CONTINUED:
            self._level = level
        if self._level > LOG_LEVEL_DEBUG:
            self._lines.append(text.decode(errors="replace"))
        if self._level == LOG_LEVEL_ERROR:
            sys.stderr.write(self._lines[-1])

    @property
    def text(self) -> str:
        """Everything so far."""
        return "".join(self._lines)

    def gpu_bytes(self) -> int:
        """Memory on GPUs that weights, KV cache and computing were given."""
        sizes = [float(mib) for name, mib in _BUFFER.findall(self.text) if not _HOST.search(name)]
        return round(sum(sizes) * 2**20)


class PlacedModel:
    """A loaded model and its context of one sequence. Raises EngineLoadError where either cannot be made.

    n_ctx   tokens of the context
    hot     (L, E) the experts that are hot, for kind "ostinato"
    on_gpu  whether layers go to GPUs
    """

    def __init__(
        self,
        bindings: Bindings,
        file: Path,
        setting: Setting,
        *,
        n_ctx: int,
        on_gpu: bool,
        hot: NDArray[np.bool_] | None = None,
        counted: bool = False,
    ) -> None:
        self.bindings = bindings
        self._core: Any = bindings.llama_cpp.llama_cpp
        self._is_placed = setting.kind == "ostinato"
        if self._is_placed:
            bindings.configure(placement=_placement(setting, on_gpu))
        bindings.count_routes(counted)
        started = time.monotonic()
        self.handle = self._load(file, setting, on_gpu)
        if hot is not None:
            bindings.set_residency(self.handle, hot)
        params = self._core.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, PASS_TOKENS, PASS_TOKENS
        # On a GPU the CPU branch has threads of its own, and llama.cpp's would only spin beside them.
        threads = 1 if self._is_placed and on_gpu else setting.threads or usable_cores()
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = 1
        self.context = self._core.llama_init_from_model(self.handle, params)
        if not self.context:
            raise EngineLoadError(f"no context of {n_ctx} tokens can be made of {file.name}")
        self.load_s = time.monotonic() - started
        self._memory = self._core.llama_get_memory(self.context)
        self._batch: Any = None

    @property
    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""
        return int(self._core.llama_vocab_n_tokens(self._core.llama_model_get_vocab(self.handle)))

    def decode(self, tokens: Sequence[int]) -> float:
        """Milliseconds of one forward pass that continues the context, with its results ready.

        Raises EngineError where it fails.
        """
        core = self._core
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        started = time.perf_counter()
        batch = core.llama_batch_get_one(ctypes.cast(array, ctypes.POINTER(ctypes.c_int32)), len(tokens))
        status = core.llama_decode(self.context, batch)
        core.llama_synchronize(self.context)
        elapsed_ms = (time.perf_counter() - started) * 1000
        if status != 0:
            raise EngineError(f"a pass of {len(tokens)} tokens failed with status {status}")
        return elapsed_ms

    def read(self, tokens: Sequence[int]) -> float:
        """Milliseconds of a prefill, in passes of `PASS_TOKENS`."""
        return sum(self.decode(part) for part in passes(tokens, PASS_TOKENS))

    def read_as_output(self, tokens: Sequence[int], position: int) -> None:
        """Read tokens so that their routes count as decode: passes that want every token's logits do."""
        core = self._core
        if self._batch is None:
            self._batch = core.llama_batch_init(COUNTED_PASS_TOKENS, 0, 1)
        batch = self._batch
        for part in passes(tokens, COUNTED_PASS_TOKENS):
            batch.n_tokens = len(part)
            for i, token in enumerate(part):
                batch.token[i], batch.pos[i], batch.logits[i] = token, position + i, True
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            position += len(part)
            if (status := core.llama_decode(self.context, batch)) != 0:
                raise EngineError(f"a pass of {len(part)} tokens failed with status {status}")

    def rewind(self, position: int) -> None:
        """Forget the context from `position` on. Raises EngineError where the model's memory cannot."""
        if not self._core.llama_memory_seq_rm(self._memory, 0, position, -1):
            raise EngineError(f"the context cannot be cut at {position} tokens")

    def keep_context(self, file: Path) -> None:
        """Write the context to a file, for `restore_context`. Raises EngineError where that fails."""
        if not self._core.llama_state_seq_save_file(self.context, os.fsencode(file), 0, None, 0):
            raise EngineError(f"the context cannot be written to {file}")

    def restore_context(self, file: Path) -> None:
        """Have the context of another process with the same model. Raises EngineError where it does not fit."""
        taken = ctypes.c_size_t()
        if not self._core.llama_state_seq_load_file(self.context, os.fsencode(file), 0, None, 0, ctypes.byref(taken)):
            raise EngineError(f"the context in {file} cannot be read")

    def use_threads(self, threads: int) -> None:
        """Compute what stock layers have on the CPU with so many threads from now on."""
        self._core.llama_set_n_threads(self.context, threads, threads)

    def logits(self) -> NDArray[np.float32]:
        """(vocabulary,) of the last token."""
        row = self._core.llama_get_logits_ith(self.context, -1)
        values: NDArray[np.float32] = np.ctypeslib.as_array(row, (self.n_vocab,)).copy()
        return values

    def devices(self) -> list[DeviceStatus]:
        """The devices whose layers are divided, and their counters so far; none for stock layers."""
        return self.bindings.device_status(self.handle) if self._is_placed else []

    def upload_costs(self) -> list[list[UploadCosts]]:
        """Of each of these devices, what the choice of uploads counts with by now."""
        return [self.bindings.upload_costs(self.handle, device) for device in range(len(self.devices()))]

    def _load(self, file: Path, setting: Setting, on_gpu: bool) -> int:
        core = self._core
        params = core.llama_model_default_params()
        params.n_gpu_layers = ALL_LAYERS if on_gpu else 0
        params.load_mode = core.LLAMA_LOAD_MODE_NONE if setting.load_mode == "none" else core.LLAMA_LOAD_MODE_MMAP
        patterns = [EXPERT_TENSORS]
        if setting.kind == "ostinato":
            # Hot experts are copied as the file has them; stock layers may be repacked for the CPU.
            params.use_extra_bufts = False
        else:
            params.no_host = setting.repacked
            patterns = [rb"blk\.%d" % layer + EXPERT_TENSORS for layer in setting.layers_on_cpu]
        if setting.tensor_split:
            # As long as llama.cpp reads it: one value for each device it can have.
            self._split = (ctypes.c_float * core.llama_max_devices())(*setting.tensor_split)
            params.tensor_split = self._split
        # The overrides must live until the model is loaded.
        self._overrides = self.bindings.keep_in_host_memory(params, patterns) if on_gpu else None
        handle = core.llama_model_load_from_file(str(file).encode(), params)
        if not handle:
            raise EngineLoadError(f"{file} cannot be loaded")
        return int(handle)


def passes(tokens: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """`tokens` in parts of up to `size`."""
    return (tokens[start : start + size] for start in range(0, len(tokens), size))


def usable_cores() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _placement(setting: Setting, on_gpu: bool) -> PlacementOptions:
    return PlacementOptions(
        two_branches=True,
        pool_bytes=setting.pool_bytes,
        pin_bytes=setting.pin_bytes,
        n_threads=setting.threads if on_gpu else 0,
        timeout_ms=setting.timeout_ms,
        upload_tokens=setting.upload_tokens,
        upload_all_tokens=setting.upload_all_tokens,
        link_percent=setting.link_percent,
        borrow_percent=setting.borrow,
        prefetch_us=setting.prefetch_us,
        staging_experts=setting.staging_experts,
        copy_blocks=setting.copy_blocks,
    )
