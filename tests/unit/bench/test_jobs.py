from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ostinatod.bench.jobs import run_job
from ostinatod.bench.settings import Setting
from ostinatod.errors import EngineError, EngineLoadError

SETTING = Setting("stock mmap", "stock")

SCRIPTED = """
import json, os, sys, time
job = json.load(open(sys.argv[-1]))
for event in job["events"]:
    print(json.dumps(event), flush=True)
sys.stderr.write(job["says"])
sys.stderr.flush()
time.sleep(job["hangs_s"])
if job["crashes"]:
    os.abort()
"""


def job(*events: Mapping[str, Any], says: str = "", hangs_s: float = 0, crashes: bool = False) -> dict[str, Any]:
    return {"events": events, "says": says, "hangs_s": hangs_s, "crashes": crashes}


def never(event: Mapping[str, Any]) -> None:
    """For jobs that tell nothing."""
    pytest.fail(f"unexpected: {event}")


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in place of Python: it plays the job it is given."""
    script = tmp_path / "scripted.py"
    script.write_text(SCRIPTED)
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


@pytest.mark.usefixtures("scripted")
def test_events_are_handed_on_in_order() -> None:
    told: list[Mapping[str, Any]] = []
    run_job(job({"event": "loaded"}, {"event": "turn", "turn": 0}), SETTING, told.append)
    assert told == [{"event": "loaded"}, {"event": "turn", "turn": 0}]


@pytest.mark.usefixtures("scripted")
def test_a_model_that_cannot_be_loaded_is_told_with_the_engines_words() -> None:
    failed = {
        "event": "failed",
        "kind": EngineLoadError.kind,
        "reason": "m.gguf cannot be loaded",
        "log": "fine\ncudaMalloc failed: out of memory\nmore",
    }
    with pytest.raises(EngineLoadError) as caught:
        run_job(job(failed), SETTING, never)
    assert caught.value.message == "stock mmap: m.gguf cannot be loaded (cudaMalloc failed: out of memory)"


@pytest.mark.usefixtures("scripted")
def test_a_crash_is_told_by_the_assertion_not_by_what_a_debugger_writes_after_it() -> None:
    says = "ggml.c:12: GGML_ASSERT(n > 0) failed\n#0 0x00 in __libc_start\n30 libc-start.c: No such file\n"
    with pytest.raises(EngineError, match=r"stock mmap: ggml\.c:12: GGML_ASSERT\(n > 0\) failed"):
        run_job(job(says=says, crashes=True), SETTING, never)


@pytest.mark.usefixtures("scripted")
def test_a_silent_crash_is_told_by_its_status() -> None:
    with pytest.raises(EngineError, match="ended with status -6"):
        run_job(job(crashes=True), SETTING, never)


@pytest.mark.usefixtures("scripted")
def test_a_job_that_hangs_is_ended() -> None:
    with pytest.raises(EngineError, match=r"has told nothing for 0\.5 s"):
        run_job(job(hangs_s=60), SETTING, never, stall_s=0.5)


def test_libraries_that_are_missing_are_told_by_the_job_itself(tmp_path: Path) -> None:
    wanted = {"do": "count", "libraries": str(tmp_path), "model": "none.gguf"}
    with pytest.raises(EngineError, match="cannot load the libraries"):
        run_job(wanted, SETTING, never)


def test_the_process_that_loads_a_model_imports_no_more_than_it_needs() -> None:
    program = "import json, sys\nimport ostinatod.bench.child\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(json.loads(done.stdout))
    assert "numpy" in loaded
    assert not {"fastapi", "httpx", "pydantic", "rich", "click", "psutil", "sqlite_utils", "platformdirs"} & loaded
    own = {name for name in loaded if name.startswith("ostinatod.")}
    bindings = {"bindings", "bindings_abi", "bindings_values"}
    assert {name.split(".")[1] for name in own} == {"bench", *bindings, "errors", "profiles"}


@pytest.mark.usefixtures("scripted")
def test_a_job_is_ended_when_its_time_is_over_however_much_it_tells() -> None:
    told: list[Mapping[str, Any]] = []
    with pytest.raises(EngineError, match="the time was over"):
        run_job(job({"event": "loaded"}, hangs_s=60), SETTING, told.append, limit_s=0.7)
    assert len(told) <= 1
