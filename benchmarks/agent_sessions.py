"""Recorded agent sessions as tokens: what a server has to read before each assistant turn, and what it then writes.

    python benchmarks/agent_sessions.py --traces TRACES --out sessions.npz     # needs the engine, for its tokenizer

The file is all that a replay needs where there are no traces and no chat templates. Tasks are divided into a
development and a held-out part as `record_routes.py` divides them.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """The tokens that an assistant turn has to read beyond the turn before, and those of its recorded answer."""

    new: Tokens
    answer: Tokens


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """One conversation. `part` is "development" or "held-out"."""

    name: str
    domain: str
    part: str
    turns: tuple[RecordedTurn, ...]


def write_sessions(path: Path, sessions: list[RecordedSession]) -> None:
    """Write them to one compressed file."""
    pieces = [piece for session in sessions for turn in session.turns for piece in (turn.new, turn.answer)]
    np.savez_compressed(
        path,
        name=np.array([session.name for session in sessions]),
        domain=np.array([session.domain for session in sessions]),
        part=np.array([session.part for session in sessions]),
        turns=np.array([len(session.turns) for session in sessions]),
        lengths=np.array([len(piece) for piece in pieces]).reshape(-1, 2),
        tokens=np.concatenate(pieces).astype(np.uint16),
    )


def read_sessions(path: Path) -> list[RecordedSession]:
    """The sessions of a file, in their order."""
    data = np.load(path)
    lengths = data["lengths"]
    pieces = np.split(data["tokens"].astype(np.int32), np.cumsum(lengths.ravel())[:-1])
    turns = [RecordedTurn(pieces[2 * i], pieces[2 * i + 1]) for i in range(len(lengths))]
    ends = np.cumsum(data["turns"])
    return [
        RecordedSession(str(name), str(domain), str(part), tuple(turns[end - count : end]))
        for name, domain, part, count, end in zip(
            data["name"], data["domain"], data["part"], data["turns"], ends, strict=True
        )
    ]


def main() -> int:
    """Command line; returns the exit code."""
    from record_routes import Player, choose, sessions_of

    from ostinatod.models import bundled_file

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--development", type=int, default=5, help="tasks of each domain")
    parser.add_argument("--held-out", type=int, default=2, help="tasks of each domain")
    parser.add_argument("--max-tokens", type=int, default=2048, help="of a session after its first turn")
    arguments = parser.parse_args()

    player = Player(bundled_file(), 512, 1)
    sessions = []
    chosen = choose(sessions_of(arguments.traces), arguments.development, arguments.held_out)
    for domain, part, session in sorted(chosen, key=lambda item: (item[0], str(item[2]["id"]))):
        turns: list[RecordedTurn] = []
        later_tokens = 0
        for new, answer in player.turns(session):
            later_tokens += (len(new) + len(answer)) if turns else 0
            if later_tokens > arguments.max_tokens:
                break
            turns.append(RecordedTurn(np.array(new, np.int32), np.array(answer, np.int32)))
        if turns:
            sessions.append(RecordedSession(str(session["id"]), domain, part, tuple(turns)))
    write_sessions(arguments.out, sessions)
    print(f"{len(sessions)} sessions, {arguments.out.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
