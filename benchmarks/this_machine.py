"""What results say about where they come from, and how long making them takes."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

START_S = 5.0
"""Of a process, until it has its first GPU context and is warm."""
LOAD_BYTES_PER_S = 3e9
"""From the page cache, page-locking included, on the machine of the results."""


def machine() -> str:
    """Processor, cores and GPUs of this machine."""
    names = [platform.processor() or platform.machine(), f"{len(os.sched_getaffinity(0))} cores"]
    if tool := shutil.which("nvidia-smi"):
        told = subprocess.run([tool, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
        names += told.stdout.splitlines()
    return ", ".join(names)


def expected(loads: int, model: Sequence[Path], seconds: float | None, what: str) -> str:
    """How long so many loads of a model take, which is all that is known before anything was measured."""
    load_s = START_S + sum(part.stat().st_size for part in model) / LOAD_BYTES_PER_S
    words = f"Expected: {loads} loads of about {load_s:.0f} s, {loads * load_s:.0f} s in all, and what is timed"
    return words if seconds is None else f"{words}; no more than {seconds:.0f} s, by leaving {what} out"


def write_json(file: Path, values: Mapping[str, Any]) -> None:
    """Write a file of results, which is whole at any time."""
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, file)
