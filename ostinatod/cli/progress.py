"""Progress on stderr: bars where a person watches, and otherwise a line for every tenth that is done."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from ostinatod.cli.output import say
from ostinatod.cli.text import human_bytes, one_line

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

_STEPS = 10


class Display(Protocol):
    """Shows how far things have come. Use as a context manager."""

    def __enter__(self) -> Display: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, name: str, completed: int, total: int) -> None:
        """`completed` of `total` of the thing called `name` are done; a total of 0 is not known yet."""

    def note(self, text: str) -> None:
        """Say something beside the bars."""


def bytes_display() -> Display:
    """For downloads, with sizes, the rate and the time left."""
    return _Bars(_byte_columns) if sys.stderr.isatty() else _Lines(human_bytes)


def share_display() -> Display:
    """For work that counts steps or percent."""
    return _Bars(_share_columns) if sys.stderr.isatty() else _Lines(None)


class _Lines:
    def __init__(self, unit: Callable[[float], str] | None) -> None:
        self._unit = unit
        self._told: dict[str, int] = {}

    def __enter__(self) -> _Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def update(self, name: str, completed: int, total: int) -> None:
        if total <= 0:
            return
        tenth = completed * _STEPS // total
        if tenth <= self._told.get(name, -1):
            return
        self._told[name] = tenth
        amount = f" ({self._unit(completed)} of {self._unit(total)})" if self._unit else ""
        say(f"{one_line(name)}: {completed * 100 // total} %{amount}")

    def note(self, text: str) -> None:
        say(one_line(text))


class _Bars:
    def __init__(self, columns: Callable[[], list[ProgressColumn]]) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._progress: Progress = Progress(*columns(), console=Console(stderr=True, highlight=False), expand=False)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, name: str, completed: int, total: int) -> None:
        task = self._tasks.get(name)
        if task is None:
            # What an earlier attempt fetched is the start of this one, and no part of its rate.
            self._tasks[name] = self._progress.add_task(one_line(name), completed=completed, total=total or None)
        else:
            self._progress.update(task, completed=completed, total=total or None)

    def note(self, text: str) -> None:
        self._progress.console.print(one_line(text), markup=False)


def _byte_columns() -> list[ProgressColumn]:
    from rich.progress import BarColumn, DownloadColumn, TaskProgressColumn, TimeRemainingColumn, TransferSpeedColumn

    return [
        _name_column(),
        TaskProgressColumn(),
        BarColumn(bar_width=20),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    ]


def _share_columns() -> list[ProgressColumn]:
    from rich.progress import BarColumn, TaskProgressColumn, TimeElapsedColumn

    return [_name_column(), TaskProgressColumn(), BarColumn(bar_width=30), TimeElapsedColumn()]


def _name_column() -> ProgressColumn:
    from rich.progress import TextColumn
    from rich.table import Column

    return TextColumn(
        "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", max_width=40)
    )
