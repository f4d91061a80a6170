"""A daemon that gives canned answers over real HTTP, for the dashboard. As a program it serves one state on a port.

`python -m tests.fakes.dashboard_daemon STATE PORT`
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from tests.fakes import dashboard_states
from tests.fakes.dashboard_states import Answers


@dataclass
class DashboardDaemon:
    """Serves `answers`; change them, or `posts` and `streams`, while it runs. Use as a context manager."""

    answers: Answers = field(default_factory=dict)
    posts: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    """Answers to POST by path; success otherwise."""
    streams: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Lines of the streams of POST by path."""
    port: int = 0
    asked: list[str] = field(default_factory=list)
    """The path and query of every GET."""
    posted: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    connections: list[socket.socket] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)
    """A stream waits for it after its first line, if it was replaced by one that is not set."""

    def __post_init__(self) -> None:
        self.held.set()

    def __enter__(self) -> DashboardDaemon:
        handler = type("Handler", (_Handler,), {"daemon": self})
        self._server = _Server(("127.0.0.1", self.port), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        # Connections that are kept alive would go on being served.
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def posted_to(self, path: str) -> list[dict[str, Any]]:
        """The bodies posted to a path."""
        return [body for asked, body in self.posted if asked == path]


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that leave: dashboards do not wait for answers when they end."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    daemon: ClassVar[DashboardDaemon]

    def setup(self) -> None:
        super().setup()
        self.daemon.connections.append(self.connection)

    def log_message(self, format: str, *args: Any) -> None:
        return

    def do_GET(self) -> None:
        self.daemon.asked.append(self.path)
        parts = urlsplit(self.path)
        answer = self.daemon.answers.get(parts.path)
        if callable(answer):
            answer = answer({key: found[0] for key, found in parse_qs(parts.query).items()})
        if answer is None:
            self._json(404, {"error": f"GET {parts.path}: Not Found", "kind": "invalid_request_error", "hint": None})
        else:
            self._json(200, answer)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        self.daemon.posted.append((self.path, body))
        if self.path in self.daemon.streams:
            self._stream(self.daemon.streams[self.path])
        else:
            self._json(*self.daemon.posts.get(self.path, (200, {"status": "success"})))

    def _json(self, status: int, answer: dict[str, Any]) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, lines: list[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/x-ndjson")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for at, line in enumerate(lines):
                if at == 1:
                    self.daemon.held.wait(20)
                self.wfile.write(json.dumps(line).encode() + b"\n")
                self.wfile.flush()
        except OSError:
            return


if __name__ == "__main__":
    with DashboardDaemon(getattr(dashboard_states, sys.argv[1])(), port=int(sys.argv[2])):
        threading.Event().wait()
