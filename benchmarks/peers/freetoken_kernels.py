"""Compile FreeToken's kernels once, before anything is timed, into a folder for FREETOKEN_KERNEL_CACHE_DIR.

    TVM_FFI_CUDA_ARCH_LIST=9.0 python -m benchmarks.peers.freetoken_kernels DIRECTORY [--types mxfp4,q8_0]

The wheel has their sources and compiles them at first use; this does it with FreeToken's own packager. With --types,
matrix kernels of other weight types become functions that say their name and abort, in the installed copy: compiling
all of them takes minutes, and a model that needs one cannot be mistimed. Needs nvcc and ninja, no GPU.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_INSTANCES = "csrc/ggml/ggml-cuda/template-instances"
_INSTANCE = re.compile(r"^DECL_MMQ_CASE(_W4A4)?\((GGML_TYPE_\w+)\);$", re.MULTILINE)

_HEAD = """#include "ggml.h"
#include <cstdio>
#include <cstdlib>
struct ggml_backend_cuda_context;
struct mmq_args;
template <ggml_type type, ggml_prec precision>
void mul_mat_q_case(ggml_backend_cuda_context &, const mmq_args &, cudaStream_t);
"""


def left_out(source: str) -> str:
    """The source of one instance file with functions that abort in place of its kernels."""
    parts = [_HEAD]
    for w4a4, name in _INSTANCE.findall(source):
        precision = "GGML_PREC_Q4" if w4a4 else "GGML_PREC_Q8"
        parts.append(
            f"template <> void mul_mat_q_case<{name}, {precision}>"
            "(ggml_backend_cuda_context &, const mmq_args &, cudaStream_t) {\n"
            f'    std::fputs("left out of this build: {name}\\n", stderr);\n    std::abort();\n}}\n'
        )
    return "".join(parts)


def keep_types(kernels: Path, types: Sequence[str]) -> int:
    """Leave out all matrix kernels below FreeToken's folder of kernels but those of `types`; how many.

    Raises SystemExit for a type that has none.
    """
    files = {file.stem.removeprefix("mmq-instance-"): file for file in (kernels / _INSTANCES).glob("mmq-instance-*.cu")}
    if missing := sorted(set(types) - set(files)):
        raise SystemExit(f"expected kernels of {', '.join(missing)} in {kernels / _INSTANCES}, found {sorted(files)}")
    others = [file for name, file in files.items() if name not in types]
    for file in others:
        source = file.read_text(encoding="utf-8")
        if _INSTANCE.search(source):
            file.write_text(left_out(source), encoding="utf-8")
    return len(others)


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out")
    parser.add_argument("--types", type=lambda text: text.split(","), help="weight types of the measured model")
    arguments = parser.parse_args()
    if arguments.types:
        found = importlib.util.find_spec("freetoken")
        if found is None or found.origin is None:
            raise SystemExit("freetoken is not installed")
        count = keep_types(Path(found.origin).parent / "kernel", arguments.types)
        print(f"left out: matrix kernels of {count} types", flush=True)
    aot: Any = importlib.import_module("freetoken.kernel.aot")
    with tempfile.TemporaryDirectory() as build:
        for path in aot.compile_and_package_kernels(out_dir=arguments.out, build_dir=build, verbose=True, clean=False):
            print(path, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
