"""Build ik_llama.cpp for the peers' comparison, without the kernels that no measured model needs.

    pip download --no-deps --no-binary ik-llama-cpp-python ik-llama-cpp-python==0.1.5
    python benchmarks/peers/ik_build.py pack ik_llama_cpp_python-0.1.5.tar.gz ik.tar.xz
    python benchmarks/peers/ik_build.py build ik.tar.xz DIRECTORY [--cpu-only] [--jobs 16] \\
        [--types iq4_nl,mxfp4] [--march sapphirerapids]

`pack` keeps of the sdist what the two libraries and the bindings are made of. It edits lists of sources alone: matrix
kernels of the weight types in TYPES, attention of head sizes 64 and 128 with a multiple of 8 query heads per key head.
No line of a kernel changes, and no flag that speed depends on. `build` writes DIRECTORY/ik_llama_cpp with libraries,
with --types for the weight types of one model and with --march for another machine's processor.
Kernels left out become functions that say their name and abort, so a model that needs one cannot be mistimed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

ROOT = "ik_llama_cpp_python-0.1.5"
SOURCE = f"{ROOT}/vendor/ik_llama.cpp"
TYPES = ("q8_0", "q4_k", "q6_k", "iq4_nl")
"""Weight types whose CUDA matrix products are compiled; the files of iq4_nl hold mxfp4 too."""

_KEPT = re.compile(
    rf"{re.escape(ROOT)}/(LICENSE|ik_llama_cpp/.*"
    r"|vendor/ik_llama\.cpp/(LICENSE|CMakeLists\.txt|(cmake|include|src|spm-headers|ggml/(cmake|include))/.*"
    r"|ggml/CMakeLists\.txt|ggml/src/([^/]*|(cmake|iqk|ggml-cuda|llamafile)/.*)))"
)
_LEFT_OUT = re.compile(
    r"/(fattn-(new-mma|tile-f16|tile-f32|vec-f16|wmma-f16)|solve_tri|delta-net|ssm-conv|conv2d|conv2d-dw|conv-transpose-1d"
    r"|acc|arange|cumsum|im2col|pool2d|tri|tsembd|upscale)\.cu$"
    r"|/iqk/(fa/.*|iqk_gemm_(1bit|iqk_quants|iquants|ktquants))\.cpp$"
    r"|/template-instances/(?!mmq-instance-({mmq})(_id)?\.cu|mmvq-instance-({mmvq}|mxfp4)\.cu"
    r"|fattn-vec-f32-instance-hs(64|128)-f16-f16\.cu|fattn-mma-f16-instance-ncols1_\d+-ncols2_8\.cu)".replace(
        "{mmq}", "|".join(TYPES)
    ).replace("{mmvq}", "|".join(name[:-1] + "K" if name.endswith("_k") else name for name in TYPES))
)
_INSTANCE = re.compile(r"mmv?q-instance-(\w+?)(?:_id)?\.cu")
_HEAD_SIZES_LEFT_OUT = re.compile(rb"^DECL_FATTN_MMA_F16_CASE\((?!64,|128,).*\n", re.MULTILINE)


def edited(name: str, text: bytes) -> bytes:
    """`text` of the file `name` of the sdist, as it is built."""
    if name == f"{SOURCE}/CMakeLists.txt":
        return re.sub(rb"add_subdirectory\((common|vendor/cpp-httplib)\)", b"", text)
    if name == f"{SOURCE}/ggml/src/CMakeLists.txt":
        # what is listed by name and was left out; lists made by patterns shrink by themselves
        text = re.sub(rb"iqk/(fa/iqk_fa_\w+|iqk_gemm_(1bit|iqk_quants|iquants|ktquants))\.cpp", b"", text)
        text = text.replace(b" -lineinfo", b"")
        # nvcc's front end does not read every intrinsic of the newest processors; kernels' host code needs none
        return text.replace(b"    list(APPEND CUDA_CXX_FLAGS ${ARCH_FLAGS})", b"")
    if "/fattn-mma-f16-instance-" in name:
        return _HEAD_SIZES_LEFT_OUT.sub(b"", text)
    return text


def kept(name: str) -> bool:
    """Whether a file of the sdist is needed."""
    if PurePosixPath(name).suffix in (".py", ".comp", ".metal", ".m") and "/vendor/" in name:
        return False
    return _KEPT.fullmatch(name) is not None and _LEFT_OUT.search(name) is None


def _members(sdist: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(sdist) as source:
        for member in source:
            if member.isfile() and kept(member.name):
                file = source.extractfile(member)
                if file is not None:
                    yield member.name, file.read()


def pack(sdist: Path, out: Path) -> None:
    """Write the part of `sdist` that is built to `out` (tar.xz)."""
    with tempfile.TemporaryDirectory() as directory, tarfile.open(out, "w:xz", preset=9) as archive:
        for name, text in _members(sdist):
            path = Path(directory, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(edited(name, text))
            archive.add(path, name)


def _run(command: list[str], cwd: Path) -> None:
    child = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if child.returncode != 0:
        raise SystemExit(f"{' '.join(command[:3])} failed with status {child.returncode}\n{child.stdout[-6000:]}")


def missing_functions(listing: str) -> list[str]:
    """Names of its own functions that `nm -D --undefined-only` lists and that no versioned library defines."""
    names = (line.split()[-1] for line in listing.splitlines() if line.strip())
    return sorted(name for name in names if name.startswith(("_Z", "iqk_", "ggml_")) and "@" not in name)


def stub_source(names: list[str]) -> str:
    """C source that defines each name as a function that says its name and aborts."""
    lines = ["#include <stdio.h>", "#include <stdlib.h>"]
    for i, name in enumerate(names):
        lines.append(f'void f{i}(void) __asm__("{name}");')
        lines.append(f'void f{i}(void) {{ fprintf(stderr, "left out of this build: {name}\\n"); abort(); }}')
    return "\n".join(lines) + "\n"


def cuda_folders() -> list[Path]:
    """Where parts of CUDA may lie: nvcc's own toolkit, the wheels of a Python installation, the driver's folders."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    toolkits = [Path(nvcc).resolve().parents[1], Path("/usr/local/cuda")]
    wheels = [folder for entry in sys.path for folder in sorted(Path(entry, "nvidia").glob("*")) if folder.is_dir()]
    driver = [Path("/usr/local/nvidia"), Path("/usr/lib/x86_64-linux-gnu"), Path("/usr")]
    return [*toolkits, *wheels, *driver]


