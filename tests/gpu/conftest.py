"""What tests on a GPU share: an engine built for CUDA, and scripts that are run with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostinatod.errors import EngineNotBuilt
from ostinatod.installer.engine_build import EngineBuild, find_engine
from tests.e2e.conftest import compile_program, faults_library, pinned_source, programs, run_worker, stock_libraries

__all__ = ["compile_program", "faults_library", "pinned_source", "programs", "run_worker", "stock_libraries"]

ROOT = Path(__file__).parents[2]
PACK = ROOT / "tests" / "data" / "architectures.tar.xz"

RunGpuWorker = Callable[..., Any]


@pytest.fixture(scope="session")
def engine_build(cuda_libraries: Path) -> EngineBuild:
    """That engine, for fixtures that take the CPU's elsewhere."""
    return find_engine()


@pytest.fixture(scope="session")
def cuda_libraries() -> Path:
    """Skips where this machine has no engine for CUDA."""
    try:
        build = find_engine()
    except EngineNotBuilt:
        pytest.skip("no engine is built")
    if build.backend != "cuda":
        pytest.skip("the engine is built for the CPU")
    return build.library_directory


@pytest.fixture
def run_gpu_worker(cuda_libraries: Path, tmp_path: Path) -> RunGpuWorker:
    """Runs a script of tests/e2e/workers with arguments behind its libraries, and reads the JSON it wrote.

    "OUT" among the arguments stands for the file. What the script returns is not looked at: its observations are.
    """

    def run(script: str, *arguments: object) -> Any:
        out = tmp_path / "out.json"
        rest = [str(out) if argument == "OUT" else str(argument) for argument in arguments]
        command = [sys.executable, "-m", f"tests.e2e.workers.{script}", str(cuda_libraries), *rest]
        environment = {**os.environ, "CUDA_MODULE_LOADING": "EAGER"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
        assert out.exists(), done.stdout[-2000:] + done.stderr[-4000:]
        return json.loads(out.read_text(encoding="utf-8"))

    return run
