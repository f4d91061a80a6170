"""The tools that compile the engine, and a fingerprint of the machine it is compiled for."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from ostinatod.errors import EngineBuildError
from ostinatod.installer.child_process import answer_of
from ostinatod.installer.packages import COMPILER, advice

MINIMUM_CMAKE = (3, 18)
"""The first CMake with CMAKE_CUDA_ARCHITECTURES."""

_DECISIVE = ("CXX", "CC", "CXXFLAGS", "CFLAGS", "CUDAFLAGS", "LDFLAGS")
"""Environment variables that CMake reads and that change what is compiled."""

_ISA = re.compile(
    r"(sse|ssse|avx|amx|fma|f16c|bmi|popcnt|vnni|gfni|asimd|sve|sme(?!p)|i8mm|bf16|fphp|neon|rdm|dotprod|crc32)\w*"
)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Where the tools are, and what decides the code they generate."""

    cmake: Path
    ninja: Path
    launcher: Path | None
    """ccache or sccache, when present."""
    identity: tuple[str, ...]
    """Compiler versions and the flags in the environment."""

    def launcher_definitions(self, *languages: str) -> list[str]:
        """CMake definitions that compile `languages` ("C", "CXX", "CUDA") through the launcher, if there is one."""
        if self.launcher is None:
            return []
        return [f"CMAKE_{language}_COMPILER_LAUNCHER={self.launcher}" for language in languages]


def find_toolchain() -> Toolchain:
    """The tools of this environment, else of PATH. Raises EngineBuildError naming the one that is missing."""
    compilers = [os.environ.get("CXX"), "c++", "g++", "clang++"]
    compiler = next((path for name in compilers if name and (path := shutil.which(name.split()[0]))), None)
    if compiler is None:
        raise EngineBuildError(
            "no C++ compiler found: expected c++, g++ or clang++ on PATH",
            hint=f"install one, then run `ostinato engine build`:\n{advice([COMPILER])}",
        )
    version = (answer_of([compiler, "--version"]) or "unknown").partition("\n")[0]
    flags = [f"{name}={os.environ[name]}" for name in _DECISIVE if name in os.environ]
    return Toolchain(_find_cmake(), _find_ninja(), _find_launcher(), (version, *flags))


def cpu_identity(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """Model name and instruction-set flags of this CPU: native code compiled for one runs on no lesser one."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    name = fields.get("model name") or fields.get("CPU part") or _mac_cpu_name() or platform.processor()
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return (platform.system(), platform.machine(), name, *sorted({flag for flag in flags if _ISA.fullmatch(flag)}))


def _mac_cpu_name() -> str:
    if platform.system() != "Darwin":
        return ""
    return (answer_of(["sysctl", "-n", "machdep.cpu.brand_string"]) or "").strip()


def _candidates(name: str) -> list[str]:
    here = shutil.which(name, path=sysconfig.get_path("scripts"))
    return [path for path in (shutil.which(name), here) if path]


def _find_cmake() -> Path:
    found = []
    for candidate in _candidates("cmake"):
        version = re.search(r"version (\d+)\.(\d+)", answer_of([candidate, "--version"]) or "")
        if version and (int(version[1]), int(version[2])) >= MINIMUM_CMAKE:
            return Path(candidate)
        found.append(f"{candidate} ({version[0] if version else 'does not run'})")
    wanted = ".".join(map(str, MINIMUM_CMAKE))
    raise EngineBuildError(
        f"expected CMake {wanted} or newer on PATH, found {', '.join(found) or 'none'}",
        hint="install it with `pip install cmake ninja`, then run `ostinato engine build`",
    )


def _find_ninja() -> Path:
    for candidate in [*_candidates("ninja"), *_candidates("ninja-build")]:
        if answer_of([candidate, "--version"]):
            return Path(candidate)
    raise EngineBuildError(
        "expected ninja on PATH, found none",
        hint="install it with `pip install cmake ninja`, then run `ostinato engine build`",
    )


def _find_launcher() -> Path | None:
    return next((Path(path) for name in ("ccache", "sccache") if (path := shutil.which(name))), None)