def link_cuda(folders: list[Path], out: Path) -> list[str]:
    """Symbolic links in `out` to what an incomplete toolkit lacks, and the cmake definitions that make it look there.

    Raises SystemExit with the name of what is nowhere.
    """
    out.mkdir(parents=True, exist_ok=True)
    places = ("lib64", "lib", "targets/x86_64-linux/lib", "lib64/stubs", "targets/x86_64-linux/lib/stubs", ".")
    for name in ("libcublas.so", "libcublasLt.so", "libcuda.so"):
        found = [path for folder in folders for place in places for path in sorted((folder / place).glob(f"{name}*"))]
        if not found:
            raise SystemExit(f"expected {name} below one of {', '.join(map(str, folders))}, found none")
        # by the name that is linked with, and by the one that is loaded
        for link in {out / name, out / found[0].name}:
            link.unlink(missing_ok=True)
            link.symlink_to(found[0])
    headers = [folder / "include" for folder in folders if (folder / "include" / "cublas_v2.h").exists()]
    if not headers:
        raise SystemExit(f"expected include/cublas_v2.h below one of {', '.join(map(str, folders))}, found none")
    # behind the toolkit's own headers, which come from the same release; nvcc itself does not know the option
    return [
        f"CMAKE_LIBRARY_PATH={out}",
        f"CMAKE_BUILD_RPATH={out}",
        f"CMAKE_CUDA_FLAGS=-Xcompiler=-idirafter,{headers[0]}",
    ]


def keep_types(instances: Path, types: Sequence[str]) -> int:
    """Remove the matrix kernels below `instances` of all weight types but `types`; how many files.

    Raises SystemExit for a type that has none.
    """
    files = {file: match[1].lower() for file in instances.glob("*.cu") if (match := _INSTANCE.fullmatch(file.name))}
    if missing := sorted(set(types) - set(files.values())):
        raise SystemExit(
            f"expected kernels of {', '.join(missing)} in {instances}, found {sorted(set(files.values()))}"
        )
    others = [file for file, name in files.items() if name not in types]
    for file in others:
        file.unlink()
    return len(others)


