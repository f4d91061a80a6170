"""Which backend the engine is compiled for, and why. Decides only; `cuda_probe` looks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ostinatod.errors import EngineBuildError
from ostinatod.installer.cuda_probe import CudaCompiler

Backend = Literal["cpu", "cuda"]
BackendRequest = Literal["auto", "cpu", "cuda"]

_ARCHITECTURE = re.compile(r"(\d{2,3})[af]?(?:-real|-virtual)?")


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """A backend with what it is compiled for."""

    backend: Backend
    architectures: tuple[str, ...]
    """Values for CMAKE_CUDA_ARCHITECTURES; () for the CPU."""
    reason: str
    """One clause for people."""


def choose_backend(
    request: BackendRequest,
    compiler: CudaCompiler | None,
    gpus: tuple[str, ...],
    cuda_arch: str | None = None,
) -> BackendChoice:
    """The backend for `request`, given the CUDA compiler and the compute capabilities of the GPUs present.

    cuda_arch  architectures to compile for instead of those present, such as "89" or "86;89"
    Raises EngineBuildError when CUDA is asked for and cannot be compiled.
    """
    wanted = _parse_architectures(cuda_arch) if cuda_arch else gpus
    if request == "cpu":
        return BackendChoice("cpu", (), "asked for")
    obstacle = _obstacle(compiler, wanted)
    if obstacle is None and compiler is not None:
        names = ", ".join(f"{arch[:-1]}.{arch[-1]}" if arch.isdigit() else arch for arch in wanted)
        return BackendChoice("cuda", wanted, f"CUDA {compiler.version} for compute capability {names}")
    problem, remedy = obstacle or ("", "")
    if request == "cuda":
        raise EngineBuildError(f"the CUDA backend cannot be compiled: {problem}", hint=remedy)
    return BackendChoice("cpu", (), f"{problem} ({remedy})" if gpus else problem)


def _obstacle(compiler: CudaCompiler | None, wanted: tuple[str, ...]) -> tuple[str, str] | None:
    """(what prevents a CUDA build, what would help), or None."""
    if not wanted:
        return (
            "no NVIDIA GPU found",
            "to compile for another machine, name its GPU, such as `python3 installer --cuda-arch 89`",
        )
    if compiler is None:
        return "no CUDA compiler (nvcc) found", "install NVIDIA's CUDA toolkit and put nvcc on PATH"
    unsupported = [arch for arch in wanted if compiler.architectures and _digits(arch) not in compiler.architectures]
    if unsupported:
        known, missing = ", ".join(compiler.architectures), ", ".join(unsupported)
        return (
            f"CUDA {compiler.version} compiles for {known}, not for {missing}",
            "install a CUDA toolkit that knows this GPU",
        )
    return None


def _parse_architectures(text: str) -> tuple[str, ...]:
    names = tuple(part for part in re.split(r"[;,\s]+", text.replace(".", "")) if part)
    if not names or not all(_ARCHITECTURE.fullmatch(name) for name in names):
        raise EngineBuildError(f"expected compute capabilities such as 89 or 86;89, found {text!r}")
    return names


def _digits(architecture: str) -> str:
    match = _ARCHITECTURE.fullmatch(architecture)
    return match[1] if match else architecture
