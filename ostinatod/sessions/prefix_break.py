"""Where a prompt stops being the continuation of the one before, and what re-reading it costs. Pure functions.

The KV cache holds the previous prompt; whatever follows the first difference is read again. The difference is found in
the messages, its cost in what the engine says it reused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ostinatod.sessions.conversation import Conversation

BreakReason = Literal["template", "system", "tools", "message", "rendering", "evicted"]
BREAK_REASONS: tuple[BreakReason, ...] = get_args(BreakReason)

UNTOUCHED_TOKENS = 16
"""A template renders the end of a prompt, where the answer begins, in another way once an answer follows."""

_SENTENCES = {
    "template": "what the chat template is given beside messages changed, such as the reasoning effort",
    "system": "the system prompt changed",
    "tools": "the tools changed",
    "rendering": "the same messages were rendered in another way, such as without earlier reasoning",
    "evicted": "the engine no longer had this conversation's prompt",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """The first part in which two prompts differ."""

    reason: BreakReason
    message: int | None
    """Position in the previous prompt, from 1, the system prompt not counted; None for other parts."""
    kept: float
    """Share of the previous prompt before it, 0 to 1, by size."""


@dataclass(frozen=True, slots=True)
class PrefixBreak:
    """A break as it is told and logged."""

    reason: BreakReason
    message: int | None
    lost_tokens: int | None
    """Tokens of the previous prompt that had to be read again; None where that is not known."""

    @property
    def detail(self) -> str:
        """One sentence for people."""
        return break_detail(self.reason, self.message)


def break_detail(reason: str, message: int | None) -> str:
    """The sentence for a reason; "" for one that is not known."""
    if reason == "message":
        return f"message {message} of the previous prompt changed" if message else "an earlier message changed"
    return _SENTENCES.get(reason, "")


def first_difference(previous: Conversation, current: Conversation) -> Difference | None:
    """What differs first in the order of rendering; None where `current` continues `previous`."""
    if previous.settings.digest != current.settings.digest:
        return Difference("template", None, 0.0)
    if previous.system.digest != current.system.digest:
        return Difference("system", None, 0.0)
    size = max(previous.size, 1)
    if previous.tools.digest != current.tools.digest:
        return Difference("tools", None, previous.system.size / size)
    shared = previous.shared_messages(current)
    if shared == len(previous.messages):
        return None
    kept = previous.system.size + previous.tools.size + sum(part.size for part in previous.messages[:shared])
    return Difference("message", shared + 1, kept / size)


def judge_break(
    difference: Difference | None, previous_tokens: int | None, reused_tokens: int | None
) -> PrefixBreak | None:
    """What broke, given how many tokens the previous prompt had and how many of them the engine reused.

    None where nothing was lost: a template may leave out just what differs. Without the engine's numbers only a
    difference tells, and what it costs is estimated from sizes.
    """
    if previous_tokens is None:
        return PrefixBreak(difference.reason, difference.message, None) if difference else None
    if reused_tokens is None:
        if difference is None:
            return None
        return PrefixBreak(difference.reason, difference.message, round(previous_tokens * (1 - difference.kept)))
    lost = previous_tokens - reused_tokens
    if lost <= UNTOUCHED_TOKENS:
        return None
    if difference is not None:
        return PrefixBreak(difference.reason, difference.message, lost)
    return PrefixBreak("evicted" if reused_tokens <= UNTOUCHED_TOKENS else "rendering", None, lost)
