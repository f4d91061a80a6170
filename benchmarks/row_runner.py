"""Runs the rows of a table, each in a process of its own, within a number of seconds; the file is whole after each row.

A row that fails, or is not begun for want of time, is in the file with its reason, and the others go on.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from measured_row import Job
from numpy.typing import NDArray
from placements import hottest
from this_machine import machine, write_json

from ostinatod.bench.settings import Setting, as_json

CHILD = Path(__file__).with_name("measured_row.py")
GRACE_S = 4.0
"""A row that should have ended is killed after so long; until then it writes what it has."""
OVER = "it was ended when the time was over"
NO_LIMIT = float("inf")

_BACKTRACE = re.compile(r"\[0x[0-9a-f]+\]$")
"""Lines that follow the reason why a process aborted."""


@dataclass(slots=True)
class Rows:
    """The rows so far.

    job      what every row has in common
    out      the file
    facts    of the machine and the model, for the file
    seconds  for all rows together
    work     a folder for what rows share
    """

    job: Job
    out: Path
    facts: dict[str, Any]
    seconds: float
    work: Path
    results: list[dict[str, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    _reference: NDArray[np.float64] | None = None

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.seconds - (time.monotonic() - self.started)

    @property
    def is_counted(self) -> bool:
        """Whether a row has counted the routes that say which experts are hot."""
        return (self.work / "counted.npz").exists()

    def counted(self) -> dict[str, NDArray[Any]]:
        """The routes that the first row counted."""
        with np.load(self.work / "counted.npz") as counts:
            return {name: counts[name] for name in counts.files}

    def hot(self, share: float) -> NDArray[np.bool_]:
        """(L, E): the hottest `share` of all experts by those routes."""
        return hottest(self.counted()["profile"], share)

    def run(self, setting: Setting, *, hot: float | None = None, least_s: float = 0.0, **own: Any) -> dict[str, Any]:
        """Measure a row and keep it.

        hot      share of the experts that are hot, for kind "ostinato"
        least_s  seconds without which it is not begun; what the last row took until it was ready is the least anyway
        own      what differs from the common job
        """
        number = len(self.results)
        loads = [row["load_s"] for row in self.results if "load_s" in row]
        if self.left_s < max([least_s, *loads[-1:]]) + GRACE_S:
            return self.leave_out(setting, "no time was left")
        if hot is not None and not self.is_counted:
            return self.leave_out(setting, "no row has counted routes")
        out = self.work / f"row-{number}.json"
        job = replace(self.job, setting=as_json(setting), out=str(out), counts=not self.is_counted, **own)
        job = replace(job, until=time.time() + self.left_s - GRACE_S)
        found: dict[str, Any] = {}
        if hot is not None:
            mask, counts = self.hot(hot), self.counted()["profile"]
            job = replace(job, hot=str(self.work / f"hot-{number}.npy"))
            np.save(str(job.hot), mask)
            found = {"hot": hot, "coverage": round(int(counts[mask].sum()) / int(counts.sum()), 4)}
        begun = time.monotonic()
        failure = self._wait(job, setting)
        told: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
        if failure == OVER and told:
            failure, told["cut"] = "", True
            told["depths"] = {depth: item for depth, item in told.get("depths", {}).items() if "decode_ms" in item}
        row = {"setting": as_json(setting), **found, **told, **({"failed": failure} if failure else {})}
        if not failure:
            row |= self._compared(out.with_suffix(".npy"))
        return self._keep(row, time.monotonic() - begun)

    def leave_out(self, setting: Setting, reason: str) -> dict[str, Any]:
        """Keep why a row was not measured."""
        return self._keep({"setting": as_json(setting), "failed": reason}, 0.0)

    def logits(self, row: Mapping[str, Any]) -> NDArray[np.float32]:
        """Of the fixed tokens that a row evaluated."""
        values: NDArray[np.float32] = np.load(self.work / f"row-{row['number']}.npy")
        return values

    def write(self) -> None:
        """Write the file."""
        whole = {**self.facts, "seconds": round(time.monotonic() - self.started, 1), "results": self.results}
        write_json(self.out, whole)

    def _wait(self, job: Job, setting: Setting) -> str:
        """Why the row's process failed, nothing where it has not."""
        file, errors = self.work / "job.json", self.work / "errors.txt"
        job.write(file)
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, str(CHILD), str(file)], env=setting.process_environment(), stderr=stderr
            )
            try:
                process.wait(timeout=None if self.seconds == NO_LIMIT else max(0.0, self.left_s))
            except subprocess.TimeoutExpired:
                return OVER
            finally:
                process.kill()
                process.wait()
        said = errors.read_text(encoding="utf-8", errors="replace").strip()
        told = "\n".join(line for line in said.splitlines() if not _BACKTRACE.search(line))
        return f"status {process.returncode}: {told[-1500:]}" if process.returncode else ""

    def _compared(self, file: Path) -> dict[str, Any]:
        """The row's logits against those of the first row that has any."""
        if not file.exists():
            return {}
        logits = np.load(file).astype(np.float64)
        if self._reference is None:
            self._reference = logits
        return difference(logits, self._reference)

    def _keep(self, row: dict[str, Any], wall_s: float) -> dict[str, Any]:
        self.results.append({"number": len(self.results), **row, "wall_s": round(wall_s, 1)})
        self.write()
        print(line_of(self.results[-1], self.left_s), flush=True)
        return self.results[-1]


def difference(logits: NDArray[Any], reference: NDArray[Any]) -> dict[str, Any]:
    """Squared error over squared reference, the share of tokens with the same most likely successor, and equality."""
    exact = reference.astype(np.float64)
    return {
        "nmse": float(((logits - exact) ** 2).sum() / (exact**2).sum()),
        "same_argmax": float((logits.argmax(1) == exact.argmax(1)).mean()),
        "same_bits": bool((logits == reference).all()),
    }


def line_of(row: Mapping[str, Any], left_s: float) -> str:
    """A row for people, as soon as it is known."""
    head = f"{row['setting']['name']:<38} {row['wall_s']:6.1f} s, {left_s:5.0f} s left"
    if "failed" in row:
        return f"{head}: could not run: {row['failed']}"
    told = [f"{head}: load {row['load_s']} s, nmse {row.get('nmse', 0):.1e}{', cut' if row.get('cut') else ''}"]
    for depth, found in row["depths"].items():
        prefill = " ".join(f"{n}:{ms:.0f}" for n, ms in found.get("prefill_ms", {}).items())
        told.append(f"  behind {depth}: step {found['decode_ms']:.3f} ms {prefill}")
    return "\n".join(told)


def facts_of(model: Path, command: Sequence[str]) -> dict[str, Any]:
    """Machine, model, date and command."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "model": f"{model.name}, {model.stat().st_size / 1e9:.1f} GB",
        "command": " ".join(["python", *command]),
    }
