#!/usr/bin/env python3
"""A scripted engine: speaks as much of the engine's HTTP on a Unix socket as the daemon uses, and fails on demand.

How it loads is set by the environment variable OSTINATO_SCRIPTED_ENGINE, a JSON object:
  load_s        seconds until it is ready
  load_until    it is not ready before this file exists
  exit_status   it ends with this status instead of becoming ready, after writing `exit_words`
  stall         it never becomes ready and shows no progress
  stubborn      it ignores SIGTERM
  n_ctx         the context it reports
  journal       a file to which it appends one line per event: start, begin, end, gone
  residency     what it does with a residency file while it runs: "swap" (the default), "restart" or "refuse"
  refused       generations that it refuses while it loads
  told          further fields of its status
  counts        each answer reads 2 tokens and writes 1, which the route counts tell (2 layers, 8 experts, 2 per token:
                0 and 1 while reading, 1 and 2 while writing) and the answer's timings

What it does with a request is set by the last message (or prompt):
  "!crash"      it streams one and a half events and is killed
  "!die"        it is killed before it answers
  "!slow S"     it reads the prompt for S seconds
  "!hold F"     it reads the prompt until the file F exists, for HOLD_S at most
  "!halves F"   it streams "first", and "second" once the file F exists, after HOLD_S at most
  "!count N"    it streams N chunks, 20 ms apart
  "!flood"      it streams as fast as it can, without end
  "!overflow"   it refuses the prompt as too long
  "!tool N A"   it calls the tool N with the JSON object A, in which ' stands for "; a result it repeats behind "told: "
  "!tools"      it reasons, says something, and makes two calls whose arguments arrive in pieces
  "!unreadable" it says something, and then that it cannot parse the rest
  "!cut"        its answer ends at the limit of tokens
  anything else is answered with the body it received
"""

from __future__ import annotations

import json
import os
import re
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
HOLD_S = 30.0
TIMINGS = {"cache_n": 1, "prompt_n": 2, "prompt_ms": 5.0, "predicted_n": 1, "predicted_ms": 10.0}
STATUS = {"abi": 7, "devices": [], "pool_bytes": None, "gpu_of_layer": None, "cpu_branch": None}
"""Of an engine whose experts are not divided between two branches."""
GENERATION_AT = 56
"""Where a residency file has its generation: 8 bytes, little-endian."""


def generation_of(file: str) -> int:
    data = Path(file).read_bytes()
    return int.from_bytes(data[GENERATION_AT : GENERATION_AT + 8], "little")


def residency_at_start() -> dict[str, Any]:
    if "--ostinato-residency" not in sys.argv:
        return {"state": "none", "generation": 0, "reason": ""}
    generation = generation_of(sys.argv[sys.argv.index("--ostinato-residency") + 1])
    if generation in SCRIPT.get("refused", []):
        return {"state": "refused", "generation": 0, "reason": "does not fit"}
    return {"state": "applied", "generation": generation, "reason": ""}


RESIDENCY = residency_at_start()
ANSWERED: list[str] = []


def route_counts() -> dict[str, Any]:
    read, written = [0] * 8, [0] * 8
    read[0] = read[1] = 2 * len(ANSWERED)
    written[1] = written[2] = len(ANSWERED)
    return {"layers": [0, 1], "n_experts": 8, "prefill": [read, read], "decode": [written, written]}


def note(event: str) -> None:
    if "journal" in SCRIPT:
        with open(SCRIPT["journal"], "a", encoding="utf-8") as journal:
            journal.write(f"{event} {os.getpid()}\n")


def is_ready() -> bool:
    if SCRIPT.get("stall") or ("load_until" in SCRIPT and not os.path.exists(SCRIPT["load_until"])):
        return False
    return time.monotonic() - STARTED_AT >= LOAD_S


def load_progress() -> float:
    if "load_until" in SCRIPT:
        return 0.5
    return (time.monotonic() - STARTED_AT) / LOAD_S


def call(index: int, call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def chunk(delta: dict[str, Any] | None, reason: str | None = None, **fields: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "finish_reason": reason, "delta": delta}]
    told = {
        "id": "x",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "scripted",
        "choices": choices,
        **fields,
    }
    return b"data: " + json.dumps(told, separators=(",", ":")).encode() + b"\n\n"


