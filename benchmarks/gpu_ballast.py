"""Takes GPU memory, as another program would, until its input ends: `python benchmarks/gpu_ballast.py FREE [FREE …]`.

FREE is the number of bytes to leave free on each GPU, in the driver's order. Prints what is free then, as JSON. For
trying on a large GPU what the daemon does on a small one.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack

from ostinatod.machine.gpus import list_gpus
from ostinatod.machine.transfers import Driver, DriverError

GRAIN_BYTES = 2 << 20
"""What the driver hands out at least."""
LARGEST_BYTES = 16 << 30


def fill(driver: Driver, stack: ExitStack, device: int, leave_bytes: int) -> None:
    """Take the memory of a GPU but for `leave_bytes`, as nearly as the driver's grain allows. Raises DriverError."""
    stack.enter_context(driver.current(device))
    most_bytes = LARGEST_BYTES
    while True:
        excess_bytes = list_gpus()[device].free_bytes - leave_bytes
        size = min(excess_bytes, most_bytes) // GRAIN_BYTES * GRAIN_BYTES
        if size < GRAIN_BYTES:
            return
        try:
            stack.enter_context(driver.device_memory(size))
        except DriverError:
            if size == GRAIN_BYTES:
                raise
            most_bytes = max(GRAIN_BYTES, size // 2)


def main() -> int:
    """Fill, tell, wait."""
    driver = Driver()
    with ExitStack() as stack:
        for device, leave in enumerate(sys.argv[1:]):
            fill(driver, stack, device, int(leave))
        print(json.dumps([gpu.free_bytes for gpu in list_gpus()]), flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
