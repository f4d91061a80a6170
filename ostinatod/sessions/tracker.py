"""Matches requests to sessions and to the prompt that each continues. Bounded memory; not thread-safe; no I/O.

A session is named by its client, or is what shares the longest run of messages with the request. Within a session there
may be several *threads* of conversation: sub-agents run under their parent's id with prompts of their own, and a prompt
is only compared with the thread that it continues.

A request without an id continues a thread if it repeats all of it, or parts from it after at least one answer (the user
went back and edited). Less is no evidence: conversations of one agent all begin alike, some with the same greeting.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ostinatod.sessions.conversation import Conversation, has_answer, read_conversation
from ostinatod.sessions.identity import SessionSource, random_session
from ostinatod.sessions.prefix_break import Difference, PrefixBreak, first_difference, judge_break
from ostinatod.sessions.turn_kind import TurnKind, turn_kind

MAX_SESSIONS = 256
MAX_PARTS = 200_000
"""Messages remembered over all sessions: about 20 MB."""
MAX_THREADS = 8


@dataclass(slots=True)
class _Prompt:
    conversation: Conversation
    tokens: int | None = None
    """Once the engine has told, which may be after the next prompt has arrived."""


@dataclass(slots=True)
class _Thread:
    latest: _Prompt


@dataclass(slots=True)
class _Session:
    name: str
    source: SessionSource
    turns: int
    threads: list[_Thread] = field(default_factory=list)
    """The latest last."""

    @property
    def parts(self) -> int:
        return sum(len(thread.latest.conversation.messages) for thread in self.threads)

    def best_thread(self, conversation: Conversation) -> tuple[_Thread | None, int]:
        """The thread that shares most messages, the later of equals, and how many; None if none shares any."""
        best, most = None, 0
        for thread in self.threads:
            shared = thread.latest.conversation.shared_messages(conversation)
            if shared and shared >= most:
                best, most = thread, shared
        return best, most


@dataclass(frozen=True, slots=True)
class Turn:
    """A request's place in its session."""

    session: str | None
    """A keyed hash or a random number; None for a side request without an id and for what is no conversation."""
    source: SessionSource | None
    number: int | None
    """Counts the turns of the session from 1; None for requests that are no turn."""
    kind: TurnKind
    difference: Difference | None = None
    prompt: _Prompt | None = None
    previous: _Prompt | None = None
    """The prompt that this one continues."""


class SessionTracker:
    """`key` keys the hashes of messages; they are never stored, so it may be made anew by each process.

    turns_of   the turns that an earlier run of the daemon logged for (model, session), 0 if none
    """

    def __init__(
        self,
        key: bytes,
        turns_of: Callable[[str, str], int],
        *,
        max_sessions: int = MAX_SESSIONS,
        max_parts: int = MAX_PARTS,
    ) -> None:
        self._key = key
        self._turns_of = turns_of
        self._max_sessions = max_sessions
        self._max_parts = max_parts
        self._sessions: OrderedDict[tuple[str, str], _Session] = OrderedDict()
        self._completions: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def identify(
        self, model: str, session: str | None, source: SessionSource | None, request: Mapping[str, Any]
    ) -> Turn:
        """The place of a request that has just arrived, and remembers its prompt as the latest of its thread.

        session   the hash of the client's own id, None where it sends none
        """
        kind = turn_kind(request)
        if not request.get("messages"):
            return self._no_turn(model, session, source, request)
        conversation = read_conversation(request, self._key)
        if kind == "side" or (session and self._is_aside(model, session, conversation)):
            return Turn(session, source if session else None, None, "side")
        if session is not None:
            found = self._named(model, session, source or "header")
        else:
            found = self._by_prefix(model, conversation) or self._create(model, random_session(), "prefix", 0)
        self._sessions.move_to_end((model, found.name))
        turn = _take_turn(found, conversation, kind)
        self._trim()
        return turn

    def settle(self, turn: Turn, prompt_tokens: int | None, reused_tokens: int | None) -> PrefixBreak | None:
        """What the engine has told about the prompt; the break with the one before, if anything was lost."""
        if turn.prompt is None:
            return None
        turn.prompt.tokens = prompt_tokens
        return judge_break(turn.difference, turn.previous.tokens if turn.previous else None, reused_tokens)

    def forget(self) -> None:
        """Forget every session."""
        self._sessions.clear()
        self._completions.clear()

    def _no_turn(
        self, model: str, session: str | None, source: SessionSource | None, request: Mapping[str, Any]
    ) -> Turn:
        """Completions without a conversation, such as an editor's, make one session per model and run of the daemon."""
        if session is None and request.get("prompt") is not None:
            session, source = self._completions.setdefault(model, random_session()), "prefix"
        return Turn(session, source, None, "other")

    def _is_aside(self, model: str, name: str, conversation: Conversation) -> bool:
        """Whether a request of a session with tools has none and shares nothing with it."""
        session = self._sessions.get((model, name))
        if session is None or conversation.has_tools or session.best_thread(conversation)[0] is not None:
            return False
        return any(thread.latest.conversation.has_tools for thread in session.threads)

    def _named(self, model: str, name: str, source: SessionSource) -> _Session:
        known = self._sessions.get((model, name))
        return known or self._create(model, name, source, self._turns_of(model, name))

    def _by_prefix(self, model: str, conversation: Conversation) -> _Session | None:
        best, most = None, 0
        for (of_model, _), session in self._sessions.items():
            if of_model != model or session.source != "prefix":
                continue
            thread, shared = session.best_thread(conversation)
            if thread is not None and shared >= most and _is_evidence(thread.latest.conversation, conversation, shared):
                best, most = session, shared
        return best

    def _create(self, model: str, name: str, source: SessionSource, turns: int) -> _Session:
        session = self._sessions[(model, name)] = _Session(name, source, turns)
        return session

    def _trim(self) -> None:
        parts = sum(session.parts for session in self._sessions.values())
        while len(self._sessions) > 1 and (len(self._sessions) > self._max_sessions or parts > self._max_parts):
            _, oldest = self._sessions.popitem(last=False)
            parts -= oldest.parts


def _is_evidence(known: Conversation, conversation: Conversation, shared: int) -> bool:
    if has_answer(part.role for part in known.messages[:shared]):
        return True
    return shared == len(known.messages) and known.system.digest == conversation.system.digest


def _take_turn(session: _Session, conversation: Conversation, kind: TurnKind) -> Turn:
    thread, shared = session.best_thread(conversation)
    if thread is None and conversation.has_answer and session.threads:
        # Not a new thread: its beginning was rewritten, as when a client drops or summarises old messages.
        system = conversation.system.digest
        alike = [known for known in session.threads if known.latest.conversation.system.digest == system]
        thread = (alike or session.threads)[-1]
    prompt = _Prompt(conversation)
    if thread is None:
        session.threads = [*session.threads[-(MAX_THREADS - 1) :], _Thread(prompt)]
        session.turns += 1
        return Turn(session.name, session.source, session.turns, kind, None, prompt)
    previous = thread.latest
    is_retry = shared == len(previous.conversation.messages) == len(conversation.messages)
    session.turns += 0 if is_retry else 1
    session.threads.remove(thread)
    session.threads.append(thread)
    thread.latest = prompt
    difference = first_difference(previous.conversation, conversation)
    return Turn(session.name, session.source, session.turns, kind, difference, prompt, previous)
