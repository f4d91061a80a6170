"""Several servers over HTTP, one after the other. Finished sessions are kept, so that an interrupted run can go on.

A session that was cut short is replayed from its beginning: the server no longer has what it said in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import httpx

from ostinatod.bench.comparison import RESULTS_FILE, Progress
from ostinatod.bench.http_replay import replay_over_http
from ostinatod.bench.http_sessions import HttpSession
from ostinatod.bench.results import ResultFile, TurnResult, continue_results
from ostinatod.bench.sessions import Limits
from ostinatod.errors import EngineError

DIFFERENT = 1.05
"""Times as many tokens read: servers were not asked for the same work."""

_FINISHED = "finished"


def compare_over_http(
    servers: Mapping[str, Callable[[], httpx.Client]],
    model: str,
    sessions: Sequence[HttpSession],
    limits: Limits,
    out: Path,
    progress: Progress,
    *,
    resume: bool,
) -> tuple[Sequence[TurnResult], Mapping[str, str]]:
    """Replay all sessions on each of `servers`, named by their URLs; every turn is kept in `out` as it comes.

    Returns the turns, and why servers could not go to their end. Raises RequestError for the results of another
    comparison, EngineError where every server refuses.
    """
    request = {
        "servers": list(servers),
        "model": model,
        "sessions": [[session.id, session.checksum] for session in sessions],
        "limits": asdict(limits),
    }
    with _results(out / RESULTS_FILE, request, resume=resume) as file:
        if file.turns:
            progress.note(f"continuing after {len(file.turns)} turns")
        failures: dict[str, str] = {}

        def time_server(url: str, client: httpx.Client) -> None:
            for session in sessions:
                finished = _finished(file, url)
                progress.update(url, len(finished), len(sessions))
                if session.id not in finished:
                    replay_over_http(client, model, session, limits.tokens, url, file.append)
                    file.append_loaded(url, {_FINISHED: [*finished, session.id]})
            progress.update(url, len(sessions), len(sessions))

        for url, connect in servers.items():
            with connect() as client:
                try:
                    time_server(url, client)
                except EngineError as error:
                    failures[url] = error.message
                    progress.note(f"{url} could not go on: {error.message}")
        if failures and not file.turns:
            told = "; ".join(f"{url}: {reason}" for url, reason in failures.items())
            raise EngineError(told, hint="Start the server, and name its address: --url http://HOST:PORT")
        return file.turns, failures


def reading_notes(turns: Sequence[TurnResult]) -> Iterator[str]:
    """How many prompt tokens servers read and reused in the same turns; they need not be the same, and times follow."""
    servers = list(dict.fromkeys(turn.setting for turn in turns))
    places = [{(turn.session, turn.turn) for turn in turns if turn.setting == server} for server in servers]
    common = set.intersection(*places)
    told, read = [], []
    for server in servers:
        own = [turn for turn in turns if turn.setting == server and (turn.session, turn.turn) in common]
        read.append(sum(turn.new for turn in own))
        told.append(f"{server} {read[-1]:,} and {sum(turn.reused for turn in own):,}")
    yield f"Prompt tokens read and reused in the same turns: {'; '.join(told)}."
    if max(read) > DIFFERENT * min(read):
        yield "They differ: what a server held before the first turn, or has let go between two, is in its times."


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
