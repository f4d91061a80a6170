"""Ends a blocked read when someone loses interest in it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_POLL_S = 0.1


@contextmanager
def shut_when_set(event: threading.Event, stream: Any) -> Iterator[None]:
    """While inside, a set `event` shuts the socket below an httpx network stream, which ends any read from it.

    Without a socket to shut, the read ends with its own timeout.
    """
    connection = stream.get_extra_info("socket") if stream is not None else None
    finished = threading.Event()

    def watch(sock: socket.socket) -> None:
        while not finished.wait(_POLL_S):
            if event.is_set():
                with suppress(OSError):
                    # Not the method of an SSLSocket: that one also drops state which the reader still uses.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
                return

    if not isinstance(connection, socket.socket):
        yield
        return
    watcher = threading.Thread(target=watch, args=(connection,), name="pull-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()
