"""Sessions as they are sent to a server: text that is added in each turn, and how many tokens it is to answer with."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from ostinatod.bench.sessions import Kind, Limits
from ostinatod.bench.tokens import hashed_tokens, pieces, shaped_session
from ostinatod.bench.traces import Recorded, render_plainly, text_turns

ANY_VOCABULARY = 1 << 31


@dataclass(frozen=True, slots=True)
class HttpTurn:
    """One request: the conversation so far, of which this share is kept, and `added` to it."""

    kind: Kind
    kept: float
    added: str
    output: int


@dataclass(frozen=True, slots=True)
class HttpSession:
    """Turns in order. `prefix` is read before the first one without being timed: what other sessions left behind."""

    id: str
    turns: tuple[HttpTurn, ...]
    prefix: str = ""

    @property
    def checksum(self) -> int:
        """Of all that is sent: a session of the user's own log may have grown since."""
        return zlib.crc32(repr((self.turns, self.prefix)).encode())


def recorded_over_http(session: Recorded, limits: Limits) -> HttpSession:
    """A recorded session in plain ChatML, its answers as long as a plain tokenizer would count them."""
    return HttpSession(str(session["id"]), tuple(_recorded_turns(session, limits)))


def shaped_over_http(shape: Mapping[str, Any], limits: Limits, filling: Sequence[Recorded]) -> HttpSession:
    """A session of which only the lengths are known, filled with the text of recorded ones, as a plain tokenizer
    would count it.
    """
    text = [piece for session in filling for piece in pieces(render_plainly(session, session["messages"], False))]
    turns = [tuple(turn) for turn in shape["turns"]]
    # Tokens are the places of their text, which begins elsewhere in every session: no server has read it before.
    begin = zlib.crc32(str(shape["id"]).encode())
    session = limits.apply(shaped_session(shape["id"], "held-out", turns, count(begin)))
    context = len(session.prefix)
    found = []
    for turn in session.turns:
        kept = turn.reused / context if context else 1.0
        found.append(HttpTurn(turn.kind, kept, _written(turn.new, text), len(turn.output)))
        context = turn.context
    return HttpSession(session.id, tuple(found), _written(session.prefix, text))


def _recorded_turns(session: Recorded, limits: Limits) -> Iterator[HttpTurn]:
    said = ""
    for number, turn in enumerate(text_turns(session, render_plainly)):
        if limits.turns is not None and number >= limits.turns:
            return
        added = turn.prompt[len(said) :]
        output = max(1, round(len(hashed_tokens(turn.answer, ANY_VOCABULARY)) * limits.scale))
        yield HttpTurn(
            kind=turn.kind,
            kept=1.0,
            added=added[: max(1, round(len(added) * limits.scale))],
            output=min(output, limits.output_tokens or output),
        )
        said = turn.prompt + turn.answer


def _written(tokens: Sequence[int], text: Sequence[str]) -> str:
    return "".join(text[token % len(text)] for token in tokens)
