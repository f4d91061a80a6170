"""What tests of the compiled engine share: the stock libraries, and scripts that bind to one build each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinatod.installer.engine_build import EngineBuild
from ostinatod.installer.stock_build import build_stock
from ostinatod.models import bundled_file

WORKERS = Path(__file__).parent / "workers"
MODEL = bundled_file()

RunWorker = Callable[..., Any]


@pytest.fixture(scope="session")
def stock_libraries(engine_build: EngineBuild) -> Path:
    """libllama and ggml of the pinned source without our patches; compiled once per machine, which takes minutes."""
    return build_stock(lambda progress: None)


@pytest.fixture
def run_worker(tmp_path: Path) -> RunWorker:
    """Runs a script of tests/e2e/workers on the bundled model and loads the arrays it wrote."""

    def run(script: str, libraries: Path, *flags: str) -> Any:
        out = tmp_path / f"{libraries.parent.name}-{'-'.join(flags)}{'.npy' if script == 'logits' else '.npz'}"
        command = [sys.executable, str(WORKERS / f"{script}.py"), str(libraries), str(MODEL), str(out), *flags]
        environment = {key: value for key, value in os.environ.items() if key != "LLAMA_CPP_LIB_PATH"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return np.load(out)

    return run
