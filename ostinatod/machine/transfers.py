"""Transfers between host memory and each GPU, measured through the driver: no toolkit, engine or model is needed.

    python -m ostinatod.machine.transfers      # prints what it measured as JSON; needs the driver and numpy

`measure_transfers` runs that as a process of its own and waits a bounded time: a driver that hangs or crashes costs the
measurement, nothing else.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

PATIENCE_S = 60.0
BUFFER_BYTES = 128 << 20
REPEATS = 3
BUSY_ARRAY_BYTES = 64 << 20
"""Read by each thread that keeps host memory busy; larger than one core's share of a last-level cache."""
BUSY_S = 0.5

_PORTABLE_AND_MAPPED = 1 | 2
_UUID_BYTES = 16
_BLOCKS, _THREADS = 1024, 256
_READ_IN_PLACE = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry read_in_place(.param .u64 source, .param .u64 count, .param .u64 sink)
{
    .reg .pred %p<3>;
    .reg .b32 %r<13>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [source];
    ld.param.u64 %rd2, [count];
    ld.param.u64 %rd3, [sink];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    cvt.u64.u32 %rd4, %r4;
    mov.u32 %r5, %nctaid.x;
    mul.lo.u32 %r6, %r5, %r2;
    cvt.u64.u32 %rd5, %r6;
    mov.u32 %r7, 0;
read:
    setp.ge.u64 %p1, %rd4, %rd2;
    @%p1 bra done;
    shl.b64 %rd6, %rd4, 4;
    add.u64 %rd7, %rd1, %rd6;
    ld.global.v4.u32 {%r8, %r9, %r10, %r11}, [%rd7];
    xor.b32 %r12, %r8, %r9;
    xor.b32 %r12, %r12, %r10;
    xor.b32 %r12, %r12, %r11;
    xor.b32 %r7, %r7, %r12;
    add.u64 %rd4, %rd4, %rd5;
    bra read;
done:
    setp.ne.u32 %p2, %r7, 1;
    @%p2 bra end;
    st.global.u32 [%rd3], %r7;
end:
    ret;
}
\0"""
"""Each thread reads 16 bytes at a time. The buffer holds zeros, so nothing is ever stored; the compiler cannot know."""


@dataclass(frozen=True, slots=True)
class Transfers:
    """Of one GPU, 1e9 bytes per second; None where it was not measured."""

    upload_gbps: float | None = None
    """From page-locked memory."""
    download_gbps: float | None = None
    upload_pageable_gbps: float | None = None
    """From memory that is not page-locked: what copies from mapped files get."""
    in_place_gbps: float | None = None
    """A kernel that reads page-locked memory without a copy."""
    upload_busy_gbps: float | None = None
    """From page-locked memory, while processors read host memory too."""
    cpu_read_busy_gbps: float | None = None
    """What the processors read meanwhile."""


def measure_transfers(threads: int, *, patience_s: float = PATIENCE_S) -> tuple[dict[str, Transfers], str | None]:
    """By the GPU's UUID, and why it is not more: the reason of the first failure, None where there was none.

    threads  that read host memory while uploads are measured under contention
    """
    command = [sys.executable, "-m", __name__, str(threads)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience_s, check=False)
    except subprocess.TimeoutExpired:
        return {}, f"measuring transfers took more than {patience_s:g} s"
    except OSError as error:
        return {}, f"measuring transfers could not be started: {error}"
    try:
        told = json.loads(done.stdout)
        return {name: Transfers(**values) for name, values in told["gpus"].items()}, told["reason"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}, f"measuring transfers ended with status {done.returncode}"


class DriverError(Exception):
    """The driver refused, or there is none."""


class Driver:
    """The functions of CUDA's driver that are needed. Raises DriverError without a driver."""

    def __init__(self, library: Any | None = None) -> None:
        if library is None:
            try:
                library = ctypes.CDLL("libcuda.so.1")
            except OSError as error:
                raise DriverError(f"there is no CUDA driver: {error}") from error
        self._library = library
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function. Raises DriverError with its name and status unless that is 0."""
        status = int(getattr(self._library, name)(*arguments))
        if status != 0:
            raise DriverError(f"{name} ended with status {status}")

    def devices(self) -> int:
        """How many GPUs the driver shows."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def uuid(self, device: int) -> str:
        """As NVML writes it."""
        raw = (ctypes.c_char * _UUID_BYTES)()
        self.call("cuDeviceGetUuid", raw, device)
        return f"GPU-{uuid.UUID(bytes=bytes(raw))}"

    @contextmanager
    def current(self, device: int) -> Iterator[None]:
        """The GPU's context, current in this thread."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            self.call("cuCtxSetCurrent", context)
            yield
        finally:
            self.call("cuDevicePrimaryCtxRelease_v2", device)

    @contextmanager
    def device_memory(self, n_bytes: int) -> Iterator[ctypes.c_uint64]:
        """Memory of the current GPU."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(n_bytes))
        try:
            yield address
        finally:
            self.call("cuMemFree_v2", address)

    @contextmanager
    def pinned_memory(self, n_bytes: int) -> Iterator[ctypes.c_void_p]:
        """Page-locked host memory that the current GPU can address, zeroed."""
        address = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(n_bytes), _PORTABLE_AND_MAPPED)
        try:
            ctypes.memset(address, 0, n_bytes)
            yield address
        finally:
            self.call("cuMemFreeHost", address)

    def in_place_reader(self, source: ctypes.c_void_p, n_bytes: int, sink: ctypes.c_uint64) -> Callable[[], None]:
        """Launches a kernel on the current GPU that reads page-locked memory."""
        module, function, mapped = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(_READ_IN_PLACE))
        self.call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(b"read_in_place"))
        self.call("cuMemHostGetDevicePointer_v2", ctypes.byref(mapped), source, 0)
        values = (mapped, ctypes.c_uint64(n_bytes // 16), sink)
        block, thread = (_BLOCKS, 1, 1), (_THREADS, 1, 1)

        def launch() -> None:
            # The driver follows these addresses when it is called: the values must live until then.
            addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
            self.call("cuLaunchKernel", function, *block, *thread, 0, None, addresses, None)

        return launch


def measure_device(driver: Driver, device: int, threads: int) -> Transfers:
    """Everything about one GPU. Raises DriverError."""
    found: dict[str, float] = {}
    with ExitStack() as stack:
        stack.enter_context(driver.current(device))
        on_gpu = stack.enter_context(driver.device_memory(BUFFER_BYTES))
        pinned = stack.enter_context(driver.pinned_memory(BUFFER_BYTES))
        pageable = np.zeros(BUFFER_BYTES, np.uint8)
        size = ctypes.c_size_t(BUFFER_BYTES)

        def speed(work: Callable[[], None]) -> float:
            times = []
            for _ in range(REPEATS + 1):
                started = time.perf_counter()
                work()
                driver.call("cuCtxSynchronize")
                times.append(time.perf_counter() - started)
            # The first one also maps memory, wakes the link and loads code.
            return round(BUFFER_BYTES / min(times[1:]) / 1e9, 3)

        def upload() -> None:
            driver.call("cuMemcpyHtoD_v2", on_gpu, pinned, size)

        found["upload_gbps"] = speed(upload)
        found["download_gbps"] = speed(lambda: driver.call("cuMemcpyDtoH_v2", pinned, on_gpu, size))
        from_pageable = ctypes.c_void_p(pageable.ctypes.data)
        found["upload_pageable_gbps"] = speed(lambda: driver.call("cuMemcpyHtoD_v2", on_gpu, from_pageable, size))
        found["in_place_gbps"] = speed(driver.in_place_reader(pinned, BUFFER_BYTES, on_gpu))
        found["upload_busy_gbps"], found["cpu_read_busy_gbps"] = _busy(upload, threads)
    return Transfers(**found)


def measure_all(driver: Driver, threads: int) -> tuple[dict[str, Transfers], str | None]:
    """Every GPU that can be measured, by its UUID, and why the first other one could not. Raises DriverError."""
    found: dict[str, Transfers] = {}
    reasons = []
    for device in range(driver.devices()):
        try:
            found[driver.uuid(device)] = measure_device(driver, device, threads)
        except DriverError as error:  # noqa: PERF203 - a GPU whose memory is taken must not hide the others
            reasons.append(f"GPU {device}: {error}")
    return found, next(iter(reasons), None)


def _busy(upload: Callable[[], None], threads: int) -> tuple[float, float]:
    """Speeds of uploads and of reads by processors, both at once."""
    arrays = [np.ones(BUSY_ARRAY_BYTES, np.uint8) for _ in range(threads)]
    ends_at = time.perf_counter() + BUSY_S

    def read(array: np.ndarray[Any, Any]) -> int:
        rounds = 0
        while not rounds or time.perf_counter() < ends_at:
            np.max(array)
            rounds += 1
        return rounds

    with ThreadPoolExecutor(threads) as pool:
        started, uploads = time.perf_counter(), 0
        reading = [pool.submit(read, array) for array in arrays]
        while not uploads or time.perf_counter() < ends_at:
            upload()
            uploads += 1
        upload_s = time.perf_counter() - started
        rounds = sum(done.result() for done in reading)
        read_s = time.perf_counter() - started
    return round(uploads * BUFFER_BYTES / upload_s / 1e9, 3), round(rounds * BUSY_ARRAY_BYTES / read_s / 1e9, 3)


def main() -> int:
    """Measure all GPUs and print them."""
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    try:
        found, reason = measure_all(Driver(), threads)
    except DriverError as error:
        found, reason = {}, str(error)
    print(json.dumps({"gpus": {name: asdict(item) for name, item in found.items()}, "reason": reason}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
