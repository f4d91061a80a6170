"""Stock llama.cpp of the same build as ours: whole layers' experts on the GPU or in host memory."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from benchmarks.peers.layers import fitted_layers, least_layers
from benchmarks.peers.protocol import Options, Peer, Tokens, Work
from benchmarks.peers.timed_passes import TimedPasses
from ostinatod.bindings import EXPERT_TENSORS, load_bindings

LIBRARIES = "OSTINATO_PEERS_LLAMA_CPP"
"""Environment variable with the folder of libllama.so."""


class LlamaCpp(TimedPasses):
    """One model with one context; options are the server's, by their long names."""

    def __init__(self, work: Work, options: Options) -> None:
        super().__init__(work.vocabulary)
        bindings = load_bindings(Path(os.environ[LIBRARIES]))
        core: Any = bindings.llama_cpp.llama_cpp
        self._core = core
        self._log: list[str] = []
        self._callback = core.llama_log_callback(lambda _, text, __: self._log.append(text.decode(errors="replace")))
        core.llama_log_set(self._callback, None)
        core.llama_backend_init()
        params = core.llama_model_default_params()
        params.n_gpu_layers = 999
        params.use_extra_bufts = bool(options.get("repack", False))
        pinned = options.get("load-mode", "none") == "none"
        params.load_mode = core.LLAMA_LOAD_MODE_NONE if pinned else core.LLAMA_LOAD_MODE_MMAP
        patterns = [rb"blk\.%d" % layer + EXPERT_TENSORS for layer in range(options["n-cpu-moe"])]
        self._overrides = bindings.keep_in_host_memory(params, patterns)
        self._model = core.llama_model_load_from_file(work.model.encode(), params)
        if not self._model:
            raise RuntimeError("".join(self._log)[-3000:])
        params = core.llama_context_default_params()
        params.n_ctx = work.n_ctx
        params.n_batch = params.n_ubatch = options.get("ubatch-size", 2048)
        params.n_threads = params.n_threads_batch = work.threads
        params.flash_attn_type = 1
        self._context = core.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("".join(self._log)[-3000:])
        self._memory = core.llama_get_memory(self._context)
        self._batch: int = params.n_batch

    def _pass(self, tokens: Tokens) -> None:
        for at in range(0, len(tokens), self._batch):
            part = tokens[at : at + self._batch]
            array = (ctypes.c_int32 * len(part))(*part.tolist())
            batch = self._core.llama_batch_get_one(ctypes.cast(array, ctypes.POINTER(ctypes.c_int32)), len(part))
            status = self._core.llama_decode(self._context, batch)
            if status != 0:
                raise RuntimeError(f"a pass of {len(part)} tokens failed with status {status}")
        self._core.llama_synchronize(self._context)

    def _rewind(self, depth: int) -> None:
        self._core.llama_memory_seq_rm(self._memory, 0, depth, -1)

    def _last_logits(self) -> Any:
        return self._core.llama_get_logits_ith(self._context, -1)

    def facts(self) -> dict[str, Any]:
        return {"log": [line for line in "".join(self._log).splitlines() if "buffer size" in line or "splits" in line]}


PEER = Peer(
    name="llama.cpp",
    open=LlamaCpp,
    least=least_layers,
    fitted=fitted_layers,
    choices={
        "load-mode": ("none", "mmap"),
        "environment.GGML_OP_OFFLOAD_MIN_BATCH": ("32", "256", "1000000"),
        "ubatch-size": (2048, 512),
        "repack": (False, True),
    },
    environment={"CUDA_MODULE_LOADING": "EAGER"},
)
