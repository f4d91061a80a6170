"""Steps that cannot keep each other from running: each has a time limit, and what fails is told at the end."""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from text_table import text_table

LEAST_S = 1.0
"""A step is not begun with less."""
FACT_LETTERS = 110


class CheckFailed(Exception):
    """Something is not as it has to be."""


def check(holds: object, expected: str, found: object) -> None:
    """Raises CheckFailed unless `holds`."""
    if not holds:
        raise CheckFailed(f"expected {expected}, found {found!r}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a step."""

    name: str
    ok: bool
    seconds: float
    fact: str
    trace: str = ""


@dataclass(slots=True)
class Steps:
    """Runs steps one after the other, all within `seconds`, of which `reserve_s` are kept for those that clean up."""

    seconds: float
    reserve_s: float
    outcomes: list[Outcome] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)

    def run(self, name: str, limit_s: float, work: Callable[[], str], *, cleans_up: bool = False) -> bool:
        """Do `work`, which tells one fact; whether it held. Only in the main thread."""
        begun = time.monotonic()
        left_s = self.seconds - (begun - self.begun) - (0.0 if cleans_up else self.reserve_s)
        print(f"{name} …", flush=True)
        try:
            if left_s < LEAST_S:
                raise CheckFailed("no time was left")
            with time_limit(min(limit_s, left_s)):
                fact = work()
            ok, trace = True, ""
        except Exception as error:
            ok, fact, trace = False, f"{type(error).__name__}: {error}", traceback.format_exc()
        outcome = Outcome(name, ok, round(time.monotonic() - begun, 2), fact, trace)
        self.outcomes.append(outcome)
        print(f"  {'ok' if ok else 'FAILED'}, {outcome.seconds:.1f} s: {fact}", flush=True)
        return ok

    def all_ok(self) -> bool:
        """Whether every step held."""
        return all(outcome.ok for outcome in self.outcomes)

    def table(self) -> str:
        """A row per step."""
        rows = [
            (item.name, "ok" if item.ok else "FAILED", f"{item.seconds:.1f}", _brief(item.fact))
            for item in self.outcomes
        ]
        width = max((len(row[-1]) for row in rows), default=0)
        return text_table(("step", "", "s", "fact".ljust(width)), [(*row[:-1], row[-1].ljust(width)) for row in rows])


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError inside when `seconds` have passed. Only in the main thread, and not within another one."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"it took more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _brief(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= FACT_LETTERS else f"{line[: FACT_LETTERS - 1]}…"
