"""Sessions over HTTP against any server with OpenAI's completions: fixed lengths in place of forced tokens.

A server chooses its own tokens, so each turn asks for exactly as many as the recording has, and continues the
conversation with what the server itself has said: its context is then reused as in the recording. Conversations are
written as plain ChatML, the same for every server. Times are the client's (paper 4.1).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx

from ostinatod.bench.http_sessions import ANY_VOCABULARY, HttpSession
from ostinatod.bench.results import TurnResult
from ostinatod.bench.tokens import hashed_tokens
from ostinatod.errors import EngineError

CONNECT_S = 5.0
_ONCE = {"Connection": "close"}
"""llama.cpp's server ends connections that are kept open, at times just as they are used again."""


def replay_over_http(
    client: httpx.Client,
    model: str,
    session: HttpSession,
    most_tokens: int | None,
    setting: str,
    on_turn: Callable[[TurnResult], None],
) -> None:
    """Replay a session and hand on each turn, as far as a context of `most_tokens` goes.

    What is read is the server's own count, where it tells. Raises EngineError with the server's words where it refuses.
    """
    text = session.prefix
    if text:
        _ask(client, model, text, 1)
    for number, turn in enumerate(session.turns):
        text = text[: round(len(text) * turn.kept)] + turn.added
        if most_tokens and len(hashed_tokens(text, ANY_VOCABULARY)) + turn.output > most_tokens:
            return
        told = _ask(client, model, text, turn.output)
        # Its own words, whatever the recording says: they are what it holds.
        text += told.pop("text")
        on_turn(TurnResult(setting=setting, session=session.id, turn=number, repeat=0, kind=turn.kind, **told))


def _ask(client: httpx.Client, model: str, prompt: str, n_output: int) -> dict[str, Any]:
    """One request, read to its end: its text, tokens and times."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": n_output,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        # llama.cpp and vLLM: an end that the model chooses would change the length.
        "ignore_eos": True,
    }
    pieces: list[str] = []
    usage: dict[str, Any] = {}
    first = last = None
    started = time.perf_counter()
    try:
        with client.stream("POST", "/v1/completions", json=body, headers=_ONCE) as response:
            if response.status_code != httpx.codes.OK:
                raise EngineError(f"HTTP {response.status_code}: {_told(response.read())}")
            for line in response.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise EngineError(f"the server ended the answer: {chunk['error']}")
                usage = chunk.get("usage") or usage
                if chunk.get("choices"):
                    last = time.perf_counter()
                    first = first or last
                    pieces.append(chunk["choices"][0].get("text") or "")
    except httpx.HTTPError as error:
        raise EngineError(f"the server did not answer: {error}") from error
    ended = time.perf_counter()
    first, last = first or ended, last or ended
    output = usage.get("completion_tokens") or n_output
    read = usage.get("prompt_tokens") or len(hashed_tokens(prompt, ANY_VOCABULARY))
    reused = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "text": "".join(pieces),
        "reused": reused,
        "new": read - reused,
        "output": output,
        "ttft_ms": round((first - started) * 1000, 3),
        "tpot_ms": round((last - first) * 1000 / (output - 1), 4) if output > 1 else None,
        "total_ms": round((ended - started) * 1000, 3),
    }


def _told(answer: bytes) -> str:
    """What a server says of its error: OpenAI's message, or the beginning of whatever it is."""
    text = answer.decode(errors="replace")[:500]
    try:
        return str(json.loads(answer)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text
