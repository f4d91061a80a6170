"""Checks of the engine's build, of what compiles it, and of the bindings over its libraries."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from ostinatod.doctor.findings import Finding, ok, problem, warning
from ostinatod.engine.arguments import engine_environment
from ostinatod.errors import EngineBuildError, EngineNotBuilt
from ostinatod.installer.bindings import bundled_libraries, installed_version
from ostinatod.installer.build_cache import EngineBuild
from ostinatod.installer.toolchain import Toolchain
from ostinatod.installer.upstream import Upstream

BUILD = "Build it: ostinato engine build"

_START_TIMEOUT_S = 20.0


def check_engine(build: EngineBuild | None, *, up_to_date: bool, environment: dict[str, str]) -> Finding:
    """An engine is built from the sources of this version, and it starts."""
    if build is None:
        return problem("engine", "expected a compiled engine, found none", BUILD)
    if fault := _fault(build, environment):
        return problem("engine", f"the engine in {build.directory} does not start: {fault}", BUILD)
    if not up_to_date:
        return problem(
            "engine", f"the engine in {build.directory} was built from other sources than this version's", BUILD
        )
    return ok("engine", f"{build.backend}, llama.cpp {build.llama_cpp_commit[:9]}, in {build.directory}")


def check_compiler(find: Callable[[], Toolchain], build: EngineBuild | None) -> Finding:
    """A C++ compiler, CMake and Ninja are there; without them a built engine runs, but is not brought up to date."""
    try:
        tools = find()
    except EngineBuildError as error:
        say = problem if build is None else warning
        return say("compiler", error.message, error.hint or BUILD)
    return ok("compiler", f"{tools.identity[0]}; CMake {tools.cmake}; Ninja {tools.ninja}")


def check_bindings(upstream: Upstream) -> Finding:
    """The Python bindings are of the pinned version and bring no llama.cpp of their own."""
    found = installed_version(upstream.package)
    wanted = f"{upstream.package} {upstream.version}"
    if found != upstream.version:
        return warning("bindings", f"expected {wanted}, found {found or 'none'}", "In the checkout: python3 installer")
    if libraries := bundled_libraries(upstream.package):
        return warning(
            "bindings",
            f"expected {wanted} without libraries of its own, found {libraries[0]}",
            "In the checkout: python3 installer",
        )
    return ok("bindings", wanted)


def find_build(find: Callable[[], EngineBuild]) -> EngineBuild | None:
    """The build in use, or None."""
    try:
        return find()
    except EngineNotBuilt:
        return None


def _fault(build: EngineBuild, environment: dict[str, str]) -> str | None:
    """Why the engine cannot even tell its version: a library that is gone, another CPU, a broken file."""
    try:
        done = subprocess.run(
            [build.server, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_START_TIMEOUT_S,
            env=engine_environment(environment, Path(build.library_directory)),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    said = (done.stderr or done.stdout).strip().splitlines()
    return said[-1] if said else f"status {done.returncode}"
