"""libllama and ggml of the pinned source as it is, without patches and overlay: what the engine is compared with.

Made by the same CMake project with the same flags, so that any difference in results is ours. Kept beside the engine
builds, under the digest of the pin, the toolchain and the project, whose place CMake's build tree remembers.
"""

from __future__ import annotations

from pathlib import Path

from ostinatod import locations
from ostinatod.installer.build_cache import BuildCache
from ostinatod.installer.build_digest import digest_of
from ostinatod.installer.build_progress import Report
from ostinatod.installer.cmake_build import compile_targets, configure
from ostinatod.installer.engine_build import kernels_patch_dir
from ostinatod.installer.job_count import default_jobs
from ostinatod.installer.source_fetch import unpack_pinned
from ostinatod.installer.toolchain import cpu_identity, find_toolchain
from ostinatod.installer.upstream import read_upstream


def build_stock(report: Report) -> Path:
    """The directory with the stock libraries for the CPU, compiled unless they are there. Raises EngineBuildError."""
    project = kernels_patch_dir()
    upstream = read_upstream(project / "UPSTREAM")
    toolchain = find_toolchain()
    cache = BuildCache(locations.engine_cache_dir())
    lists = (project / "CMakeLists.txt").read_text(encoding="utf-8")
    digest = digest_of(upstream.sha256, str(project), lists, *toolchain.identity, *cpu_identity())
    work = cache.root / f"stock-{digest[:12]}"
    build = work / "build"
    log = locations.log_dir() / "stock-build.log"
    with cache.locked(lambda: None):
        source = unpack_pinned(cache.root, upstream, None, log, report)
        if not (work / "complete").exists():
            definitions = [
                f"OSTINATO_LLAMA_CPP={source}",
                "OSTINATO_STOCK=ON",
                "CMAKE_BUILD_TYPE=Release",
                *toolchain.launcher_definitions("C", "CXX"),
            ]
            configure(project, build, toolchain, definitions, log)
            compile_targets(build, toolchain, ("llama",), default_jobs(), log, report)
            (work / "complete").touch()
    return build / "bin"
