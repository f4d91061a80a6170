"""The engine computes what it would with nothing beside each other, bit for bit, step after step.

Two thousand steps, and the same on a GPU with CUDA graphs: `python -m tests.e2e.workers.bitwise`, see its options.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ostinatod.installer.engine_build import EngineBuild
from tests.e2e.conftest import MODEL, RunSilentProgram
from tests.e2e.programs import ROOT
from tests.e2e.workers.bitwise import passes

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

STEPS = 100
BORROWING_STEPS = 1500
WORKER_STEPS = 200


def test_steps_equal_those_of_a_synchronous_reference_and_of_a_second_run(
    engine_build: EngineBuild, tmp_path: Path
) -> None:
    out = tmp_path / "bitwise.json"
    worker = (sys.executable, "-m", "tests.e2e.workers.bitwise", str(engine_build.library_directory), str(MODEL))
    done = subprocess.run(
        [*worker, str(out), "--steps", str(STEPS), "--swap-every", "30"],
        capture_output=True,
        text=True,
        env={key: value for key, value in os.environ.items() if key != "LLAMA_CPP_LIB_PATH"},
        cwd=ROOT,
        timeout=300,
        check=False,
    )
    assert out.exists(), done.stderr[-4000:]
    result = json.loads(out.read_text(encoding="utf-8"))
    assert result["differs_from_reference_at"] is None
    assert result["differs_from_itself_at"] is None
    assert result["distinct_outputs"] == len(passes(STEPS))
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("program", "steps"),
    [
        pytest.param("cold_workers.cpp", WORKER_STEPS, id="the-cold-workers-answer-as-one-thread-does"),
        pytest.param("borrowing.cpp", BORROWING_STEPS, id="borrowed-slots-hold-what-the-tables-name"),
    ],
)
def test_what_works_beside_passes_keeps_its_promises(
    run_silent_program: RunSilentProgram, program: str, steps: int
) -> None:
    run_silent_program(program, arguments=(str(steps),))
