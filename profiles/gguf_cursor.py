"""Bounded sequential reads from the head of an untrusted binary file.

Reads through one window instead of a memory map: a file that shrinks while it is read is then an error, not a SIGBUS.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from .errors import HeaderError

_WINDOW_BYTES = 1 << 20
_U64 = struct.Struct("<Q")


class Cursor:
    """A position in a file. Every read is checked against the file's size before anything is allocated."""

    def __init__(self, file: BinaryIO, path: Path, file_bytes: int) -> None:
        self.path = path
        self.file_bytes = file_bytes
        self._file = file
        self._window = b""
        self._window_start = 0
        self._at = 0

    @property
    def position(self) -> int:
        """Bytes from the start of the file."""
        return self._window_start + self._at

    @property
    def remaining(self) -> int:
        """Bytes from here to the end of the file."""
        return self.file_bytes - self.position

    def take(self, n_bytes: int, field: str) -> bytes:
        """The next bytes. Raises HeaderError if the file ends before them."""
        self._need(n_bytes, field)
        start = self._at
        self._at += n_bytes
        return self._window[start : self._at]

    def unpack(self, layout: struct.Struct, field: str) -> int | float | bool:
        """The next value in a one-value layout."""
        self._need(layout.size, field)
        value: int | float | bool = layout.unpack_from(self._window, self._at)[0]
        self._at += layout.size
        return value

    def skip(self, n_bytes: int, field: str) -> None:
        """Moves forward without reading. Raises HeaderError if the file ends before the new position."""
        if n_bytes > self.remaining:
            raise self._ends_early(n_bytes, field)
        self._at += n_bytes
        if self._at > len(self._window):
            self._window_start, self._window, self._at = self.position, b"", 0

    def skip_strings(self, count: int, field: str) -> None:
        """Moves past `count` length-prefixed strings, at about 0.1 µs each: a vocabulary has hundreds of thousands."""
        if count * _U64.size > self.remaining:
            raise self._ends_early(count * _U64.size, field)
        unpack_from, width = _U64.unpack_from, _U64.size
        window, at = self._window, self._at
        for _ in range(count):
            if at + width > len(window):
                self._at = at
                self._need(width, field)
                window, at = self._window, self._at
            end = at + width + unpack_from(window, at)[0]
            if end <= len(window):
                at = end
            else:
                self._at = at
                self.skip(end - at, field)
                window, at = self._window, self._at
        self._at = at

    def _need(self, n_bytes: int, field: str) -> None:
        if self._at + n_bytes <= len(self._window):
            return
        if n_bytes > self.remaining:
            raise self._ends_early(n_bytes, field)
        self._window_start, self._at = self.position, 0
        self._file.seek(self._window_start)
        self._window = self._file.read(max(n_bytes, min(_WINDOW_BYTES, self.file_bytes - self._window_start)))
        if len(self._window) < n_bytes:
            raise self._ends_early(n_bytes, field)

    def _ends_early(self, n_bytes: int, field: str) -> HeaderError:
        found = f"the end of the file {max(self.remaining, 0)} bytes later"
        return HeaderError(self.path, field, expected=f"{n_bytes} bytes at offset {self.position}", found=found)
