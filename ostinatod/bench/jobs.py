"""Runs jobs of `child` and hands on what they tell. A job that fails, hangs or crashes ends with an EngineError."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ostinatod.bench.settings import Setting, as_json
from ostinatod.errors import EngineError, EngineLoadError

OnEvent = Callable[[Mapping[str, Any]], None]

_TROUBLE = re.compile("error|failed|out of memory|unable to", re.IGNORECASE)
_FATAL = re.compile("GGML_ASSERT|GGML_ABORT|CUDA error|terminate called")

OUT_OF_TIME = "it was ended, since the time was over"

STALL_S = 600.0
"""A job that tells nothing for so long hangs: loading a model of hundreds of gigabytes takes minutes."""


def run_job(
    job: Mapping[str, Any],
    setting: Setting,
    on_event: OnEvent,
    *,
    stall_s: float = STALL_S,
    limit_s: float = float("inf"),
) -> None:
    """Run one job in a process of its own under the environment of a setting.

    Raises EngineLoadError where the model could not be loaded, EngineError with the last words of a job that ends in
    another failure, tells nothing for `stall_s` seconds, or takes more than `limit_s`.
    """
    failed: list[Mapping[str, Any]] = []

    def sorted_out(event: Mapping[str, Any]) -> None:
        if event["event"] == "failed":
            failed.append(event)
        else:
            on_event(event)

    with tempfile.TemporaryDirectory(prefix="ostinato-bench-") as directory:
        file, errors = Path(directory, "job.json"), Path(directory, "errors.txt")
        file.write_text(json.dumps({**job, "setting": as_json(setting)}), encoding="utf-8")
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "ostinatod.bench.child", str(file)],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=setting.process_environment(),
            )
            try:
                _listen(process, sorted_out, stall_s, limit_s)
            finally:
                process.kill()
                process.wait()
                assert process.stdout is not None
                process.stdout.close()
        said = errors.read_text(encoding="utf-8", errors="replace")
    for event in failed:
        kind = EngineLoadError if event["kind"] == EngineLoadError.kind else EngineError
        raise kind(f"{setting.name}: {event['reason']}{_engine_reason(event['log'])}")
    if process.returncode != 0:
        raise EngineError(
            f"{setting.name}: {_last_words(said) or f'the process ended with status {process.returncode}'}"
        )


def _listen(process: subprocess.Popen[bytes], on_event: OnEvent, stall_s: float, limit_s: float) -> None:
    """Hands on events until the process has ended by itself."""
    end = time.monotonic() + limit_s

    def patience() -> float:
        return max(0.0, min(stall_s, end - time.monotonic()))

    lines: queue.Queue[bytes] = queue.Queue()

    def pump() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(b"")

    reader = threading.Thread(target=pump, daemon=True)
    reader.start()
    try:
        while line := lines.get(timeout=patience()):
            if line.startswith(b"{"):
                on_event(json.loads(line))
        process.wait(timeout=patience())
    except (queue.Empty, subprocess.TimeoutExpired):
        if time.monotonic() >= end:
            raise EngineError(OUT_OF_TIME) from None
        raise EngineError(f"the engine has told nothing for {stall_s:g} s and was ended") from None
    finally:
        process.kill()
        reader.join()


def _engine_reason(log: str) -> str:
    """The engine's own words on why it failed, in parentheses; empty where it said nothing."""
    told = [line.strip() for line in log.splitlines() if _TROUBLE.search(line)]
    return f" ({told[0]})" if told else ""


def _last_words(text: str) -> str:
    """Why a process ended, from its stderr: the assertion that failed, for a debugger may have written after it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    fatal = [line for line in lines if _FATAL.search(line)]
    return (fatal or lines[-1:] or [""])[0]
