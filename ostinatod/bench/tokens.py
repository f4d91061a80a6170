"""Conversations as tokens: with a model's own tokenizer and template, or mapped by hashing where it has none.

Only what a turn adds is tokenised; a prompt that does not continue the one before it is tokenised whole, and what both
share counts as reused, as a server with one slot counts it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence

from ostinatod.bench.sessions import Kind, Part, Session, Turn, prefix_length
from ostinatod.bench.traces import Recorded, TextTurn, domain_of

Tokenize = Callable[[str], Sequence[int]]

# Pieces about as long as a byte-pair tokenizer's: short words whole, long ones and numbers in parts, layout together.
_PIECES = re.compile(r" ?[^\W\d_]{1,12}| ?\d{1,3}|[ \t]+|\n+| ?[^\w\s]{1,4}|\w|\s")


def pieces(text: str) -> list[str]:
    """Text in pieces about as long as a tokenizer's; together they are the text."""
    return _PIECES.findall(text)


def hashed_tokens(text: str, n_vocab: int) -> list[int]:
    """Token ids for a model without a tokenizer: equal pieces of text get equal ids, so text keeps its statistics."""
    return [zlib.crc32(piece.encode(errors="replace")) % n_vocab for piece in pieces(text)]


def tokenized_session(
    session: Recorded,
    part: Part,
    turns: Iterator[TextTurn],
    tokenize: Tokenize,
    max_tokens: int | None,
    max_turns: int | None,
) -> Session:
    """A recorded session in tokens, as far as a context of `max_tokens` and `max_turns` go."""
    found: list[Turn] = []
    text = ""
    context: list[int] = []  # of `text`
    for turn in turns:
        if max_turns is not None and len(found) >= max_turns:
            break
        continues = bool(found) and turn.prompt.startswith(text)
        prompt = [*context, *tokenize(turn.prompt[len(text) :])] if continues else list(tokenize(turn.prompt))
        output = list(tokenize(turn.answer))
        if not output:
            continue
        # The last token emitted was not read, and at least one token has to be.
        reused = min(prefix_length(context[:-1], prompt), len(prompt) - 1)
        found.append(Turn(turn.kind, reused, tuple(prompt[reused:]), tuple(output)))
        context, text = prompt + output, turn.prompt + turn.answer
        if max_tokens is not None and len(context) > max_tokens:
            break
    return Session(str(session["id"]), domain_of(session), part, tuple(found))


def shaped_session(
    name: str, part: Part, shape: Sequence[tuple[Kind, int, int, int]], stream: Iterator[int]
) -> Session:
    """A session of which only the lengths are known, filled with the tokens of `stream`.

    shape  (kind, reused, new, output) of each turn
    """
    turns: list[Turn] = []
    context = shape[0][1] if shape else 0
    prefix = tuple(next(stream) for _ in range(context))
    for kind, reused, new, output in shape:
        kept = min(reused, context)
        read = tuple(next(stream) for _ in range(max(1, new)))
        turns.append(Turn(kind, kept, read, tuple(next(stream) for _ in range(max(1, output)))))
        context = turns[-1].context
    return Session(name, "log", part, tuple(turns), prefix)
