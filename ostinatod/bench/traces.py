"""Recorded sessions: finding them in files, choosing development and held-out ones, and their conversations as text.

A trace file holds one session per line of JSON, gzipped or not, or is one session as a JSON object: `id`,
`task_domain`, `tools` and `messages` as in OpenAI's chat completions, and `meta` with the task (`task_id` or
`instance_id`).
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostinatod.bench.sessions import Kind, Part
from ostinatod.errors import RequestError

SAMPLE = Path(__file__).with_name("sample.jsonl.gz")
"""The bundled sessions; `part` is fixed in each."""

SEED = 7

Recorded = Mapping[str, Any]
Render = Callable[[Recorded, Sequence[Mapping[str, Any]], bool], str]
"""(session, messages, whether the model answers next) to the text that the model reads."""


@dataclass(frozen=True, slots=True)
class TextTurn:
    """One assistant turn: all text before it, and what it says."""

    kind: Kind
    prompt: str
    answer: str


def read_traces(file: Path) -> list[Recorded]:
    """The sessions in a trace file in which a model answers a user. Raises RequestError where there is none."""
    try:
        raw = file.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()
        lines = [text] if text.lstrip().startswith("{") and _is_one_object(text) else text.splitlines()
        sessions = [json.loads(line) for line in lines if line.strip()]
        for session in sessions:
            _require_messages(session)
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as error:
        raise RequestError(
            f"{file} is not a trace: {error}",
            hint="Expected JSON lines with id, tools and messages, as docs/benchmark.md describes",
        ) from error
    answered = [session for session in sessions if any(_answers(session["messages"]))]
    if not answered:
        raise RequestError(f"{file} holds no session in which a model answers a user")
    return answered


def choose(sessions: Sequence[Recorded], development: int, held_out: int) -> list[tuple[Part, Recorded]]:
    """One session per task, and no task on both sides; domains take turns, so that each part has some of each.

    Sessions that name their part keep it. Raises RequestError where a part would be empty.
    """
    if all("part" in session for session in sessions):
        wanted: dict[Part, int] = {"development": development, "held-out": held_out}
        named: list[tuple[Part, Recorded]] = []
        for part, count in wanted.items():
            of_part = [session for session in sessions if session["part"] == part]
            if not of_part:
                raise RequestError(f"expected development and held-out sessions, found no {part} one")
            named += [(part, session) for session in _by_turns(of_part)[:count]]
        return named
    drawn = _by_turns(sessions)
    held_out = min(held_out, max(1, len(drawn) - 1))
    if len(drawn) < 2:
        raise RequestError(
            f"expected sessions of at least two tasks, found {len(drawn)}: one to learn from, another to time",
            hint="Add sessions to the file, or replay the bundled ones: --sessions 2",
        )
    development_drawn = drawn[held_out : held_out + development]
    return [*(("development", item) for item in development_drawn), *(("held-out", item) for item in drawn[:held_out])]


def choose_timed(sessions: Sequence[Recorded], held_out: int) -> list[Recorded]:
    """Those that `choose` would hold out, where nothing has to be learned: a single one will do."""
    named = [session for session in sessions if session.get("part") == "held-out"]
    return _by_turns(named or sessions)[:held_out]


def text_turns(session: Recorded, render: Render) -> Iterator[TextTurn]:
    """The turns that a model had to write; a fixed greeting before anyone has asked is none."""
    messages = session["messages"]
    is_first = True
    for i in _answers(messages):
        message = messages[i]
        prompt = render(session, messages[:i], True)
        whole = render(session, messages[: i + 1], False)
        # Templates that rewrite the past leave no other trace of the answer than its own words.
        answer = whole[len(prompt) :] if whole.startswith(prompt) else _said(message)
        kind: Kind = "first" if is_first else "after_tool" if messages[i - 1]["role"] == "tool" else "after_user"
        yield TextTurn(kind, prompt, answer.rstrip("\n"))
        is_first = False


def render_plainly(session: Recorded, messages: Sequence[Mapping[str, Any]], is_open: bool) -> str:
    """ChatML with tools as JSON, for models without a template and servers whose template is not known."""
    parts = [f"<|im_start|>system\n# Tools\n{json.dumps(session.get('tools') or [])}<|im_end|>\n"]
    parts += [f"<|im_start|>{message['role']}\n{_said(message)}<|im_end|>\n" for message in messages]
    return "".join(parts) + ("<|im_start|>assistant\n" if is_open else "")


def task_of(session: Recorded) -> str:
    """What a session was about: several recordings of one task are no independent evidence."""
    meta = session.get("meta") or {}
    return str(meta.get("task_id") or meta.get("instance_id") or session.get("id"))


def domain_of(session: Recorded) -> str:
    """The kind of work, "" where the recording does not say."""
    return str(session.get("task_domain") or "")


def _answers(messages: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """Places of the messages that a model had to write."""
    is_asked = False
    for i, message in enumerate(messages):
        if message["role"] == "assistant" and is_asked:
            yield i
        is_asked = is_asked or message["role"] == "user"


def _said(message: Mapping[str, Any]) -> str:
    calls = [
        f"<tool_call>\n{json.dumps(call.get('function'))}\n</tool_call>" for call in message.get("tool_calls") or []
    ]
    return "\n".join([str(message.get("content") or ""), *calls]).strip("\n")


def _by_turns(sessions: Sequence[Recorded]) -> list[Recorded]:
    """One session of each task, drawn by a fixed seed, domain after domain in turn."""
    by_task: dict[str, dict[str, list[Recorded]]] = defaultdict(lambda: defaultdict(list))
    for session in sessions:
        by_task[domain_of(session)][task_of(session)].append(session)
    draw = random.Random(SEED)
    queues = []
    for domain in sorted(by_task):
        tasks = sorted(by_task[domain])
        draw.shuffle(tasks)
        queues.append([draw.choice(sorted(by_task[domain][task], key=lambda item: str(item["id"]))) for task in tasks])
    longest = max(map(len, queues), default=0)
    return [queue[n] for n in range(longest) for queue in queues if n < len(queue)]


def _is_one_object(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _require_messages(session: Any) -> None:
    for key in ("id", "messages"):
        if key not in session:
            raise ValueError(f"a session has no {key!r}")
    if not all(isinstance(message.get("role"), str) for message in session["messages"]):
        raise ValueError("a message has no role")
