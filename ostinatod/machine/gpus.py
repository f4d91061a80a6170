"""GPUs as NVIDIA's driver tells of them (NVML). A machine without a driver has none."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PcieLink:
    """A PCIe link as it is trained. Idle GPUs lower their link, so `max_` is what a transfer finds."""

    generation: int | None
    width: int | None
    max_generation: int | None
    max_width: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. None where the driver does not tell."""

    index: int
    name: str
    uuid: str
    total_bytes: int
    free_bytes: int
    driver: str
    compute_capability: str | None
    numa_node: int | None
    link: PcieLink
    upload_gbps: float | None = None
    """This and what follows as in `transfers.Transfers`, None until it was measured."""
    download_gbps: float | None = None
    upload_pageable_gbps: float | None = None
    in_place_gbps: float | None = None
    upload_busy_gbps: float | None = None
    cpu_read_busy_gbps: float | None = None


def list_gpus(nvml: Any | None = None) -> tuple[Gpu, ...]:
    """Every GPU of this machine; none where there is no driver or library.

    nvml  a module with pynvml's interface; the installed one where it is not given
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        return tuple(_describe(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError:
        return ()
    finally:
        nvml.nvmlShutdown()


def _describe(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)

    def told(ask: Callable[..., Any], *more: Any) -> Any:
        try:
            return ask(handle, *more)
        except nvml.NVMLError:
            return None

    capability = told(nvml.nvmlDeviceGetCudaComputeCapability)
    node = told(nvml.nvmlDeviceGetNumaNodeId) if hasattr(nvml, "nvmlDeviceGetNumaNodeId") else None
    return Gpu(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
        driver=_text(nvml.nvmlSystemGetDriverVersion()),
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        numa_node=node,
        link=PcieLink(
            generation=told(nvml.nvmlDeviceGetCurrPcieLinkGeneration),
            width=told(nvml.nvmlDeviceGetCurrPcieLinkWidth),
            max_generation=told(nvml.nvmlDeviceGetMaxPcieLinkGeneration),
            max_width=told(nvml.nvmlDeviceGetMaxPcieLinkWidth),
        ),
    )


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
