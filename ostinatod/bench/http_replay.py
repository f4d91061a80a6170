"""Sessions over HTTP against any server with OpenAI's completions: fixed lengths in place of forced tokens.

A server chooses its own tokens, so each turn asks for exactly as many as the recording has, and continues the
conversation with what the server itself has said: its context is then reused as in the recording. Conversations are
written as plain ChatML, the same for every server. Times are the client's (paper 4.1).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx

from ostinatod.bench.results import TurnResult
from ostinatod.bench.sessions import Limits
from ostinatod.bench.tokens import hashed_tokens
from ostinatod.bench.traces import Recorded, TextTurn, render_plainly, text_turns
from ostinatod.errors import EngineError

ANY_VOCABULARY = 1 << 31
CONNECT_S = 5.0
_ONCE = {"Connection": "close"}
"""llama.cpp's server ends connections that are kept open, at times just as they are used again."""


def replay_over_http(
    client: httpx.Client,
    model: str,
    sessions: Sequence[Recorded],
    limits: Limits,
    setting: str,
    on_turn: Callable[[TurnResult], None],
) -> None:
    """Replay sessions one after the other and hand on each turn, as far as `limits` go.

    Outputs are as long as a plain tokenizer would count the recorded ones; what is read is the server's own count,
    where it tells. Raises EngineError with the server's words where it refuses.
    """
    for session in sessions:
        for number, (turn, prompt, n_output) in enumerate(_requests(session, limits)):
            told = _ask(client, model, prompt.text, n_output)
            prompt.said = told.pop("text")
            on_turn(
                TurnResult(setting=setting, session=str(session["id"]), turn=number, repeat=0, kind=turn.kind, **told)
            )


class _Prompt:
    """A conversation so far. `said` is what the server has answered, and replaces the recorded answer."""

    def __init__(self) -> None:
        self.text = ""
        self.said = ""


def _requests(session: Recorded, limits: Limits) -> Iterator[tuple[TextTurn, _Prompt, int]]:
    prompt = _Prompt()
    recorded = ""
    for number, turn in enumerate(text_turns(session, render_plainly)):
        if limits.turns is not None and number >= limits.turns:
            return
        added = turn.prompt[len(recorded) :]
        added = added[: max(1, round(len(added) * limits.scale))]
        prompt.text += prompt.said + added
        n_output = max(1, round(len(hashed_tokens(turn.answer, ANY_VOCABULARY)) * limits.scale))
        n_output = min(n_output, limits.output_tokens or n_output)
        if limits.tokens and len(hashed_tokens(prompt.text, ANY_VOCABULARY)) + n_output > limits.tokens:
            return
        yield turn, prompt, n_output
        recorded = turn.prompt + turn.answer


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
                raise EngineError(f"HTTP {response.status_code}: {response.read().decode(errors='replace')[:500]}")
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
