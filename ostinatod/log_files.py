"""The log files of the daemon, of engines and of builds: their last lines, and new ones as they come.

Reads files only, so it works whatever state the daemon is in.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

_BLOCK_BYTES = 64 * 1024
_LINE_BYTES = 64 * 1024
"""A line that is still not whole after this many bytes is shown in pieces."""
_POLL_S = 0.2
_GENERATIONS = 9
"""Rotated predecessors that are looked for: LOG.1 is the newest of them."""


def daemon_log(directory: Path) -> Path:
    """What the daemon says, whoever started it."""
    return directory / "ostinatod.log"


def output_log(directory: Path) -> Path:
    """What a daemon in the background printed, which tells of an end that came before it could log."""
    return directory / "daemon.log"


def engine_log(directory: Path, digest: str) -> Path:
    """What the engine of the model with that fingerprint says."""
    return directory / f"engine-{digest.removeprefix('sha256:')[:12]}.log"


def build_log(directory: Path) -> Path:
    """The output of the last engine build."""
    logs = sorted(directory.glob("engine-build-*.log"), key=lambda path: path.stat().st_mtime)
    return logs[-1] if logs else directory / "engine-build.log"


def last_lines(file: Path, count: int) -> list[str]:
    """The last `count` lines of a log, reaching into its rotated predecessors. Raises OSError if it cannot be read."""
    lines = _last_lines(file, count)
    for generation in range(1, _GENERATIONS + 1):
        older = file.with_name(f"{file.name}.{generation}")
        if len(lines) >= count or not older.exists():
            break
        lines = _last_lines(older, count - len(lines)) + lines
    return lines


def new_lines(file: Path, *, wait: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """Lines that are added to a log from now on, also after it was rotated, begun anew or made at all; never ends."""
    stream = _open_or_none(file)
    if stream is not None:
        stream.seek(0, os.SEEK_END)
    rest = b""
    try:
        while True:
            chunk = stream.read(_BLOCK_BYTES) if stream is not None else b""
            if chunk:
                *whole, rest = (rest + chunk).split(b"\n")
                yield from map(_text, whole)
                if len(rest) > _LINE_BYTES:
                    yield _text(rest)
                    rest = b""
                continue
            if stream is None or _was_replaced(stream, file):
                if rest:
                    yield _text(rest)
                    rest = b""
                if stream is not None:
                    stream.close()
                stream = _open_or_none(file)
                if stream is not None:
                    continue
            wait(_POLL_S)
    finally:
        if stream is not None:
            stream.close()


def _last_lines(file: Path, count: int) -> list[str]:
    with file.open("rb") as stream:
        position = stream.seek(0, os.SEEK_END)
        content = b""
        while position > 0 and content.count(b"\n") <= count:
            size = min(_BLOCK_BYTES, position)
            position -= size
            stream.seek(position)
            content = stream.read(size) + content
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    return [_text(line) for line in lines[-count:]] if count else []


def _open_or_none(file: Path) -> BinaryIO | None:
    try:
        return file.open("rb")
    except FileNotFoundError:
        return None


def _was_replaced(stream: BinaryIO, file: Path) -> bool:
    """Whether another file stands under the name, or this one was begun anew."""
    mine = os.fstat(stream.fileno())
    try:
        named = file.stat()
    except FileNotFoundError:
        return False
    return (named.st_dev, named.st_ino) != (mine.st_dev, mine.st_ino) or mine.st_size < stream.tell()


def _text(line: bytes) -> str:
    return line.rstrip(b"\r").decode("utf-8", errors="replace")
