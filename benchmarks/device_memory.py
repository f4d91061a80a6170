"""Memory in use on the GPUs that this process sees, by llama.cpp's own device interface (`cudaMemGetInfo`)."""

from __future__ import annotations

import ctypes
from typing import Any

from ostinatod.bindings import Bindings

GPU_TYPES = (1, 2)
"""GGML_BACKEND_DEVICE_TYPE_GPU, GGML_BACKEND_DEVICE_TYPE_IGPU"""


def used_bytes(bindings: Bindings) -> list[int]:
    """Bytes in use by anything on each GPU, in the order of the devices; empty without one."""
    # A library's symbols include those of what it is linked with: these are ggml's.
    ggml: Any = bindings.llama_cpp.llama_cpp._lib
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    ggml.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    ggml.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    ggml.ggml_backend_dev_memory.restype = None
    used = []
    for number in range(ggml.ggml_backend_dev_count()):
        device = ggml.ggml_backend_dev_get(number)
        if ggml.ggml_backend_dev_type(device) in GPU_TYPES:
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
            used.append(total.value - free.value)
    return used
