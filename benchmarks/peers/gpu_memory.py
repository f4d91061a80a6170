"""GPU memory in use on the whole device, by NVML: the only figure that means the same for every engine."""

from __future__ import annotations

import ctypes


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def used_bytes(library: str = "libnvidia-ml.so.1", index: int = 0) -> int | None:
    """Bytes of GPU `index` that are in use by anything, None where there is no NVML or no such GPU."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        device = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) != 0:
            return None
        memory = _Memory()
        if nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) != 0:
            return None
        return int(memory.used)
    finally:
        nvml.nvmlShutdown()
