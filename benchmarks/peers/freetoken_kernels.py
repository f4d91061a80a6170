"""Compile FreeToken's kernels once, before anything is timed, into a folder for FREETOKEN_KERNEL_CACHE_DIR.

    TVM_FFI_CUDA_ARCH_LIST=9.0 python -m benchmarks.peers.freetoken_kernels DIRECTORY

The wheel has their sources and compiles them at first use; this does it with FreeToken's own packager.
Needs nvcc and ninja, no GPU.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from typing import Any


def main() -> int:
    """Command line; returns the exit code."""
    (out,) = sys.argv[1:]
    aot: Any = importlib.import_module("freetoken.kernel.aot")
    with tempfile.TemporaryDirectory() as build:
        for path in aot.compile_and_package_kernels(out_dir=out, build_dir=build, verbose=True, clean=False):
            print(path, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
