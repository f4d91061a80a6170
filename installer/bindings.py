"""llama-cpp-python without a llama.cpp of its own: its Python code, bound to the engine's libraries at run time."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

from ostinatod import locations
from ostinatod.errors import EngineBuildError
from ostinatod.installer.build_progress import BuildProgress, Report
from ostinatod.installer.child_process import run_logged
from ostinatod.installer.engine_build import kernels_patch_dir
from ostinatod.installer.ninja_progress import first_errors
from ostinatod.installer.source_fetch import check_sdist, fetch_sdist
from ostinatod.installer.upstream import read_upstream

_LIBRARY = re.compile(r"(?:^|/)(?:lib)?(?:llama|ggml|mtmd)[^/]*\.(?:so|dylib|dll)")


def ensure_bindings(report: Report, *, sdist: Path | None = None, sources: Path | None = None) -> bool:
    """Installs the bindings of the pinned version into this environment; False when they are there already.

    sdist    the pinned source distribution as a file, for machines without a network
    sources  the folder with the pin; None is the installed one
    Raises EngineBuildError when pip fails.
    """
    upstream = read_upstream((sources or kernels_patch_dir()) / "UPSTREAM")
    if installed_version(upstream.package) == upstream.version and not bundled_libraries(upstream.package):
        return False
    log = locations.log_dir() / "bindings.log"
    archive = sdist or fetch_sdist(upstream, locations.engine_cache_dir() / "downloads", log, report)
    check_sdist(archive, upstream)
    report(BuildProgress("bindings", 0, 1, f"{upstream.package} {upstream.version}"))
    install = [sys.executable, "-m", "pip", "install"]
    without_compiling = ["-C", "cmake.define.LLAMA_BUILD=OFF", "-C", "cmake.define.LLAVA_BUILD=OFF"]
    # Once for the package, whatever is there now; once more for what it depends on, without touching what is there.
    for command in (
        [*install, "--force-reinstall", "--no-deps", "--no-cache-dir", str(archive), *without_compiling],
        [*install, f"{upstream.package}=={upstream.version}"],
    ):
        lines: list[str] = []
        if run_logged(command, log, lines.append) != 0:
            text = "\n".join(first_errors(lines))
            raise EngineBuildError(
                f"pip could not install {upstream.package}:\n{text}\nThe whole output is in {log}",
                hint="check the network and pip's index settings, then run `python3 installer`",
            )
    report(BuildProgress("bindings", 1, 1, f"{upstream.package} {upstream.version}"))
    return True


def installed_version(package: str) -> str | None:
    """Version of `package` in this environment, or None. Imports nothing of it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def bundled_libraries(package: str) -> list[str]:
    """llama.cpp libraries that the installed `package` carries itself; [] is what this module installs."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [str(file) for file in files if _LIBRARY.search(file.as_posix())]
