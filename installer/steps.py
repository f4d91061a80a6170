"""One line for every step of the installation, and the commands behind them. Standard library only."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

_LOG_LINES_SHOWN = 12


class InstallError(Exception):
    """Something the user must see and can act on; the message says what to do."""


class Steps:
    """Prints each step with the time it took; on a terminal the line is live while the step runs."""

    def __init__(self, log: Path, stream: TextIO | None = None) -> None:
        self._log = log
        self._stream = stream or sys.stdout
        self._title = ""
        self._started = 0.0

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Times what happens inside it."""
        self._title, self._started = title, time.monotonic()
        self._show_live()
        try:
            yield
        except BaseException:
            self._finish("failed")
            raise
        self._finish("done")

    def run(self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        """Runs `command` with its output in the log. Raises InstallError with the end of the output when it fails."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("a", encoding="utf-8") as file:
            file.write(f"$ {' '.join(map(str, command))}\n")
            file.flush()
            start = file.tell()
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **(environment or {})},
                )
            except OSError as error:
                raise InstallError(f"cannot run {command[0]}: {error}") from error
            with process:
                while True:
                    try:
                        status = process.wait(timeout=0.5)
                        break
                    except subprocess.TimeoutExpired:
                        self._show_live()
        if status != 0:
            with self._log.open("rb") as output:
                output.seek(start)
                lines = output.read().decode(errors="replace").strip().splitlines()
            shown = "\n".join(f"    {line}" for line in lines[-_LOG_LINES_SHOWN:])
            name = " ".join(str(part) for part in command[:4])
            raise InstallError(f"{name} ... ended with status {status}:\n{shown}\nThe whole output is in {self._log}")

    def _show_live(self) -> None:
        if self._stream.isatty():
            self._stream.write(f"\r{self._title:<40} {time.monotonic() - self._started:6.0f} s ")
            self._stream.flush()

    def _finish(self, outcome: str) -> None:
        start = "\r" if self._stream.isatty() else ""
        self._stream.write(f"{start}{self._title:<40} {time.monotonic() - self._started:6.1f} s  {outcome}\n")
        self._stream.flush()