def whole(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    said: dict[str, Any] = {"content": ""}
    for delta in deltas:
        for name in ("content", "reasoning_content"):
            said[name] = said.get(name, "") + (delta.get(name) or "")
        for piece in delta.get("tool_calls", ()):
            calls = said.setdefault("tool_calls", [])
            if piece["index"] == len(calls):
                calls.append(json.loads(json.dumps(piece)))
            else:
                calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    return said


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
            params = {"temperature": 0.8, "top_p": 0.949999988079071}
            self.answer(200, {"default_generation_settings": {"n_ctx": N_CTX, "params": params}})
        elif self.path == "/ostinato/status":
            self.answer(200, {**STATUS, "residency": RESIDENCY, **SCRIPT.get("told", {})})
        elif self.path == "/ostinato/routes":
            self.answer(200, route_counts() if SCRIPT.get("counts") else {"layers": 2})
        else:
            self.answer(404, {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fields = json.loads(body)
        if self.path == "/ostinato/residency":
            return self.change_residency(fields["path"])
        messages = fields.get("messages")
        prompt = prompt_of(messages) if messages else str(fields.get("prompt") or fields.get("input"))
        note("begin")
        ANSWERED.append(self.path)
        try:
            self.respond(fields, prompt, body.decode())
            note("end")
        except (Gone, BrokenPipeError, ConnectionResetError):
            note("gone")
            self.close_connection = True

    def change_residency(self, file: str) -> None:
        wanted, generation = SCRIPT.get("residency", "swap"), generation_of(file)
        note(f"residency-{wanted}-{generation}")
        if wanted == "refuse":
            return self.answer(422, {"error": {"code": 422, "message": "does not fit", "type": "invalid_residency"}})
        if wanted == "restart":
            return self.answer(409, {"error": {"code": 409, "message": "restart", "type": "restart_required"}})
        RESIDENCY.update(state="applied", generation=generation)
        return self.answer(200, {"generation": generation, "moved": 3, "swap_ms": 1.5})

    def respond(self, fields: dict[str, Any], prompt: str, body: str) -> None:
        command, _, argument = prompt.partition(" ")
        if command == "!die":
            os.kill(os.getpid(), signal.SIGKILL)
        if command == "!slow":
            self.wait(float(argument))
        if command == "!hold":
            self.hold(argument)
        if command == "!overflow":
            numbers = {"n_prompt_tokens": 70211, "n_ctx": N_CTX}
            error = {"code": 400, "message": "too long", "type": "exceed_context_size_error", **numbers}
            return self.answer(400, {"error": error})
        if self.path.endswith("/input_tokens"):
            return self.answer(200, {"object": "response.input_tokens", "input_tokens": len(body)})
        if command == "!tool" and fields.get("tools"):
            name, _, arguments = argument.partition(" ")
            return self.call_tool(fields, name, arguments.replace("'", '"'))
        usage = {
            "prompt_tokens": 3,
            "completion_tokens": 1,
            "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 2},
        }
        if command in SAID or command == "told:":
            return self.say(fields, command, usage, prompt)
        if "input" in fields:
            return self.answer(200, {"data": [{"embedding": [0.5], "index": 0, "object": "embedding"}], "usage": usage})
        if not fields.get("stream"):
            if command == "!crash":
                os.kill(os.getpid(), signal.SIGKILL)
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": body}}
            told = {"object": "chat.completion", "choices": [choice], "usage": usage}
            return self.answer(200, {**told, "timings": TIMINGS} if SCRIPT.get("counts") else told)
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
        if command == "!halves":
            self.chunk(event("first"))
            self.hold(argument)
            body = "second"
        for number in range(int(argument) if command == "!count" else 1):
            self.chunk(event(f"{number} " if command == "!count" else body))
            self.wait(CHUNK_S)
        if SCRIPT.get("counts"):
            self.chunk(event("", timings=TIMINGS))
        self.chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")
        return None

    def say(self, fields: dict[str, Any], command: str, usage: dict[str, Any], prompt: str) -> None:
        """A scripted answer in the words of a chat completion."""
        deltas, reason = SAID.get(command, ([{"content": prompt}], "stop"))
        timings = {"cache_n": 2, "prompt_n": 1, "predicted_n": 1, "prompt_ms": 1.0, "predicted_ms": 2.0}
        if not fields.get("stream"):
            choice = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", **whole(deltas)}}
            told = {"object": "chat.completion", "choices": [choice], "usage": usage, "timings": timings}
            return self.answer(200, told)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if fields.get("return_progress"):
            self.chunk(chunk({}, prompt_progress={"total": 3, "cache": 2, "processed": 2, "time_ms": 0}))
        for delta in deltas:
            self.chunk(chunk(delta))
        if command == "!unreadable":
            broken = {"code": 500, "message": UNREADABLE, "type": "server_error"}
            self.chunk(b"data: " + json.dumps({"error": broken}, separators=(",", ":")).encode() + b"\n\n")
            self.wait(LINGERS_S.get(command, 0))
        else:
            self.chunk(chunk({}, reason=reason))
            self.wait(LINGERS_S.get(command, 0))
            if (fields.get("stream_options") or {}).get("include_usage"):
                self.chunk(chunk(None, usage=usage, timings=timings))
            self.chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")
        return None

    def call_tool(self, fields: dict[str, Any], name: str, arguments: str) -> None:
        call = {"index": 0, "id": f"call_{time.time_ns()}", "type": "function"}
        call["function"] = {"name": name, "arguments": arguments}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice: dict[str, Any] = {"index": 0, "finish_reason": "tool_calls"}
        if not fields.get("stream"):
            return self.answer(200, {"object": "chat.completion", "choices": [{**choice, "message": message}]})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
        self.chunk(b"data: " + json.dumps({**chunk, "choices": [{**choice, "delta": message}]}).encode() + b"\n\n")
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

    def hold(self, file: str) -> None:
        ends_at = time.monotonic() + HOLD_S
        while not os.path.exists(file) and time.monotonic() < ends_at:
            self.wait(CHUNK_S)

    def answer(self, status: int, value: dict[str, Any]) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def prompt_of(messages: list[dict[str, Any]]) -> str:
    """The last message; of a text in which agents have wrapped a command, the command."""
    content = messages[-1].get("content")
    text = content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content or ())
    if messages[-1]["role"] == "tool" and any("!tool " in json.dumps(message) for message in messages):
        return f"told: {text}"
    found = re.findall(r"(?m)^[\s\"'>]*(!(?:tool|slow|overflow|crash|die|count|flood)\b[^\n<]*)", text)
    return found[-1].rstrip("\"'").strip() if found else text


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


def event(text: str, **fields: Any) -> bytes:
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "scripted", **fields}
    choice = {"index": 0, "finish_reason": None, "delta": {"content": text}}
    return b"data: " + json.dumps({**chunk, "choices": [choice]}).encode() + b"\n\n"


UNREADABLE = "Invalid diff: 'so far' not found at start of 'so fa'"
SAID: dict[str, tuple[list[dict[str, Any]], str]] = {
    "!tools": (
        [
            {"role": "assistant", "content": None},
            {"reasoning_content": "Let me "},
            {"reasoning_content": "think."},
            {"content": "I look."},
            {"tool_calls": [call(0, "c-1", "find", '{"a": ')]},
            {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
            {"tool_calls": [call(1, "c-2", "look", "{}")]},
        ],
        "tool_calls",
    ),
    "!unreadable": ([{"role": "assistant", "content": None}, {"content": "so far"}], "stop"),
    "!lingers": ([{"role": "assistant", "content": None}, {"content": "all"}], "stop"),
    "!stuck": ([{"role": "assistant", "content": None}, {"content": "all"}], "stop"),
    "!cut": ([{"role": "assistant", "content": None}, {"content": "cut"}], "length"),
}
LINGERS_S = {"!lingers": 0.3, "!stuck": 60.0, "!unreadable": 0.3}
"""Between why an answer ended and the last of its stream."""


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
            print(f"ostinato-load {load_progress():.2f}", flush=True)
            time.sleep(0.05)
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
