"""What a CUDA build could use: the compiler and the compute capability of the GPUs present. Starts no CUDA context."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from ostinatod.installer.child_process import answer_of

_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of the driver interface."""


@dataclass(frozen=True, slots=True)
class CudaCompiler:
    """The nvcc a build would use."""

    path: Path
    on_path: bool
    """False when it was found in the toolkit's usual place only, so that CMake must be told."""
    version: str
    """Such as "12.8"."""
    architectures: tuple[str, ...]
    """Compute capabilities it can compile for, such as "89"; empty when it does not say."""


def find_cuda_compiler() -> CudaCompiler | None:
    """nvcc from PATH, else from CUDA_HOME, CUDA_PATH or /usr/local/cuda; None when there is none that runs."""
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    candidates = [shutil.which("nvcc"), *(shutil.which(str(Path(root, "bin", "nvcc"))) for root in roots if root)]
    for at, candidate in enumerate(candidates):
        if candidate and (text := answer_of([candidate, "--version"])):
            release = re.search(r"release (\d+\.\d+)", text)
            listed = re.findall(r"compute_(\d+)", answer_of([candidate, "--list-gpu-arch"]) or "")
            return CudaCompiler(
                Path(candidate), at == 0, release[1] if release else "unknown", tuple(dict.fromkeys(listed))
            )
    return None


def gpu_architectures() -> tuple[str, ...]:
    """Compute capabilities of the NVIDIA GPUs of this machine without repetition, such as ("89",); () without one."""
    text = answer_of(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"])
    found = re.findall(r"^\s*(\d+)\.(\d+)\s*$", text or "", flags=re.MULTILINE) or _ask_driver()
    return tuple(sorted({f"{major}{minor}" for major, minor in found}, key=int))


def _ask_driver() -> list[tuple[int, int]]:
    """(major, minor) of each GPU from libcuda; drivers before 510 have no such query in nvidia-smi."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    found: list[tuple[int, int]] = []
    for ordinal in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        status = driver.cuDeviceGet(ctypes.byref(device), ordinal)
        status |= driver.cuDeviceGetAttribute(ctypes.byref(major), _CAPABILITY_MAJOR, device)
        status |= driver.cuDeviceGetAttribute(ctypes.byref(minor), _CAPABILITY_MINOR, device)
        if status == 0:
            found.append((major.value, minor.value))
    return found
