"""Checks of the GPUs, their driver and the CUDA toolkit, and of whether they fit each other and the engine."""

from __future__ import annotations

from collections.abc import Mapping

from ostinatod.doctor.findings import Finding, ok, problem, skipped, warning
from ostinatod.doctor.nvidia import Driver
from ostinatod.installer.cuda_probe import CudaCompiler

_REBUILD = "Build the engine for it: ostinato engine build --backend cuda"
_GIB = 1024**3


def check_gpu(driver: Driver | None, on_bus: int, backend: str | None, environment: Mapping[str, str]) -> Finding:
    """The GPUs of this machine are visible, and the engine is built for them."""
    gpus = driver.gpus if driver else ()
    hidden = environment.get("CUDA_VISIBLE_DEVICES")
    if not gpus:
        if backend == "cuda":
            return problem(
                "gpu",
                "the engine is built for CUDA, and no NVIDIA GPU is visible",
                "Mend the driver (nvidia-smi has to list the GPU), or: ostinato engine build --backend cpu",
            )
        if on_bus:
            return problem(
                "gpu",
                f"{on_bus} NVIDIA GPU(s) on the bus, and no driver that knows them",
                "Install NVIDIA's driver, check it with nvidia-smi, then: ostinato engine build",
            )
        return skipped("gpu", "no NVIDIA GPU; the engine computes on the CPU")
    if hidden is not None and hidden.strip() in ("", "-1"):
        return warning(
            "gpu",
            f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU from the engine",
            "Start the daemon without it: env -u CUDA_VISIBLE_DEVICES ostinato serve",
        )
    names = ", ".join(
        f"{gpu.name} ({gpu.free_bytes / _GIB:.1f} of {gpu.total_bytes / _GIB:.1f} GiB free)" for gpu in gpus
    )
    if backend == "cpu":
        return warning("gpu", f"{names}: visible but unused, because the engine is built for the CPU", _REBUILD)
    return ok("gpu", names)


def check_driver(driver: Driver | None) -> Finding:
    """The driver answers, and its parts are of one version."""
    if driver is None:
        return skipped("driver", "nvidia-smi is not installed")
    if driver.fault is None:
        return ok("driver", f"NVIDIA {driver.version or 'of an unknown version'}")
    if "version mismatch" in driver.fault.lower():
        return problem(
            "driver",
            f"the loaded kernel module and the driver's libraries differ: {driver.fault}",
            "Reboot, so that the new module is loaded",
        )
    return problem("driver", f"the driver does not answer: {driver.fault}", "Run nvidia-smi, and mend what it says")


def check_cuda(driver: Driver | None, compiler: CudaCompiler | None, capabilities: tuple[str, ...]) -> Finding:
    """nvcc is there where a GPU is, knows the GPU, and is no newer than what the driver runs."""
    if driver is None or not driver.gpus:
        return skipped("cuda", "no GPU to compile for")
    if compiler is None:
        return warning(
            "cuda",
            "a GPU is here, but no CUDA compiler (nvcc)",
            "Install NVIDIA's CUDA toolkit and put nvcc on PATH, then: ostinato engine build",
        )
    toolkit, runs = _version(compiler.version), _version(driver.cuda_version)
    if toolkit and runs and toolkit[0] > runs[0]:
        return problem(
            "cuda",
            f"expected a driver for CUDA {compiler.version} ({compiler.path}), "
            f"found {driver.version}, which runs CUDA up to {driver.cuda_version}",
            "Update NVIDIA's driver, or install an older toolkit and run: ostinato engine build",
        )
    unknown = [arch for arch in capabilities if compiler.architectures and arch not in compiler.architectures]
    if unknown:
        return problem(
            "cuda",
            f"CUDA {compiler.version} does not compile for compute capability {', '.join(unknown)}",
            "Install a CUDA toolkit that knows this GPU, then: ostinato engine build",
        )
    return ok("cuda", f"toolkit {compiler.version}, driver for CUDA up to {driver.cuda_version or 'unknown'}")


def _version(text: str | None) -> tuple[int, ...]:
    parts = (text or "").split(".")
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else ()