def processor(march: str) -> dict[str, str]:
    """The cmake definitions for a processor by gcc's name; "native" is the one that compiles, as ik's users have it."""
    if march == "native":
        return {"GGML_NATIVE": "ON"}
    flag = f"-march={march}"
    return {"GGML_NATIVE": "OFF", "CMAKE_C_FLAGS": flag, "CMAKE_CXX_FLAGS": flag}


def build(
    archive: Path, directory: Path, cpu_only: bool, jobs: int, defines: list[str], types: Sequence[str], march: str
) -> None:
    """Compile into DIRECTORY/ik_llama_cpp; needs cmake, ninja, gcc and, unless `cpu_only`, nvcc."""
    directory.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as source:
        source.extractall(directory, filter="data")
    keep_types(directory / SOURCE / "ggml/src/ggml-cuda/template-instances", types)
    tree = directory / "build"
    tree.mkdir(exist_ok=True)
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        **processor(march),
        "GGML_CUDA": "OFF" if cpu_only else "ON",
        "GGML_IQK_FA_ALL_QUANTS": "OFF",
        "GGML_NCCL": "OFF",
        "GGML_CCACHE": "OFF",
        "GGML_ALL_WARNINGS": "OFF",
        "BUILD_SHARED_LIBS": "ON",
        **{f"LLAMA_BUILD_{part}": "OFF" for part in ("TESTS", "EXAMPLES", "SERVER")},
    }
    configure = ["cmake", str(directory / SOURCE), "-G", "Ninja", *(f"-D{k}={v}" for k, v in options.items())]
    if not cpu_only:
        defines = ["CMAKE_CUDA_ARCHITECTURES=90-real", *link_cuda(cuda_folders(), tree / "cuda"), *defines]
    _run([*configure, *(f"-D{define}" for define in defines)], tree)
    _run(["ninja", f"-j{jobs}", "ggml", "llama"], tree)
    package = directory / "ik_llama_cpp"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(directory / ROOT / "ik_llama_cpp", package)
    libraries = package / "lib"
    libraries.mkdir()
    names: set[str] = set()
    for built in (tree / "ggml/src/libggml.so", tree / "src/libllama.so"):
        shutil.copy2(built, libraries)
    for library, others in (("libggml.so", ()), ("libllama.so", ("libggml.so",))):
        listing = subprocess.check_output(["nm", "-D", "--undefined-only", str(libraries / library)], text=True)
        defined = {
            line.split()[-1]
            for other in others
            for line in subprocess.check_output(
                ["nm", "-D", "--defined-only", str(libraries / other)], text=True
            ).splitlines()
        }
        names.update(name for name in missing_functions(listing) if name not in defined)
    source_file = tree / "left_out.c"
    source_file.write_text(stub_source(sorted(names)), encoding="utf-8")
    _run(["gcc", "-shared", "-fPIC", "-o", str(libraries / "libleft-out.so"), str(source_file)], tree)
    print(f"{package}: {len(names)} kernels left out", flush=True)


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack")
    packing.add_argument("sdist", type=Path)
    packing.add_argument("out", type=Path)
    building = commands.add_parser("build")
    building.add_argument("archive", type=Path)
    building.add_argument("directory", type=Path)
    building.add_argument("--cpu-only", action="store_true")
    building.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    building.add_argument("--march", default="native", help="gcc's name of the processor that will run it")
    building.add_argument(
        "--types",
        type=lambda text: text.split(","),
        default=(*TYPES, "mxfp4"),
        help="weight types of the measured model",
    )
    building.add_argument("--define", action="append", default=[], help="NAME=VALUE for cmake, as often as needed")
    arguments = parser.parse_args()
    if arguments.command == "pack":
        pack(arguments.sdist, arguments.out)
    else:
        build(
            arguments.archive.resolve(),
            arguments.directory.resolve(),
            arguments.cpu_only,
            arguments.jobs,
            arguments.define,
            arguments.types,
            arguments.march,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
