"""A model hub on the loopback: listings, redirects to a file host on another port, ranges, and faults on demand."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34
_CHUNK = 16 * 1024
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class Fault:
    """What goes wrong with one file. Byte counts are of a single response."""

    stall_after: int | None = None
    """Send so many bytes, then nothing until the server stops."""
    drop_after: int | None = None
    """Send so many bytes, then close the connection."""
    corrupt: bool = False
    """Flip a byte."""
    ignore_range: bool = False
    wrong_range: bool = False
    """Answer with a range that starts one byte later."""
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1_000_000
    """Requests that meet the fault; later ones are served well."""
    bytes_per_s: int | None = None


@dataclass
class FakeHub:
    """The state of a running fake. Change it between requests."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Contents by repository and path."""
    faults: dict[str, Fault] = field(default_factory=dict)
    """By path, or by repository for its listing."""
    redirect_to: str | None = None
    """Base address of the file host; without one, files are served directly."""
    endpoint: str = ""
    served: Counter[str] = field(default_factory=Counter)
    """Body bytes sent, by path."""
    sending: Counter[str] = field(default_factory=Counter)
    """Bodies that are being sent, by path."""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def add(self, repository: str, path: str, content: bytes) -> None:
        """Puts a file into a repository."""
        self.files.setdefault(repository, {})[path] = content

    def listing(self, repository: str) -> dict[str, Any]:
        """What the hub's API says about a repository."""
        siblings = [
            {
                "rfilename": path,
                "size": len(content),
                "blobId": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(),
                **({"lfs": _lfs(content)} if path.endswith(".gguf") else {}),
            }
            for path, content in self.files[repository].items()
        ]
        return {"id": repository, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}

    def fault(self, name: str) -> Fault:
        """The fault that this request meets."""
        fault = self.faults.get(name)
        if fault is None or fault.times <= 0:
            return Fault()
        fault.times -= 1
        return fault


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    """A hub that redirects file requests to a second server, as the real one does. Stops both at the end."""
    hub = FakeHub()
    with _server(hub) as hub.endpoint, _server(hub) as hub.redirect_to:
        try:
            yield hub
        finally:
            hub.stopping.set()


@contextmanager
def _server(hub: FakeHub) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: Any) -> None:
            """Says nothing."""

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append((path, {key.lower(): value for key, value in self.headers.items()}))
            if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path):
                _list(hub, self, match[1])
            elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                _resolve(hub, self, match[1], match[3])
            elif match := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path):
                _send_file(hub, self, match[1], match[2])
            else:
                _refuse(self, 404, {})

    return Handler


def _list(hub: FakeHub, request: BaseHTTPRequestHandler, repository: str) -> None:
    fault = hub.fault(repository)
    if fault.status:
        _refuse(request, fault.status, fault.headers)
    elif repository not in hub.files:
        _refuse(request, 404, {"X-Error-Code": "RepoNotFound"})
    else:
        body = json.dumps(hub.listing(repository)).encode()
        _start(request, 200, {"Content-Type": "application/json", "Content-Length": str(len(body))})
        request.wfile.write(body)


def _resolve(hub: FakeHub, request: BaseHTTPRequestHandler, repository: str, path: str) -> None:
    content = hub.files.get(repository, {}).get(path)
    if content is None:
        _refuse(request, 404, {"X-Error-Code": "EntryNotFound"})
    elif hub.redirect_to is None:
        _send_file(hub, request, repository, path)
    else:
        digest = hashlib.sha256(content).hexdigest()
        headers = {
            "Location": f"{hub.redirect_to}/cdn/{repository}/{path}",
            "X-Repo-Commit": COMMIT,
            "X-Linked-Size": str(len(content)),
            "X-Linked-Etag": f'"{digest}"',
            "Content-Length": "0",
        }
        _start(request, 302, headers)


def _send_file(hub: FakeHub, request: BaseHTTPRequestHandler, repository: str, path: str) -> None:
    fault = hub.fault(path)
    if fault.status:
        _refuse(request, fault.status, fault.headers)
        return
    content = hub.files[repository][path]
    if fault.corrupt:
        content = content[:-1] + bytes([content[-1] ^ 0xFF])
    wanted = _RANGE.fullmatch(request.headers.get("Range", ""))
    if wanted and not fault.ignore_range:
        start, end = int(wanted[1]) + fault.wrong_range, min(int(wanted[2]) + 1, len(content))
        headers = {"Content-Range": f"bytes {start}-{end - 1}/{len(content)}"}
        _start(request, 206, headers | {"Content-Length": str(end - start)})
    else:
        start, end = 0, len(content)
        _start(request, 200, {"Content-Length": str(len(content))})
    _send_body(hub, request, path, content[start:end], fault)


def _send_body(hub: FakeHub, request: BaseHTTPRequestHandler, path: str, body: bytes, fault: Fault) -> None:
    limits = [limit for limit in (fault.stall_after, fault.drop_after) if limit is not None]
    last = min([*limits, len(body)])
    sent = 0
    hub.sending[path] += 1
    try:
        while sent < last:
            chunk = body[sent : min(sent + _CHUNK, last)]
            request.wfile.write(chunk)
            sent += len(chunk)
            hub.served[path] += len(chunk)
            if fault.bytes_per_s:
                time.sleep(len(chunk) / fault.bytes_per_s)
        if fault.stall_after is not None and sent < len(body):
            hub.stopping.wait()
    except OSError:
        pass  # The client has gone, as it may.
    finally:
        hub.sending[path] -= 1
    request.close_connection = True


def _refuse(request: BaseHTTPRequestHandler, status: int, headers: dict[str, str]) -> None:
    body = b'{"error":"refused"}'
    _start(request, status, {**headers, "Content-Length": str(len(body))})
    request.wfile.write(body)


def _start(request: BaseHTTPRequestHandler, status: int, headers: dict[str, str]) -> None:
    request.send_response(status)
    for key, value in headers.items():
        request.send_header(key, value)
    request.end_headers()


def _lfs(content: bytes) -> dict[str, Any]:
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 135}


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    """Returns once `condition` holds. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition did not come true")
        time.sleep(0.01)
