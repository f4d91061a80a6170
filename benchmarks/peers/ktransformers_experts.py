"""The child process of cpu_experts.py: kt-kernel's extension on one layer's experts. `JOB.json` is its argument.

Prints microseconds of each step as JSON in its last line and writes the last answer of each case. The extension takes
addresses; only its package needs torch, for tensors that hold them. Settings are those of its wrappers
(`utils/llamafile.py`, `utils/amx.py`) with one pool of threads.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.cpu_experts import MXFP4, Layer, in_pairs

GROUP = 32
"""Weights that share a scale."""


def configured(extension: Any, layer: Layer, hot: NDArray[np.bool_], pool: Any, most_tokens: int) -> Any:
    """The settings that both kinds of experts have."""
    config = extension.moe.MOEConfig(layer.n_experts, layer.k, layer.n_in, layer.n_ff, hot.ctypes.data)
    config.layer_idx = 0
    config.pool = pool
    config.max_len = most_tokens
    return config


def llamafile(extension: Any, config: Any, layer: Layer) -> tuple[Any, Any]:
    """Experts as the GGUF file has them, and their memory, which one pool of threads computes from in place.

    It is a copy, since numpy asks for huge pages, as our engine does; the wrapper's map of the file has small ones.
    """
    config.m_block = 32
    config.group_min_len = 10
    config.group_max_len = config.max_len
    tensors = [np.array(layer.tensor(number)) for number in range(3)]
    config.gate_proj, config.up_proj, config.down_proj = (tensor.ctypes.data for tensor in tensors)
    config.gate_type = config.up_type = config.down_type = MXFP4
    config.hidden_type = extension.kvcache.ggml_type.BF16
    return extension.moe.MOE(config), tensors


def mxfp4(extension: Any, config: Any, layer: Layer) -> tuple[Any, Any]:
    """The same experts in the order of DeepSeek-V4-Flash's safetensors, and their memory, which is copied."""
    kind = getattr(extension.moe, "AMXFP4_KGroup_MOE", None) or extension.moe.AVX2MXFP4_MOE
    config.quant_config.bits = 4
    config.quant_config.group_size = GROUP
    config.quant_config.zero_point = False
    kept: list[NDArray[Any]] = []

    def addresses(number: int) -> tuple[list[list[int]], list[list[int]]]:
        with ThreadPoolExecutor() as pool:
            weights = [*pool.map(lambda blocks: np.ascontiguousarray(in_pairs(blocks)), layer.tensor(number))]
        # exponents are those of bfloat16
        scales = [blocks[..., 0].astype(np.uint16) << 7 for blocks in layer.tensor(number)]
        kept.extend((*weights, *scales))
        return [[part.ctypes.data for part in weights]], [[part.ctypes.data for part in scales]]

    config.gate_projs, config.gate_scales = addresses(0)
    config.up_projs, config.up_scales = addresses(1)
    config.down_projs, config.down_scales = addresses(2)
    return kind(config), kept


def in_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to the nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bfloat16(values: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The numbers that these are."""
    found: NDArray[np.float32] = (values.astype(np.uint32) << 16).view(np.float32)
    return found


def numbers(stream: IO[bytes], kind: Any, count: int) -> NDArray[Any]:
    """The next values of a file."""
    found: NDArray[Any] = np.frombuffer(stream.read(count * np.dtype(kind).itemsize), kind).copy()
    return found


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Time every step of a job."""
    package: Any = importlib.import_module("kt_kernel")
    extension = package.kt_kernel_ext
    layer = Layer(**job["layer"])
    workers = extension.WorkerPoolConfig()
    workers.subpool_count = 1
    workers.subpool_numa_map = [0]
    workers.subpool_thread_count = [job["threads"]]
    infer = extension.CPUInfer(workers)
    microseconds = []
    with Path(job["steps"]).open("rb") as stream, Path(job["out"]).open("wb") as answers:
        n_steps, most_tokens = numbers(stream, np.int32, 2).tolist()
        hot = numbers(stream, np.int32, layer.n_experts).astype(np.bool_)
        inputs = in_bfloat16(numbers(stream, np.float32, most_tokens * layer.n_in))
        config = configured(extension, layer, hot, infer.backend_, most_tokens)
        experts, kept = (llamafile if job["method"] == "LLAMAFILE" else mxfp4)(extension, config, layer)
        order = np.arange(layer.n_experts, dtype=np.int64)
        infer.submit(experts.load_weights_task(order.ctypes.data))
        infer.sync()
        if job["method"] != "LLAMAFILE":
            kept.clear()
        out = np.zeros((most_tokens, layer.n_in), np.uint16)
        for _ in range(n_steps):
            n_tokens, is_last = numbers(stream, np.int32, 2).tolist()
            ids = numbers(stream, np.int32, n_tokens * layer.k).astype(np.int64)
            weights = numbers(stream, np.float32, n_tokens * layer.k)
            count = np.array([n_tokens], np.int32)
            addresses = [array.ctypes.data for array in (ids, weights, inputs, out)]
            task = experts.forward_task(count.ctypes.data, layer.k, *addresses, False)
            begins = time.perf_counter() + job["pause_us"] / 1e6
            while time.perf_counter() < begins:
                pass
            started = time.perf_counter()
            infer.submit(task)
            infer.sync()
            microseconds.append(round((time.perf_counter() - started) * 1e6, 2))
            if is_last:
                answers.write(from_bfloat16(out[:n_tokens]).tobytes())
    return {
        "version": package.__version__,
        "variant": package.__cpu_variant__,
        "kernel": type(experts).__name__,
        "microseconds": microseconds,
    }


if __name__ == "__main__":
    print(json.dumps(run(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
