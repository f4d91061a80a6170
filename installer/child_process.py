"""Running the tools the build needs: short questions, and long commands with a log and a watcher."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def answer_of(command: Sequence[str | Path], timeout_s: float = 20.0) -> str | None:
    """Standard output of a short command; None when it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def run_logged(
    command: Sequence[str | Path],
    log: Path,
    on_line: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
) -> int:
    """Runs `command`, appends its output to `log`, hands every line to `on_line`, and returns its exit status.

    `environment` is added to the inherited one. Whatever interrupts the wait ends the command and its children first.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(map(str, command))}\n")
        file.flush()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C", **(environment or {})},
            start_new_session=True,
        )
        with process:
            if process.stdout is None:
                raise RuntimeError("the pipe that was asked for is missing")
            try:
                for line in process.stdout:
                    file.write(line)
                    on_line(line.rstrip("\n"))
                return process.wait()
            except BaseException:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGTERM)
                raise
