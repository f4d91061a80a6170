"""The figures that the engine reports at the end of an answer, read from what passes by."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ostinatod.api.observer import Figures
from ostinatod.client_streams import DONE, SseParser

_MARKS = (b'"timings"', b'"finish_reason":"')
"""In the engine's compact JSON; inside a text the quotation marks would be escaped."""


class FiguresReader:
    """Looks into the few events that can tell something, and leaves the others unread."""

    def __init__(self) -> None:
        self._finish_reason: str | None = None
        self._timings: Mapping[str, Any] = {}

    def events(self, events: bytes) -> None:
        """Whole server-sent events of a streamed answer."""
        if any(mark in events for mark in _MARKS):
            for data in SseParser().feed(events):
                if data != DONE:
                    self._read(json.loads(data))

    def whole(self, content: bytes) -> None:
        """An answer that is not streamed."""
        if any(mark in content for mark in _MARKS):
            self._read(json.loads(content))

    @property
    def tell_the_end(self) -> bool:
        """Whether the engine has told why the answer ended; only its figures can follow."""
        return self._finish_reason is not None

    @property
    def figures(self) -> Figures:
        """What was told."""
        cached = _number(self._timings.get("cache_n"))
        read = _number(self._timings.get("prompt_n"))
        return Figures(
            prompt_tokens=cached + read if cached is not None and read is not None else None,
            cached_tokens=cached,
            output_tokens=_number(self._timings.get("predicted_n")),
            finish_reason=self._finish_reason,
            prompt_ms=self._timings.get("prompt_ms"),
            decode_ms=self._timings.get("predicted_ms"),
        )

    def _read(self, told: Mapping[str, Any]) -> None:
        timings = told.get("timings")
        self._timings = timings if isinstance(timings, dict) else self._timings
        for choice in told.get("choices") or ():
            self._finish_reason = choice.get("finish_reason") or self._finish_reason


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None
