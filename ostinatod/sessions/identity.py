"""The ids that clients give their sessions, and what of them is kept: a keyed hash.

In order: a header that names the session, the prompt cache's key, then what is said about the user if a session is in
it. A bare `user` names a person, who has many sessions; it is no session id.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

SessionSource = Literal["header", "body", "prefix"]

KEY_BYTES = 32
SESSION_DIGITS = 16

SESSION_HEADERS = (
    "x-session-id",
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "x-session-affinity",
    "x-conversation-id",
    "conversation_id",
)
_BODY_FIELDS = ("session_id", "prompt_cache_key", "conversation_id")
_METADATA_FIELDS = ("session_id", "conversation_id", "chat_id")
_SESSION_IN_USER = re.compile(r"(?:^|_)session_([\w-]{8,})$")
MAX_ID_CHARS = 1024


def explicit_session(headers: Mapping[str, str], body: Mapping[str, Any]) -> tuple[SessionSource, str] | None:
    """The session that a client names, and where it does; None where it does not.

    headers   with lower-case names, or a mapping that ignores case
    """
    for name in SESSION_HEADERS:
        if value := _id(headers.get(name)):
            return "header", value
    for name in _BODY_FIELDS:
        if value := _id(body.get(name)):
            return "body", value
    metadata = body.get("metadata")
    if isinstance(metadata, Mapping):
        for name in _METADATA_FIELDS:
            if value := _id(metadata.get(name)):
                return "body", value
        if value := session_of_user(metadata.get("user_id")):
            return "body", value
    if value := session_of_user(body.get("user")):
        return "body", value
    return None


def session_of_user(user: Any) -> str | None:
    """The session inside a user id: Claude Code's `user_…_account_…_session_ID`, or JSON with a `session_id`."""
    text = _id(user)
    if text is None:
        return None
    if found := _SESSION_IN_USER.search(text):
        return found[1]
    if text.startswith("{"):
        try:
            told = json.loads(text)
        except (ValueError, RecursionError):
            return None
        return _id(told.get("session_id")) if isinstance(told, dict) else None
    return None


def session_hash(key: bytes, value: str) -> str:
    """What stands for a client's session id everywhere: without the key it cannot be computed or undone."""
    digest = hmac.new(key, value.encode("utf-8", errors="surrogatepass"), hashlib.sha256)
    return digest.hexdigest()[:SESSION_DIGITS]


def random_session() -> str:
    """A name for a session that the client does not name."""
    return secrets.token_hex(SESSION_DIGITS // 2)


def read_or_create_key(file: Path) -> bytes:
    """The key for `session_hash`, readable by the owner only; made on first use. Raises OSError.

    A file of another size is replaced: sessions logged before then count as other ones.
    """
    try:
        key = file.read_bytes()
    except FileNotFoundError:
        key = b""
    return key if len(key) == KEY_BYTES else replace_key(file)


def replace_key(file: Path) -> bytes:
    """A new key: nothing that was logged under the one before can be linked to a session id any more."""
    key = secrets.token_bytes(KEY_BYTES)
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(key)
    temporary.replace(file)
    return key


def _id(value: Any) -> str | None:
    return value.strip()[:MAX_ID_CHARS] or None if isinstance(value, str) else None
