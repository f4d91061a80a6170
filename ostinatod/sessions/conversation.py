"""A conversation as keyed hashes: enough to see what two requests share, and nothing of what they say."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from typing import Any

from ostinatod.sessions.canonical import canonical_bytes, canonical_message, canonical_settings

DIGEST_BYTES = 16
_SYSTEM_ROLES = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of a prompt."""

    digest: bytes
    size: int
    """Bytes in canonical form: stands for its share of the prompt's tokens."""
    role: str = ""
    """Of a message: "user", "assistant", "tool", "system"; "" for anything else."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The parts of one prompt in the order in which templates render them."""

    settings: Part
    system: Part
    """The leading system messages."""
    tools: Part
    messages: tuple[Part, ...]
    has_tools: bool

    @property
    def has_answer(self) -> bool:
        """Whether the assistant has answered."""
        return has_answer(part.role for part in self.messages)

    @property
    def size(self) -> int:
        """Bytes of all that is rendered."""
        return self.system.size + self.tools.size + sum(part.size for part in self.messages)

    def shared_messages(self, other: Conversation) -> int:
        """How many messages both begin with."""
        pairs = zip(self.messages, other.messages, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0].digest == pair[1].digest, pairs))


def system_messages(messages: Sequence[Any]) -> Sequence[Any]:
    """The leading messages that are not part of the exchange."""
    return list(takewhile(lambda message: role_of(message) in _SYSTEM_ROLES, messages))


def has_answer(roles: Iterable[str]) -> bool:
    """Whether an assistant's message follows another one. What it says before anyone has spoken is a fixed greeting."""
    rest = dropwhile(lambda role: role == "assistant", roles)
    return any(role == "assistant" for role in rest)


def role_of(message: Any) -> str:
    """The role of a chat message; "" where it has none."""
    role = message.get("role") if isinstance(message, Mapping) else None
    return role if isinstance(role, str) else ""


def read_conversation(request: Mapping[str, Any], key: bytes) -> Conversation:
    """The conversation that a chat request continues; a request with a bare `prompt` is one message of a user.

    key   1 to 64 bytes; hashes under different keys have nothing in common
    """

    def part(raw: bytes, role: str = "") -> Part:
        return Part(hashlib.blake2b(raw, digest_size=DIGEST_BYTES, key=key).digest(), len(raw), role)

    found = request.get("messages")
    messages = found if isinstance(found, list) else [{"role": "user", "content": request.get("prompt")}]
    system = system_messages(messages)
    tools = request.get("tools") or []
    return Conversation(
        settings=part(canonical_settings(request)),
        system=part(b"".join(canonical_message(message) for message in system)),
        tools=part(canonical_bytes(tools) if tools else b""),
        messages=tuple(part(canonical_message(message), role_of(message)) for message in messages[len(system) :]),
        has_tools=bool(tools),
    )
