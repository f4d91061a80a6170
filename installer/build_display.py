"""Shows a build to a person: live bars on a terminal, plain lines otherwise. Call it with every `BuildProgress`."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ostinatod.installer.build_progress import BuildProgress

_TITLES = {
    "download": "Fetching the source",
    "unpack": "Unpacking",
    "patch": "Patching",
    "configure": "Configuring",
    "compile": "Compiling the engine",
    "install": "Installing the engine",
    "bindings": "Installing the bindings",
}
_PLAIN_INTERVAL_S = 15.0


class BuildDisplay:
    """A context manager and a `Report`. Every finished step leaves one line with the time it took."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._step = ""
        self._started = 0.0
        self._last_line = 0.0
        self._task: TaskID | None = None
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[detail]}", style="dim"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> BuildDisplay:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def __call__(self, progress: BuildProgress) -> None:
        if progress.step != self._step:
            self._begin(progress)
        if progress.total > 0 and progress.done >= progress.total and not _more_follows(progress):
            self._end(progress)
        else:
            self._advance(progress)

    def _begin(self, progress: BuildProgress) -> None:
        self._step, self._started, self._last_line = progress.step, self._clock(), self._clock()
        title = _TITLES.get(progress.step, progress.step)
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(title, total=None, amount="", detail=progress.detail)
        if not self._console.is_terminal:
            self._print(f"{title}: {progress.detail}")

    def _advance(self, progress: BuildProgress) -> None:
        amount = _amount(progress)
        if self._task is not None:
            self._bars.update(
                self._task, completed=progress.done, total=progress.total or None, amount=amount, detail=progress.detail
            )
        now = self._clock()
        if not self._console.is_terminal and progress.done and now - self._last_line >= _PLAIN_INTERVAL_S:
            self._last_line = now
            left = (now - self._started) * (progress.total - progress.done) / progress.done
            self._print(f"  {amount}, about {format_time(left)} left: {progress.detail}")

    def _end(self, progress: BuildProgress) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None
        self._step = ""
        title = _TITLES.get(progress.step, progress.step)
        taken = format_time(self._clock() - self._started)
        self._print(f"{title:<26}{taken:>8}  {progress.detail}")

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def format_time(seconds: float) -> str:
    """Such as "0.4 s", "42 s", "3 min 20 s"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _more_follows(progress: BuildProgress) -> bool:
    """Ninja's last edge is not the end of the step: the build's own closing report is, whose total is 1."""
    return progress.step == "compile" and progress.total > 1


def _amount(progress: BuildProgress) -> str:
    if progress.total <= 1:
        return ""
    if progress.step == "download":
        return f"{progress.done / 1e6:.0f} of {progress.total / 1e6:.0f} MB"
    return f"{progress.done} of {progress.total}"
