"""The child process: one engine, one setting.

    python -m benchmarks.peers.measure MODULE WORK.json OPTIONS.json OUT.json

Writes OUT.json: decode and prefill times (ms), load time (s), GPU memory (bytes); where WORK.json names sessions, their
turns too, anew after every turn. Its error output is the engine's.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.gpu_memory import used_bytes
from benchmarks.peers.protocol import WARM_UP, Engine, Options, Peer, Tokens, Work
from ostinatod.bench.sessions import read_sessions


def measure(
    open_engine: Callable[[Work, Options], Engine],
    work: Work,
    options: Options,
    keep: Callable[[dict[str, Any]], None],
    memory: Callable[[], int | None] = used_bytes,
) -> None:
    """Hand on the figures of one engine at one setting, and again after each turn of the sessions of `work`."""
    rng = np.random.default_rng(work.seed)

    def tokens(count: int) -> Tokens:
        return rng.integers(0, work.vocabulary, count).astype(np.int32)

    before = memory()

    def added() -> int | None:
        now = memory()
        return None if before is None or now is None else now - before

    started = time.monotonic()
    engine = open_engine(work, options)
    load_s = time.monotonic() - started
    started = time.monotonic()
    next_token = engine.read_context(tokens(work.depth))
    context_s = time.monotonic() - started
    steps = engine.decode(tokens(work.decode_tokens + WARM_UP))[WARM_UP:]
    prefill = {}
    for length in work.lengths:
        times = [engine.prefill(tokens(length)) for _ in range(work.repeats + 1)][1:]
        prefill[str(length)] = [round(ms, 3) for ms in times]
    figures = {
        "load_s": round(load_s, 2),
        "context_s": round(context_s, 3),
        "next_token": next_token,
        "decode_ms": round(statistics.median(steps), 4),
        "decode_ms_mean": round(statistics.fmean(steps), 4),
        "prefill_ms": {length: round(statistics.median(times), 2) for length, times in prefill.items()},
        "prefill_ms_all": prefill,
        "gpu_bytes": added(),
        "facts": engine.facts(),
    }
    keep(figures)
    if work.sessions:
        for sessions in replay(engine, work):
            keep({**figures, "gpu_bytes": added(), "facts": engine.facts(), "sessions": sessions})


def replay(engine: Engine, work: Work) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """Replay the sessions of `work`; yields all turns so far, by session, after each one."""
    sessions: dict[str, list[dict[str, Any]]] = {}
    for session in read_sessions(Path(work.sessions)):
        turns = sessions[session.id] = []
        for turn in session.turns:
            new, output = (np.array(tokens, np.int32) for tokens in (turn.new, turn.output))
            first, others = engine.turn(turn.reused, new, output)
            lengths = {"kind": turn.kind, "reused": turn.reused, "new": len(new), "output": len(output)}
            turns.append({**lengths, "ttft_ms": round(first, 3), "total_ms": round(first + others, 3)})
            yield sessions


def peer_named(module: str) -> Peer:
    """The peer that benchmarks/peers/MODULE.py defines."""
    peer = importlib.import_module(f"benchmarks.peers.{module}").PEER
    assert isinstance(peer, Peer)
    return peer


def main() -> int:
    """Command line; returns the exit code."""
    module, work_file, options_file, out = sys.argv[1:]
    work = Work.from_json(json.loads(Path(work_file).read_text(encoding="utf-8")))
    options: Options = json.loads(Path(options_file).read_text(encoding="utf-8"))
    measure(peer_named(module).open, work, options, lambda result: write_json(Path(out), result))
    return 0


def write_json(file: Path, result: dict[str, Any]) -> None:
    """Write a result, which is whole at any time."""
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(result), encoding="utf-8")
    os.replace(temporary, file)


if __name__ == "__main__":
    sys.exit(main())
