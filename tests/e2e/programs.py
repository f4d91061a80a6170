"""Runs a script of benchmarks/ or tests/e2e/workers, or a compiled program, in a process of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_program(command: Sequence[str], *, timeout_s: float, said: str | None = None, **environment: str) -> str:
    """What it printed; `said` is its standard input. Fails with the program's last words where it does.

    Programs load the libraries that they are given, not those that an environment names.
    """
    own = {key: value for key, value in os.environ.items() if key != "LLAMA_CPP_LIB_PATH"}
    done = subprocess.run(
        command,
        input=said,
        capture_output=True,
        text=True,
        env={**own, **environment},
        cwd=ROOT,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout
