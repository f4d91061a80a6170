"""Measuring transfers, around a driver whose GPU memory is host memory."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import pytest

from ostinatod.machine import transfers
from ostinatod.machine.transfers import Driver, DriverError, Transfers, measure_all, measure_transfers

OUT_OF_MEMORY = 2


class Library:
    """CUDA's driver as far as it is used. `short` lists devices without memory."""

    def __init__(self, devices: int = 1, short: tuple[int, ...] = ()) -> None:
        self.devices, self.short = devices, short
        self.held: list[str] = []
        self.launched = 0
        self._device = 0
        self._memory: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        def other(*_: Any) -> int:
            if name not in ("cuInit", "cuCtxSetCurrent", "cuCtxSynchronize", "cuModuleLoadData", "cuModuleGetFunction"):
                raise AttributeError(name)
            return 0

        return other

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.devices
        return 0

    def cuDeviceGetUuid(self, raw: Any, device: int) -> int:
        raw.raw = bytes([device]) * 16
        return 0

    def cuDevicePrimaryCtxRetain(self, _: Any, device: int) -> int:
        self.held.append("context")
        self._device = device
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, _: int) -> int:
        self.held.remove("context")
        return 0

    def _allocate(self, what: str, address: Any, size: Any) -> int:
        if self._device in self.short:
            return OUT_OF_MEMORY
        self._memory.append(ctypes.create_string_buffer(size.value))
        address._obj.value = ctypes.addressof(self._memory[-1])
        self.held.append(what)
        return 0

    def cuMemAlloc_v2(self, address: Any, size: Any) -> int:
        return self._allocate("device", address, size)

    def cuMemHostAlloc(self, address: Any, size: Any, _: int) -> int:
        return self._allocate("host", address, size)

    def cuMemFree_v2(self, _: Any) -> int:
        self.held.remove("device")
        return 0

    def cuMemFreeHost(self, _: Any) -> int:
        self.held.remove("host")
        return 0

    def cuMemcpyHtoD_v2(self, to: Any, source: Any, size: Any) -> int:
        ctypes.memmove(to.value, source.value, size.value)
        return 0

    cuMemcpyDtoH_v2 = cuMemcpyHtoD_v2

    def cuMemHostGetDevicePointer_v2(self, mapped: Any, host: Any, _: int) -> int:
        mapped._obj.value = host.value
        return 0

    def cuLaunchKernel(self, *arguments: Any) -> int:
        values = arguments[9]
        source, count = (ctypes.cast(values[i], ctypes.POINTER(ctypes.c_uint64)).contents.value for i in (0, 1))
        assert (source, count * 16) == (ctypes.addressof(self._memory[-1]), transfers.BUFFER_BYTES)
        self.launched += 1
        return 0


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little is copied."""
    monkeypatch.setattr(transfers, "BUFFER_BYTES", 1 << 16)
    monkeypatch.setattr(transfers, "BUSY_ARRAY_BYTES", 1 << 16)
    monkeypatch.setattr(transfers, "BUSY_S", 0.02)


def test_everything_is_measured_and_given_back() -> None:
    library = Library(devices=2)
    found, reason = measure_all(Driver(library), 2)
    assert reason is None
    assert list(found) == [f"GPU-0{i}0{i}0{i}0{i}-0{i}0{i}-0{i}0{i}-0{i}0{i}-{f'0{i}' * 6}" for i in (0, 1)]
    assert all(getattr(item, name) > 0 for item in found.values() for name in Transfers.__dataclass_fields__)
    assert library.held == []


def test_a_gpu_without_memory_hides_no_other() -> None:
    library = Library(devices=2, short=(0,))
    found, reason = measure_all(Driver(library), 1)
    assert len(found) == 1
    assert reason == "GPU 0: cuMemAlloc_v2 ended with status 2"
    assert library.held == []


def test_a_driver_that_refuses_is_an_error() -> None:
    class Refusing:
        def cuInit(self, _: int) -> int:
            return 100

    with pytest.raises(DriverError, match="cuInit ended with status 100"):
        Driver(Refusing())


@pytest.mark.parametrize(
    ("code", "patience_s", "words"),
    [
        ("import time; time.sleep(60)", 0.5, "took more than 0.5 s"),
        ("import os; os.abort()", 30.0, "ended with status -6"),
        ("print('[]')", 30.0, "ended with status 0"),
    ],
)
def test_a_driver_that_hangs_or_crashes_costs_the_measurement_only(
    monkeypatch: pytest.MonkeyPatch, code: str, patience_s: float, words: str
) -> None:
    run = subprocess.run
    monkeypatch.setattr(
        transfers.subprocess, "run", lambda command, **options: run([sys.executable, "-c", code], **options)
    )
    found, reason = measure_transfers(1, patience_s=patience_s)
    assert found == {}
    assert words in (reason or "")


def test_the_process_tells_what_it_found_or_why_not() -> None:
    found, reason = measure_transfers(1)
    assert found or "no CUDA driver" in (reason or "")
