#!/usr/bin/env python3
"""A scripted engine: speaks as much of the engine's HTTP on a Unix socket as the daemon uses, and fails on demand.

How it loads is set by the environment variable OSTINATO_SCRIPTED_ENGINE, a JSON object:
  load_s        seconds until it is ready
  exit_status   it ends with this status instead of becoming ready, after writing `exit_words`
  stall         it never becomes ready and shows no progress
  stubborn      it ignores SIGTERM
  n_ctx         the context it reports
  journal       a file to which it appends one line per event: start, begin, end, gone

What it does with a request is set by the last message (or prompt):
  "!crash"      it streams one and a half events and is killed
  "!die"        it is killed before it answers
  "!slow S"     it reads the prompt for S seconds
  "!count N"    it streams N chunks, 20 ms apart
  "!flood"      it streams as fast as it can, without end
  "!overflow"   it refuses the prompt as too long
  anything else is answered with the body it received
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

SCRIPT: dict[str, Any] = json.loads(os.environ.get("OSTINATO_SCRIPTED_ENGINE", "{}"))
STARTED_AT = time.monotonic()
LOAD_S = float(SCRIPT.get("load_s", 0.0))
N_CTX = int(SCRIPT.get("n_ctx", 4096))
CHUNK_S = 0.02


def note(event: str) -> None:
    if "journal" in SCRIPT:
        with open(SCRIPT["journal"], "a", encoding="utf-8") as journal:
            journal.write(f"{event} {os.getpid()}\n")


def is_ready() -> bool:
    return not SCRIPT.get("stall") and time.monotonic() - STARTED_AT >= LOAD_S


class Gone(Exception):
    """The client has closed its connection."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if not is_ready():
            self.answer(503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}})
        elif self.path == "/health":
            self.answer(200, {"status": "ok"})
        elif self.path == "/props":
            self.answer(200, {"default_generation_settings": {"n_ctx": N_CTX}})
        elif self.path == "/ostinato/status":
            self.answer(200, {"abi": 1})
        elif self.path == "/ostinato/routes":
            self.answer(200, {"layers": 2})
        else:
            self.answer(404, {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fields = json.loads(body)
        messages = fields.get("messages")
        prompt = str(messages[-1]["content"] if messages else fields.get("prompt") or fields.get("input"))
        note("begin")
        try:
            self.respond(fields, prompt, body.decode())
            note("end")
        except (Gone, BrokenPipeError, ConnectionResetError):
            note("gone")
            self.close_connection = True

    def respond(self, fields: dict[str, Any], prompt: str, body: str) -> None:
        command, _, argument = prompt.partition(" ")
        if command == "!die":
            os.kill(os.getpid(), signal.SIGKILL)
        if command == "!slow":
            self.wait(float(argument))
        if command == "!overflow":
            numbers = {"n_prompt_tokens": 70211, "n_ctx": N_CTX}
            error = {"code": 400, "message": "too long", "type": "exceed_context_size_error", **numbers}
            return self.answer(400, {"error": error})
        usage = {
            "prompt_tokens": 3,
            "completion_tokens": 1,
            "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 2},
        }
        if "input" in fields:
            return self.answer(200, {"data": [{"embedding": [0.5], "index": 0, "object": "embedding"}], "usage": usage})
        if not fields.get("stream"):
            if command == "!crash":
                os.kill(os.getpid(), signal.SIGKILL)
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": body}}
            return self.answer(200, {"object": "chat.completion", "choices": [choice], "usage": usage})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if command == "!crash":
            self.chunk(event("before") + b'data: {"half')
            time.sleep(CHUNK_S)
            os.kill(os.getpid(), signal.SIGKILL)
        while command == "!flood":
            self.chunk(event("more"))
        for number in range(int(argument) if command == "!count" else 1):
            self.chunk(event(f"{number} " if command == "!count" else body))
            self.wait(CHUNK_S)
        self.chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")
        return None

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def wait(self, duration_s: float) -> None:
        ends_at = time.monotonic() + duration_s
        while (left_s := ends_at - time.monotonic()) > 0:
            readable, _, _ = select.select([self.connection], [], [], min(left_s, 0.05))
            if readable and self.connection.recv(1, socket.MSG_PEEK) == b"":
                raise Gone

    def answer(self, status: int, value: dict[str, Any]) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


def event(text: str) -> bytes:
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    choice = {"index": 0, "finish_reason": None, "delta": {"content": text}}
    return b"data: " + json.dumps({**chunk, "choices": [choice]}).encode() + b"\n\n"


def main(arguments: list[str]) -> int:
    if SCRIPT.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("start")
    print("0.00.000.001 I srv  main: scripted engine", flush=True)
    if "exit_status" in SCRIPT:
        time.sleep(LOAD_S)
        print(SCRIPT.get("exit_words", ""), flush=True)
        return int(SCRIPT["exit_status"])
    path = Path(arguments[arguments.index("--host") + 1])
    with Server(str(path), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        while not SCRIPT.get("stall") and not is_ready():
            print(f"ostinato-load {(time.monotonic() - STARTED_AT) / LOAD_S:.2f}", flush=True)
            time.sleep(0.05)
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
