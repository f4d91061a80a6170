"""The file that a run appends to: what is compared, what was chosen for it, then one JSON line per finished turn.

A run that was interrupted continues where its file ends, if it is asked for the same; a line that was cut short by the
interruption is dropped. Counts and times only: no token is in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ostinatod.bench.sessions import Kind
from ostinatod.errors import RequestError


@dataclass(frozen=True, slots=True)
class TurnResult:
    """One turn under one setting. Times are milliseconds; None where a value is not known."""

    setting: str
    session: str
    turn: int
    repeat: int
    kind: Kind
    reused: int
    new: int
    output: int
    ttft_ms: float
    tpot_ms: float | None
    total_ms: float
    likely_token: int | None = None
    """What the model would have said first; the same under all settings but for rounding."""
    prefill_hot_routes: int | None = None
    prefill_routes: int | None = None
    decode_hot_routes: int | None = None
    decode_routes: int | None = None


_FIELDS = tuple(item.name for item in fields(TurnResult))


class ResultFile:
    """Appends to a file; whatever was appended is in it when the call returns. Use as a context manager.

    request  what was asked for: a file that was made for another is not continued
    chosen   what the run decided before it timed anything
    """

    def __init__(
        self,
        path: Path,
        request: Mapping[str, Any],
        chosen: Mapping[str, Any],
        turns: list[TurnResult] | None = None,
        loaded: dict[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.request, self.chosen = request, chosen
        self.turns = turns or []
        self.loaded = loaded or {}
        """What each setting told when it was ready."""
        lines: list[Mapping[str, Any]] = [{"request": request, "chosen": chosen}]
        lines += [{"setting": name, "loaded": told} for name, told in self.loaded.items()]
        lines += [asdict(turn) for turn in self.turns]
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written anew also where it is continued: a line that was cut short must not lead into the next one.
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        os.replace(temporary, path)
        self._file = path.open("a", encoding="utf-8")

    def __enter__(self) -> ResultFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, turn: TurnResult) -> None:
        """Keep a turn."""
        self._write(asdict(turn))
        self.turns.append(turn)

    def append_loaded(self, setting: str, told: Mapping[str, Any]) -> None:
        """Keep what a setting told when it was ready."""
        self._write({"setting": setting, "loaded": told})
        self.loaded[setting] = told

    def done(self, setting: str, repeat: int) -> dict[str, int]:
        """Turns that are there already of each session of a setting, from its first one on."""
        found: dict[str, int] = {}
        for turn in self.turns:
            if (turn.setting, turn.repeat) == (setting, repeat) and turn.turn == found.get(turn.session, 0):
                found[turn.session] = turn.turn + 1
        return found

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def continue_results(path: Path, request: Mapping[str, Any]) -> ResultFile | None:
    """The results in a file to be continued; None where there is no file.

    Raises RequestError for a file that was made for another request, or holds no results.
    """
    if not path.exists():
        return None
    try:
        file = _read(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{path} holds no results: {error}", hint="Start anew without --resume") from error
    wanted = json.loads(json.dumps(request))
    if file.request != wanted:
        differing = sorted(key for key in {*file.request, *wanted} if file.request.get(key) != wanted.get(key))
        raise RequestError(
            f"{path} holds results of another comparison: it differs in {', '.join(differing)}",
            hint="Repeat the command that made it, start anew without --resume, or choose another folder: --out",
        )
    return ResultFile(path, file.request, file.chosen, file.turns, file.loaded)


@dataclass(frozen=True, slots=True)
class _Content:
    request: Mapping[str, Any]
    chosen: Mapping[str, Any]
    turns: list[TurnResult]
    loaded: dict[str, Mapping[str, Any]]


def _read(path: Path) -> _Content:
    first, *others = path.read_bytes().split(b"\n")[:-1] or [b"{}"]
    head = json.loads(first)
    turns: list[TurnResult] = []
    loaded: dict[str, Mapping[str, Any]] = {}
    for row in map(json.loads, others):
        if "loaded" in row:
            loaded[row["setting"]] = row["loaded"]
        else:
            turns.append(TurnResult(**{name: row[name] for name in _FIELDS}))
    return _Content(head["request"], head["chosen"], turns, loaded)
