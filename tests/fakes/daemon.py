"""A scripted daemon: a real HTTP server on loopback that speaks the daemon's API and remembers what it was asked.

Run as a program with a port, it stands in for `ostinato serve` until it is told to shut down.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar

DIGEST = "0123456789abcdef" * 4
WAIT = "wait"
"""In an answer: keep the stream open until the client goes away."""
END = "end"
"""In an answer: end the stream in order, but without what ends an answer."""
BREAK = "break"
"""In an answer: close the connection in the middle."""


def listing(name: str, **changes: Any) -> dict[str, Any]:
    """An entry of `/api/tags`."""
    return {
        "name": name,
        "model": name,
        "modified_at": "2026-01-31T12:00:00.123456789Z",
        "size": 9_600_000_000,
        "digest": DIGEST,
        "details": {"family": "qwen3moe", "parameter_size": "30B", "quantization_level": "Q4_K_M", "format": "gguf"},
        "source": "hub",
        "n_experts": 128,
        "k": 8,
        "context_tokens": 262144,
        **changes,
    }


def running(name: str, **changes: Any) -> dict[str, Any]:
    """An entry of `/api/ps`."""
    return {
        "name": name,
        "digest": DIGEST,
        "size": 9_600_000_000,
        "state": "ready",
        "progress": 1.0,
        "context_length": 65536,
        "expires_at": None,
        "placement": None,
        "backend": "cpu",
        **changes,
    }


def details() -> dict[str, Any]:
    """An answer of `/api/show`."""
    return {
        "details": {"family": "qwen3moe", "parameter_size": "30B", "quantization_level": "Q4_K_M", "format": "gguf"},
        "model_info": {
            "general.architecture": "qwen3moe",
            "qwen3moe.context_length": 65536,
            "ostinato.trained_context_length": 262144,
            "qwen3moe.expert_count": 128,
            "qwen3moe.expert_used_count": 8,
        },
        "parameters": "temperature 0.7\ntop_p 0.8",
        "template": "{{ messages }}",
        "capabilities": ["completion", "tools"],
        "parts": ["/models/a-00001-of-00002.gguf", "/models/a-00002-of-00002.gguf"],
        "source": "hub",
    }


def text(content: str) -> dict[str, Any]:
    """A chat chunk with text."""
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}]}


def reasoning(content: str) -> dict[str, Any]:
    """A chat chunk with reasoning."""
    return {"choices": [{"index": 0, "delta": {"reasoning_content": content}, "finish_reason": None}]}


def finish(reason: str = "stop") -> tuple[dict[str, Any], dict[str, Any]]:
    """The chunks that end an answer: the reason, then usage and timings (100 prompt tokens, 60 of them reused)."""
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 60}}
    timings = {"prompt_n": 40, "prompt_ms": 200.0, "predicted_n": 20, "predicted_ms": 160.0, "cache_n": 60}
    return (
        {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        {"choices": [], "usage": usage, "timings": timings},
    )


@dataclass
class FakeDaemon:
    """What the daemon knows and answers; change it before the client asks. Use as a context manager."""

    models: dict[str, dict[str, Any]] = field(default_factory=lambda: {"tiny": listing("tiny", source="bundled")})
    running: list[dict[str, Any]] = field(default_factory=list)
    answer: Iterable[dict[str, Any] | str] = field(default_factory=lambda: (text("Hello"), text(" there"), *finish()))
    pull_steps: list[dict[str, Any] | str] = field(default_factory=lambda: [{"status": "success"}])
    load_steps: list[dict[str, Any] | str] = field(default_factory=lambda: [{"status": "ready"}])
    leftovers: list[dict[str, Any]] = field(default_factory=list)
    """What no model needs, as `/ostinato/prune` tells it."""
    in_progress: list[str] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=lambda: {"version": "0.1.0", "engines": [{"model": "tiny"}]})
    errors: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    """Answers that stand in for the usual one, by path."""
    port: int = 0
    requests: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    """Method, path and body of everything asked, in order."""
    headers: list[dict[str, str]] = field(default_factory=list)
    abandoned: threading.Event = field(default_factory=threading.Event)
    """Set when a client left a stream before its end."""

    def __enter__(self) -> FakeDaemon:
        handler = type("Handler", (_Handler,), {"daemon": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def asked(self, path: str) -> list[dict[str, Any]]:
        """The bodies sent to one path."""
        return [body for _, asked, body in self.requests if asked == path]

    def wait(self) -> None:
        """Until somebody asks for a shutdown."""
        self._thread.join()

    def stop_soon(self) -> None:
        threading.Thread(target=self._server.shutdown).start()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    daemon: ClassVar[FakeDaemon]

    def log_message(self, format: str, *args: Any) -> None:
        return

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        self.daemon.requests.append((self.command, self.path, body))
        self.daemon.headers.append({key.lower(): value for key, value in self.headers.items()})
        if self.path in self.daemon.errors:
            self._json(*self.daemon.errors[self.path])
        elif self.path == "/v1/chat/completions":
            self._stream("text/event-stream", self.daemon.answer, "data: {}\r\n\r\n", "data: [DONE]\n\n")
        elif self.path == "/api/pull":
            self._stream("application/x-ndjson", self.daemon.pull_steps, "{}\n")
        elif self.path == "/ostinato/load":
            self._stream("application/x-ndjson", self.daemon.load_steps, "{}\n")
        else:
            self._json(*self._plain(body))
        if self.path == "/ostinato/shutdown":
            # Not before it is answered: as a program it ends with the server, whatever threads still do.
            self.daemon.stop_soon()

    def _plain(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        daemon = self.daemon
        fixed = {
            "/health": {"status": "ok"},
            "/api/version": {"version": "0.12.0", "ostinato": "0.1.0"},
            "/ostinato/status": daemon.status,
            "/api/tags": {"models": list(daemon.models.values())},
            "/api/ps": {"models": daemon.running},
            "/ostinato/unload": {},
        }
        if self.path in fixed:
            return 200, fixed[self.path]
        if self.path == "/ostinato/add":
            return 200, listing(body["name"] or "local", source="file")
        if self.path == "/ostinato/prune":
            return 200, self._pruned(body)
        if self.path == "/ostinato/shutdown":
            return 200, {}
        name = body.get("source") or body.get("model")
        if name not in daemon.models:
            hint = f"Get it: ostinato pull {name}"
            return 404, {"error": f"model {name!r} not found", "kind": "model_not_found", "hint": hint}
        if self.path == "/api/show":
            return 200, details()
        if self.path == "/api/copy":
            daemon.models[body["destination"]] = listing(body["destination"])
            return 200, {}
        return 200, {"freed_bytes": daemon.models.pop(name)["size"]}

    def _pruned(self, body: dict[str, Any]) -> dict[str, Any]:
        daemon, paths = self.daemon, body["paths"]
        told = [entry for entry in daemon.leftovers if paths is None or entry["path"] in paths]
        if not body["dry_run"]:
            daemon.leftovers = [entry for entry in daemon.leftovers if entry not in told]
        total_bytes = sum(entry["size_bytes"] for entry in told)
        fixed = {"deleted": not body["dry_run"], "in_progress": daemon.in_progress}
        return {**fixed, "entries": told, "total_bytes": total_bytes}

    def _json(self, status: int, answer: dict[str, Any]) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        if status == 503:
            self.send_header("retry-after", "7")
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, kind: str, items: Iterable[dict[str, Any] | str], frame: str, last: str = "") -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            if last:
                self._chunk(": keepalive\n\n")
            for item in items:
                if item == END:
                    last = ""
                    break
                if item == BREAK:
                    self.close_connection = True
                    return
                while item == WAIT:
                    self._chunk(": keepalive\n\n" if last else "\n")
                    time.sleep(0.02)  # not in a wait for `abandoned`, which an earlier stream may have set
                self._chunk(frame.format(json.dumps(item, ensure_ascii=False)))
            if last:
                self._chunk(last)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.daemon.abandoned.set()
            self.close_connection = True

    def _chunk(self, content: str) -> None:
        data = content.encode("utf-8", errors="surrogatepass")
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


if __name__ == "__main__":
    with FakeDaemon(port=int(sys.argv[1])) as program:
        program.wait()
