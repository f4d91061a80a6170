"""The process that loads a model: `python -m ostinatod.bench.child JOB.json`. One job, one model, one process.

A job names what to do ("tokenize", "count", "replay" or "sweep"), the engine's libraries and the model's file. Events
are told as JSON objects on stdout, one a line, each with its "event"; a job that fails tells "failed" last, with what
the engine logged. Imports nothing beyond the bindings, numpy and the standard library.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from ostinatod.bench.placed_model import EngineLog, PlacedModel
from ostinatod.bench.replay import count_session, replay_session, warm_up
from ostinatod.bench.sessions import Limits, Part, Session, of_part, read_sessions, write_sessions
from ostinatod.bench.settings import from_json
from ostinatod.bench.sweep import sweep
from ostinatod.bench.tokens import hashed_tokens, shaped_session, tokenized_session
from ostinatod.bench.traces import Render, render_plainly, text_turns
from ostinatod.bindings import Bindings, load_bindings
from ostinatod.errors import EngineError, EngineLoadError

LOG_TAIL = 3000
"""Characters of the engine's log that tell why a job failed."""

Job = Mapping[str, Any]


def main(job_file: str) -> None:
    """The program."""
    job: Job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    try:
        bindings = load_bindings(Path(job["libraries"]))
    except EngineError as error:
        tell("failed", kind=error.kind, reason=str(error), log="")
        return
    core: Any = bindings.llama_cpp.llama_cpp
    log = EngineLog(core)
    core.llama_backend_init()
    try:
        _JOBS[job["do"]](bindings, job, log)
    except EngineError as error:
        tell("failed", kind=error.kind, reason=error.message, log=log.text[-LOG_TAIL:])
    except BaseException:
        sys.stderr.write(log.text[-LOG_TAIL:])
        raise


def tell(event: str, **values: Any) -> None:
    """One event for the process that waits for it."""
    sys.stdout.write(json.dumps({"event": event, **values}) + "\n")
    sys.stdout.flush()


def _tokenize(bindings: Bindings, job: Job, log: EngineLog) -> None:
    """Recorded sessions, or lengths from a log, as tokens of the model, within the limits."""
    core: Any = bindings.llama_cpp.llama_cpp
    params = core.llama_model_default_params()
    params.vocab_only = True
    model = core.llama_model_load_from_file(str(job["model"]).encode(), params)
    if not model:
        raise EngineLoadError(f"the vocabulary of {job['model']} cannot be read")
    vocab = core.llama_model_get_vocab(model)
    has_tokenizer = core.llama_vocab_type(vocab) != core.LLAMA_VOCAB_TYPE_NONE
    n_vocab = core.llama_vocab_n_tokens(vocab)
    render = _own_render(bindings, core.llama_model_chat_template(model, None)) if has_tokenizer else render_plainly

    def tokenize(text: str) -> Sequence[int]:
        return _own_tokens(core, vocab, text) if has_tokenizer else hashed_tokens(text, n_vocab)

    limits = Limits(**job["limits"])
    sessions: list[Session] = []
    for item in job["recorded"]:
        turns = text_turns(item["session"], render)
        # Scaled sessions are cut after scaling, when they are shorter.
        most = None if limits.tokens is None else int(limits.tokens / limits.scale)
        sessions.append(tokenized_session(item["session"], item["part"], turns, tokenize, most, limits.turns))
        tell("tokenized", session=sessions[-1].id)
    if job["shapes"]:
        filling = {part: _endless([*of_part(sessions, part)]) for part in get_args(Part)}
        sessions = [
            shaped_session(item["id"], item["part"], [tuple(turn) for turn in item["turns"]], filling[item["part"]])
            for item in job["shapes"]
        ]
    write_sessions(Path(job["out"]), [limits.apply(session) for session in sessions])
    tell("vocabulary", has_tokenizer=has_tokenizer, n_vocab=n_vocab, gpu=bool(core.llama_supports_gpu_offload()))


