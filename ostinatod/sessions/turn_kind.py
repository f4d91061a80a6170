"""What a request is to the user who waits for it: a first question, the turn after a tool's output, an aside.

Side requests are those that agents send beside the conversation: titles, topic detection, suggestions. They read
another prompt, nobody waits for them, and they would blur a session's figures. Pure functions of one request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

from ostinatod.sessions.canonical import message_text
from ostinatod.sessions.conversation import has_answer, role_of, system_messages

TurnKind = Literal["first", "after_tool", "after_user", "side", "other"]
TURN_KINDS: tuple[TurnKind, ...] = get_args(TurnKind)

_TOOL_ROLES = ("tool", "function")
_SIDE_PROPERTIES = frozenset(
    {"emoji", "follow_ups", "isNewTopic", "name", "queries", "suggestion", "suggestions", "tags", "title", "topic"}
)
_LOOKED_AT_CHARS = 400
_SIDE_TASKS = re.compile(
    r"\btitle generator\b"
    r"|\bgenerat\w+ (?:a |an |the )?(?:[\w-]+,? ){0,6}titles?\b"
    r"|\bnew conversation topic\b"
    r"|\bsummari[sz]e this (?:coding )?conversation in (?:under|less than)\b"
    r"|^### task:\s+(?:generate|suggest|analy[sz]e|determine)\b",
    re.IGNORECASE,
)
"""How the agents that we know begin the prompt of a side request."""
_SUGGESTION_MARK = "[SUGGESTION MODE"
"""Claude Code's request for the user's next words: the whole conversation with its tools, and this after it."""


def turn_kind(request: Mapping[str, Any]) -> TurnKind:
    """The kind of a request by itself, "other" where it is no conversation."""
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        return "other"
    if is_side_request(request):
        return "side"
    rest = messages[len(system_messages(messages)) :]
    # Agents append reminders as system messages behind what the turn answers.
    roles = [role for message in rest if (role := role_of(message)) not in ("system", "developer")]
    if roles and roles[-1] in _TOOL_ROLES:
        return "after_tool"
    if not has_answer(roles):
        return "first"
    return "after_user" if roles[-1] == "user" else "other"


def is_side_request(request: Mapping[str, Any]) -> bool:
    """Whether the request shows by itself that it is beside the conversation."""
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        return False
    last = message_text(messages[-1])[:_LOOKED_AT_CHARS].strip()
    if last.startswith(_SUGGESTION_MARK):
        return True
    if request.get("tools"):
        return False
    if request.get("max_tokens") == 1 or _wants_only_labels(request.get("response_format")):
        return True
    leading = [message_text(message)[:_LOOKED_AT_CHARS].strip() for message in system_messages(messages)]
    return any(_SIDE_TASKS.search(text) for text in (*leading, last))


def _wants_only_labels(response_format: Any) -> bool:
    """Whether the answer is to be an object with nothing in it but a title and the like."""
    if not isinstance(response_format, Mapping):
        return False
    named = response_format.get("json_schema")
    schema = named.get("schema") if isinstance(named, Mapping) else response_format.get("schema")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return isinstance(properties, Mapping) and bool(properties) and _SIDE_PROPERTIES.issuperset(properties)
