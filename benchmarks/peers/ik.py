"""ik_llama.cpp, through the bindings of its own package (ik-llama-cpp-python), on the libraries ik_build.py made."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.layers import fitted_layers, least_layers
from benchmarks.peers.protocol import Options, Peer, Tokens, Work
from benchmarks.peers.timed_passes import TimedPasses

PACKAGE = "OSTINATO_PEERS_IK"
"""Environment variable with the folder that holds ik_llama_cpp."""


def _functions(library: ctypes.CDLL) -> None:
    library.llama_kv_cache_seq_rm.argtypes = (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)
    library.llama_kv_cache_seq_rm.restype = ctypes.c_bool
    library.llama_synchronize.argtypes = (ctypes.c_void_p,)
    library.llama_synchronize.restype = None


class IkLlamaCpp(TimedPasses):
    """One model with one context; options are the server's, by their long names."""

    def __init__(self, work: Work, options: Options) -> None:
        super().__init__(work.vocabulary)
        folder = Path(os.environ[PACKAGE])
        libraries = folder / "ik_llama_cpp" / "lib"
        # what the build left out: named functions that abort, for the loader's sake
        self._left_out = ctypes.CDLL(str(libraries / "libleft-out.so"), mode=ctypes.RTLD_GLOBAL)
        self._ggml = ctypes.CDLL(str(libraries / "libggml.so"), mode=ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(str(libraries / "libllama.so"))
        _functions(self._library)
        sys.path.insert(0, str(folder))
        api: Any = importlib.import_module("ik_llama_cpp._ctypes_api")
        self._api = api
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.n_gpu_layers = 999
        params.ncmoe = options["n-cpu-moe"]
        params.repack_tensors = bool(options.get("run-time-repack", False))
        # a file that is mapped can't be repacked in place
        params.use_mmap = bool(options.get("mmap", False)) and not params.repack_tensors
        params.use_thp = bool(options.get("transparent-huge-pages", False))
        params.merge_up_gate_exps = bool(options.get("merge-up-gate-experts", False))
        self._model = api.llama_model_load_from_file(work.model.encode(), params)
        if not self._model:
            raise RuntimeError(f"{work.model} cannot be loaded; the engine's messages say why")
        params = api.llama_context_default_params()
        params.n_ctx = -(-work.n_ctx // 256) * 256
        params.n_batch = params.n_ubatch = options.get("ubatch-size", 2048)
        params.n_threads = params.n_threads_batch = work.threads
        params.flash_attn = True
        params.fused_moe_up_gate = bool(options.get("fused-moe", True))
        params.only_active_experts = bool(options.get("offload-only-active-experts", True))
        self._cuda_params = ctypes.create_string_buffer(options.get("cuda-params", "").encode())
        if options.get("cuda-params"):
            params.cuda_params = ctypes.cast(self._cuda_params, ctypes.c_void_p)
        self._context = api.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("no context can be made of this model; the engine's messages say why")
        self._batch_tokens: int = params.n_batch
        self._batch = api.llama_batch_init(self._batch_tokens, 0, 1)
        # Filled as arrays: token by token would take a hundredth of a long pass, and count.
        shape = (self._batch_tokens,)
        self._tokens, self._positions, self._logits = (
            np.ctypeslib.as_array(part, shape) for part in (self._batch.token, self._batch.pos, self._batch.logits)
        )
        for i in range(self._batch_tokens):
            self._batch.n_seq_id[i] = 1
            self._batch.seq_id[i][0] = 0
        self._position = 0

    def _pass(self, tokens: Tokens) -> None:
        batch = self._batch
        for at in range(0, len(tokens), self._batch_tokens):
            part = tokens[at : at + self._batch_tokens]
            count = batch.n_tokens = len(part)
            self._tokens[:count] = part
            self._positions[:count] = np.arange(self._position, self._position + count)
            self._logits[:count] = 0
            self._logits[count - 1] = 1
            status = self._api.llama_decode(self._context, batch)
            if status != 0:
                raise RuntimeError(f"a pass of {len(part)} tokens failed with status {status}")
            self._position += len(part)
        self._library.llama_synchronize(self._context)

    def _rewind(self, depth: int) -> None:
        self._library.llama_kv_cache_seq_rm(self._context, 0, depth, -1)
        self._position = depth

    def _last_logits(self) -> Any:
        return self._api.llama_get_logits_ith(self._context, -1)

    def facts(self) -> dict[str, Any]:
        return {"package": "ik-llama-cpp-python 0.1.5"}


PEER = Peer(
    name="ik_llama.cpp",
    open=IkLlamaCpp,
    least=least_layers,
    fitted=fitted_layers,
    choices={
        # tokens per expert on average from which experts go to the GPU; its own threshold is 32
        "cuda-params": ("", "offload-batch-size=8", "offload-batch-size=3", "offload-batch-size=1"),
        "run-time-repack": (False, True),
        "offload-only-active-experts": (True, False),
        "merge-up-gate-experts": (False, True),
        "mmap": (False, True),
        "transparent-huge-pages": (False, True),
        "fused-moe": (True, False),
        "ubatch-size": (2048, 512),
    },
    environment={"CUDA_MODULE_LOADING": "EAGER"},
)