def _count(bindings: Bindings, job: Job, log: EngineLog) -> None:
    """Routes of sessions, one event each."""
    model = _load(bindings, job, log, counted=True)
    for session in read_sessions(Path(job["sessions"])):
        if session.id in job["only"]:
            tell("counted", **count_session(model, session))


def _replay(bindings: Bindings, job: Job, log: EngineLog) -> None:
    """The first "turns" of sessions, one event each. "done" has how many are known already, by session."""
    model = _load(bindings, job, log, counted=bool(job["hot"]))
    hot = np.load(job["hot"]) if job["hot"] else None
    limits = Limits(turns=job["turns"])
    sessions = [limits.apply(item) for item in read_sessions(Path(job["sessions"])) if item.id in job["only"]]
    warm_up(model, sessions[0], job["n_ctx"])
    for session in sessions:
        done = job["done"].get(session.id, 0)
        if done < len(session.turns):
            replay_session(model, session, hot, _telling(session.id), done=done, until=job["until"])


def _sweep(bindings: Bindings, job: Job, log: EngineLog) -> None:
    """Costs of single tokens and prefills behind contexts of several depths, one event for each depth."""
    model = _load(bindings, job, log, counted=False)
    sessions = [item for item in read_sessions(Path(job["sessions"])) if item.id in job["only"]]
    tokens = _endless(sessions)
    for row in sweep(model, tokens, job["depths"], job["lengths"], job["decode_tokens"], job["repeats"], job["until"]):
        tell("depth", **row)


def _load(bindings: Bindings, job: Job, log: EngineLog, *, counted: bool) -> PlacedModel:
    setting = from_json(job["setting"])
    model = PlacedModel(
        bindings,
        Path(job["model"]),
        setting,
        n_ctx=job["n_ctx"],
        on_gpu=job["on_gpu"],
        hot=np.load(job["hot"]) if job["hot"] else None,
        counted=counted,
    )
    placed: dict[str, int] = {}
    if job["hot"]:
        status = bindings.residency_status(model.handle)
        placed = {
            "hot_experts": status.n_hot,
            "pool_bytes": status.pool_bytes,
            "staging_bytes": sum(device.staging_bytes for device in model.devices()),
        }
    tell("loaded", load_s=round(model.load_s, 2), gpu_bytes=log.gpu_bytes(), **placed)
    return model


def _telling(session: str) -> Callable[[int, Mapping[str, Any]], None]:
    def on_turn(number: int, values: Mapping[str, Any]) -> None:
        tell("turn", session=session, turn=number, **values)

    return on_turn


def _own_render(bindings: Bindings, template: bytes | None) -> Render:
    """Conversations in the model's own template."""
    if template is None:
        return render_plainly
    formatter: Any = bindings.llama_cpp.llama_chat_format.Jinja2ChatFormatter(
        template.decode(), eos_token="", bos_token=""
    )

    def render(session: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], is_open: bool) -> str:
        formatter.add_generation_prompt = is_open
        shown = [{**message, "content": message.get("content") or ""} for message in messages]
        return str(formatter(messages=shown, tools=session.get("tools") or None).prompt)

    return render


def _own_tokens(core: Any, vocab: Any, text: str) -> list[int]:
    raw = text.encode(errors="replace")
    room = len(raw) + 8
    tokens = (core.llama_token * room)()
    count = core.llama_tokenize(vocab, raw, len(raw), tokens, room, False, True)
    return list(tokens[:count])


def _endless(sessions: Sequence[Session]) -> Iterator[int]:
    """What the sessions read and emit, over and over."""
    tokens = [token for session in sessions for turn in session.turns for token in (*turn.new, *turn.output)]
    return itertools.cycle(tokens)


_JOBS: Mapping[str, Callable[[Bindings, Job, EngineLog], None]] = {
    "tokenize": _tokenize,
    "count": _count,
    "replay": _replay,
    "sweep": _sweep,
}


if __name__ == "__main__":
    main(*sys.argv[1:])
