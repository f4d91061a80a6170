"""Streamed answers: server-sent events and newline-delimited JSON, cut at any byte.

Both split on bytes. Splitting decoded text would also break at U+2028 and other separators that JSON may carry
unescaped inside a string.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

DONE = "[DONE]"
"""The data of the event that ends an answer."""

_LINE_END = re.compile(rb"\r\n|\n|\r")


class SseParser:
    """Turns chunks of an event stream into the data of its events; comments and other fields are dropped."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._data: list[bytes] = []
        self._after_cr = False
        self._at_start = True

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The data of each event that `chunk` completes."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if not chunk:
            return
        self._after_cr = chunk.endswith(b"\r")
        *ended, rest = _LINE_END.split(chunk)
        for line in ended:
            self._rest.append(line)
            whole = b"".join(self._rest)
            self._rest.clear()
            if self._at_start:
                whole = whole.removeprefix(b"\xef\xbb\xbf")
                self._at_start = False
            yield from self._line(whole)
        if rest:
            self._rest.append(rest)

    def _line(self, line: bytes) -> Iterator[str]:
        if not line:
            if self._data:
                yield b"\n".join(self._data).decode("utf-8", errors="replace")
                self._data.clear()
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))


def sse_data(chunks: Iterable[bytes]) -> Iterator[str]:
    """The data of every event of a stream, up to and with the `DONE` that ends a whole one."""
    parser = SseParser()
    for chunk in chunks:
        for data in parser.feed(chunk):
            yield data
            if data == DONE:
                return


def ndjson_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Every line of a stream that holds something, also a last one without its line end."""
    rest = b""
    for chunk in chunks:
        *ended, rest = (rest + chunk).split(b"\n")
        for line in ended:
            if line.strip():
                yield line.decode("utf-8", errors="replace")
    if rest.strip():
        yield rest.decode("utf-8", errors="replace")
