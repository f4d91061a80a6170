"""A session as it is replayed: turns of new, reused and forced output tokens, and which of them. Values only."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

Kind = Literal["first", "after_tool", "after_user"]
KINDS: tuple[Kind, ...] = ("first", "after_tool", "after_user")
Part = Literal["development", "held-out"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: the engine keeps `reused` tokens of its context, reads `new` and is made to emit `output`."""

    kind: Kind
    reused: int
    new: tuple[int, ...]
    output: tuple[int, ...]

    @property
    def context(self) -> int:
        """Tokens that the engine holds afterwards; the last one emitted is read by the next turn only."""
        return self.reused + len(self.new) + len(self.output) - 1


@dataclass(frozen=True, slots=True)
class Session:
    """Turns in order. `prefix` is read before the first one without being timed: what other sessions left behind."""

    id: str
    domain: str
    part: Part
    turns: tuple[Turn, ...]
    prefix: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """The longest context that it needs."""
        return max((turn.context + 1 for turn in self.turns), default=len(self.prefix))


@dataclass(frozen=True, slots=True)
class Limits:
    """What of a session is replayed. None and 1.0 leave it whole.

    turns          the first ones
    tokens         of context; the first turn that needs more ends the session
    output_tokens  per turn
    scale          turns read and emit this share of their tokens
    """

    turns: int | None = None
    tokens: int | None = None
    output_tokens: int | None = None
    scale: float = 1.0

    def described(self) -> list[str]:
        """What was left out, as sentences; empty for whole sessions."""
        told = []
        if self.turns is not None:
            told.append(f"Turns replayed of each session: the first {self.turns} at most.")
        if self.tokens is not None:
            told.append(f"Sessions end before the turn that needs more than {self.tokens:,} tokens of context.")
        if self.output_tokens is not None:
            told.append(f"Turns emit at most {self.output_tokens} tokens.")
        if self.scale != 1.0:
            told.append(f"Every turn is scaled to {self.scale:g} of its tokens, read and emitted.")
        return told

    def apply(self, session: Session) -> Session:
        """The part of `session` that is replayed; without turns where its first one is too long."""
        turns: list[Turn] = []
        prefix = session.prefix[: math.ceil(len(session.prefix) * self.scale)]
        context, whole_context = len(prefix), len(session.prefix)
        for turn in session.turns[: self.turns]:
            # A turn that reuses all of the context still does; after a break in the prefix, the same share is kept.
            reused = context if turn.reused >= whole_context else min(context, math.floor(turn.reused * self.scale))
            new = turn.new[: max(1, math.ceil(len(turn.new) * self.scale))]
            output = turn.output[: max(1, math.ceil(len(turn.output) * self.scale))][: self.output_tokens]
            kept = replace(turn, reused=reused, new=new, output=output)
            if self.tokens is not None and kept.context + 1 > self.tokens:
                break
            turns.append(kept)
            context, whole_context = kept.context, turn.context
        return replace(session, turns=tuple(turns), prefix=prefix)


def write_sessions(file: Path, sessions: Sequence[Session]) -> None:
    """Write sessions for another process."""
    file.write_text(json.dumps([_as_json(session) for session in sessions]), encoding="utf-8")


def read_sessions(file: Path) -> list[Session]:
    """The sessions that `write_sessions` wrote."""
    return [_session(item) for item in json.loads(file.read_text(encoding="utf-8"))]


def prefix_length(before: Sequence[int], after: Sequence[int]) -> int:
    """How many leading tokens two contexts share."""
    shared = 0
    for known, found in zip(before, after, strict=False):
        if known != found:
            break
        shared += 1
    return shared


def of_part(sessions: Sequence[Session], part: Part) -> Iterator[Session]:
    """The sessions of one part that have turns."""
    return (session for session in sessions if session.part == part and session.turns)


def _as_json(session: Session) -> dict[str, Any]:
    turns = [{"kind": t.kind, "reused": t.reused, "new": t.new, "output": t.output} for t in session.turns]
    own = {"id": session.id, "domain": session.domain, "part": session.part}
    return {**own, "prefix": session.prefix, "turns": turns}


def _session(item: Mapping[str, Any]) -> Session:
    turns = tuple(Turn(t["kind"], t["reused"], tuple(t["new"]), tuple(t["output"])) for t in item["turns"])
    return Session(item["id"], item["domain"], item["part"], turns, tuple(item["prefix"]))
