"""Several servers over HTTP, one after the other. Finished sessions are kept, so that an interrupted run can go on.

A session that was cut short is replayed from its beginning: the server no longer has what it said in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import httpx

from ostinatod.bench.comparison import RESULTS_FILE, Progress
from ostinatod.bench.http_replay import replay_over_http
from ostinatod.bench.results import ResultFile, TurnResult, continue_results
from ostinatod.bench.sessions import Limits
from ostinatod.bench.traces import Recorded

_FINISHED = "finished"


def compare_over_http(
    servers: Mapping[str, Callable[[], httpx.Client]],
    model: str,
    sessions: Sequence[Recorded],
    limits: Limits,
    out: Path,
    progress: Progress,
    *,
    resume: bool,
) -> Sequence[TurnResult]:
    """Replay all sessions on each of `servers`, named by their URLs; every turn is kept in `out` as it comes.

    Raises RequestError for the results of another comparison, EngineError where a server refuses.
    """
    request = {
        "servers": list(servers),
        "model": model,
        "sessions": [str(session["id"]) for session in sessions],
        "limits": asdict(limits),
    }
    with _results(out / RESULTS_FILE, request, resume=resume) as file:
        if file.turns:
            progress.note(f"continuing after {len(file.turns)} turns")
        for url, connect in servers.items():
            with connect() as client:
                for session in sessions:
                    finished = _finished(file, url)
                    progress.update(url, len(finished), len(sessions))
                    if str(session["id"]) not in finished:
                        replay_over_http(client, model, [session], limits, url, file.append)
                        file.append_loaded(url, {_FINISHED: [*finished, str(session["id"])]})
            progress.update(url, len(sessions), len(sessions))
        return file.turns


def _results(path: Path, request: Mapping[str, object], *, resume: bool) -> ResultFile:
    """The file to append to, with the turns of finished sessions where it is continued."""
    known = continue_results(path, request) if resume else None
    if known is None:
        return ResultFile(path, request, {})
    with known:
        turns = [turn for turn in known.turns if turn.session in _finished(known, turn.setting)]
    return ResultFile(path, known.request, known.chosen, turns, known.loaded)


def _finished(file: ResultFile, url: str) -> list[str]:
    """Ids of the sessions that a server has gone through."""
    return list(file.loaded.get(url, {}).get(_FINISHED, []))
