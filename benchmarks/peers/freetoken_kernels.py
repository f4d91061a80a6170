"""Compile FreeToken's kernels once, before anything is timed, into a folder for FREETOKEN_KERNEL_CACHE_DIR.

    TVM_FFI_CUDA_ARCH_LIST=9.0 python -m benchmarks.peers.freetoken_kernels DIRECTORY [--types mxfp4,q8_0] \\
        [--widths 1024,8192]

The wheel has their sources and compiles them at first use; this does it with FreeToken's own packager. With --types,
matrix and vector kernels of other weight types say their name and abort, in the installed copy: compiling all of them
takes minutes, and a model that needs one cannot be mistimed. With --widths (bytes of one token's keys in a layer, and
of an embedding) the modules for other models' widths are left out; one that is needed after all is compiled at first
use. Needs nvcc and ninja, no GPU: what is compiled uses neither torch's nor Python's interface.
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

_VECTOR = "csrc/ggml/ggml-cuda/mmvq.cu"
_VECTOR_CASE = re.compile(
    r"^( +case (GGML_TYPE_(\w+)):)\n +mul_mat_vec_q_switch_ncols_dst<\2>(?:(?!break;)[\s\S])*break;$", re.MULTILINE
)

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


def vectors_left_out(source: str, types: Sequence[str]) -> str:
    """The source of the products with single vectors, where all types but `types` abort."""

    def case(match: re.Match[str]) -> str:
        if match[3].lower() in types:
            return match[0]
        return f'{match[1]} GGML_ABORT("left out of this build: {match[2]}");'

    return _VECTOR_CASE.sub(case, source)


def keep_types(kernels: Path, types: Sequence[str]) -> int:
    """Leave out all products below FreeToken's folder of kernels but those of `types`; how many matrix kernels.

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
    vectors = kernels / _VECTOR
    vectors.write_text(vectors_left_out(vectors.read_text(encoding="utf-8"), types), encoding="utf-8")
    return len(others)


def needed(names: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Of FreeToken's modules those that a model with these widths (bytes) uses; the longest to compile comes first."""
    wanted = []
    for name in names:
        kind, *arguments = name.removeprefix("freetoken__").split("_")
        if kind in ("store", "index") and int(arguments[0]) not in widths:
            continue
        # one bank at a time: for experts whose rows cannot be copied together
        if name.startswith("freetoken__fast_index_copy_") and arguments[2].isdecimal():
            continue
        wanted.append(name)
    return sorted(wanted, key=lambda name: not name.endswith("__ggml"))


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out")
    parser.add_argument("--types", type=lambda text: text.split(","), help="weight types of the measured model")
    parser.add_argument("--widths", type=lambda text: [int(part) for part in text.split(",")], help="bytes")
    arguments = parser.parse_args()
    if arguments.types:
        found = importlib.util.find_spec("freetoken")
        if found is None or found.origin is None:
            raise SystemExit("freetoken is not installed")
        count = keep_types(Path(found.origin).parent / "kernel", arguments.types)
        print(f"left out: matrix kernels of {count} types", flush=True)
    aot: Any = importlib.import_module("freetoken.kernel.aot")
    specs = None
    if arguments.widths:
        specs = needed([spec.name for spec in aot.default_kernel_specs()], arguments.widths)
    with tempfile.TemporaryDirectory() as build:
        for path in aot.compile_and_package_kernels(
            out_dir=arguments.out, build_dir=build, specs=specs, verbose=True, clean=False
        ):
            print(path, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
