"""The count of a prompt's tokens as an answer: the engine renders and counts the prompt that it would be asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ostinatod.api.answer import PassedAnswer


class CountAnswer(PassedAnswer):
    """`extra` is what the dialect says beside the number."""

    def __init__(self, extra: Mapping[str, Any]) -> None:
        self._extra = extra

    def whole(self, content: bytes) -> bytes:
        """The number alone."""
        return json.dumps({**self._extra, "input_tokens": json.loads(content)["input_tokens"]}).encode()
