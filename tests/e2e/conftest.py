"""What tests of the compiled engine share: the stock libraries, and scripts that bind to one build each."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinatod import locations
from ostinatod.installer.cmake_build import compile_targets
from ostinatod.installer.engine_build import EngineBuild, kernels_patch_dir
from ostinatod.installer.job_count import default_jobs
from ostinatod.installer.source_fetch import unpack_pinned
from ostinatod.installer.stock_build import build_stock
from ostinatod.installer.toolchain import find_toolchain
from ostinatod.installer.upstream import read_upstream
from ostinatod.models import bundled_file
from tests.e2e.programs import run_program

MODEL = bundled_file()

RunWorker = Callable[..., Any]


@pytest.fixture(scope="session")
def stock_libraries(engine_build: EngineBuild) -> Path:
    """libllama and ggml of the pinned source without our patches; compiled once per machine, which takes minutes."""
    return build_stock(lambda progress: None)


@pytest.fixture(scope="session")
def programs(stock_libraries: Path) -> Path:
    """Where the programs of kernels_patch/tests lie; compiled in a minute at most."""
    targets = ("ostinato-tiny-models", "ostinato-test-operators", "ostinato-skip-test")
    log = locations.log_dir() / "test-programs-build.log"
    compile_targets(stock_libraries.parent, find_toolchain(), targets, default_jobs(), log, lambda progress: None)
    return stock_libraries


CompileProgram = Callable[..., Path]
RunSilentProgram = Callable[..., None]


@pytest.fixture(scope="session")
def pinned_source() -> Path:
    """The engine's source before our patches."""
    upstream = read_upstream(kernels_patch_dir() / "UPSTREAM")
    log = locations.log_dir() / "test-programs-build.log"
    return unpack_pinned(locations.engine_cache_dir(), upstream, None, log, lambda progress: None)


@pytest.fixture(scope="session")
def compile_program(pinned_source: Path, tmp_path_factory: pytest.TempPathFactory) -> CompileProgram:
    """Compiles a source of kernels_patch/tests against the engine's headers, with further flags for the compiler."""
    project = kernels_patch_dir()
    includes = (f"-I{project / 'overlay'}", f"-I{pinned_source / 'ggml' / 'include'}")

    def compile_one(name: str, *flags: str) -> Path:
        program = tmp_path_factory.mktemp("program") / name.replace(".cpp", "")
        compiler = (os.environ.get("CXX", "c++"), "-std=c++17", "-O1", "-Wall", *includes)
        subprocess.run(
            [*compiler, str(project / "tests" / name), "-o", str(program), *flags, "-ldl"], check=True, timeout=200
        )
        return program

    return compile_one


@pytest.fixture(scope="session")
def run_silent_program(compile_program: CompileProgram, engine_build: EngineBuild) -> RunSilentProgram:
    """Compiles a source of kernels_patch/tests with the engine's libraries and runs it: silent, as it is when nothing
    failed. Further flags for the compiler, and arguments for the program.
    """
    libraries = engine_build.library_directory
    paths = (f"-L{libraries}", f"-Wl,-rpath,{libraries}", f"-Wl,-rpath-link,{libraries}")
    names = ("-lllama", "-lggml", "-lggml-cpu", "-lggml-base", "-lpthread")

    def run(name: str, *flags: str, arguments: Sequence[str] = ()) -> None:
        program = compile_program(name, *flags, *paths, *names)
        assert run_program([str(program), *arguments], timeout_s=250) == ""

    return run


@pytest.fixture(scope="session")
def faults_library(compile_program: CompileProgram) -> Path:
    """What makes an engine fail that it is preloaded into."""
    return compile_program("faults.cpp", "-fPIC", "-shared")


@pytest.fixture(scope="session")
def run_worker(tmp_path_factory: pytest.TempPathFactory) -> RunWorker:
    """Runs a script of tests/e2e/workers on the bundled model, once, and loads the arrays it wrote."""

    @functools.cache
    def run(script: str, libraries: Path, *flags: str) -> Any:
        out = tmp_path_factory.mktemp(script) / f"out.{'npy' if script == 'logits' else 'npz'}"
        command = [sys.executable, "-m", f"tests.e2e.workers.{script}", str(libraries), str(MODEL), str(out), *flags]
        run_program(command, timeout_s=300)
        return np.load(out)

    return run
