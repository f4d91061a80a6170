"""Replays a recorded agent session through a running daemon, turn by turn, over `/v1/chat/completions`.

Every assistant turn of the recording becomes one request with the real tool schemas and everything said before it;
after the answer the *recorded* assistant message is appended, so each engine and model sees the same conversation.
Prints new and reused prompt tokens, time to first token and time per output token of each turn, and the memory of
daemon and engine.

    python benchmarks/replay_session.py --model tiny --session tests/data/tau2-retail-session.json [--out result.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of the replay. Times are milliseconds measured by this client."""

    turn: int
    after: str
    """Role of the message that the turn answers."""
    prompt_tokens: int
    reused_tokens: int
    new_tokens: int
    output_tokens: int
    ttft_ms: float
    tpot_ms: float | None
    finish_reason: str


def requests_of(session: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """The messages before each assistant turn that a model has to write; a fixed greeting at the start is not one."""
    messages = session["messages"]
    for i, message in enumerate(messages):
        if message["role"] == "assistant" and any(m["role"] == "user" for m in messages[:i]):
            yield messages[:i]


def play_turn(
    client: httpx.Client, model: str, number: int, messages: list[dict[str, Any]], tools: list[Any], max_tokens: int
) -> Turn:
    """Sends one turn and reads its stream to the end. Raises RuntimeError with the daemon's words if refused."""
    body = {
        "model": model,
        "messages": messages,
        "tools": tools,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.perf_counter()
    first = last = None
    usage: dict[str, Any] = {}
    finish_reason = ""
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError(f"turn {number}: HTTP {response.status_code}: {response.read().decode()}")
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                raise RuntimeError(f"turn {number}: {chunk['error']}")
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices", []):
                finish_reason = choice.get("finish_reason") or finish_reason
                delta = choice["delta"]
                if delta.get("content") or delta.get("tool_calls") or delta.get("reasoning_content"):
                    last = time.perf_counter()
                    first = first or last
    ended = time.perf_counter()
    reused = usage["prompt_tokens_details"]["cached_tokens"]
    output = usage["completion_tokens"]
    first, last = first or ended, last or ended
    return Turn(
        turn=number,
        after=messages[-1]["role"],
        prompt_tokens=usage["prompt_tokens"],
        reused_tokens=reused,
        new_tokens=usage["prompt_tokens"] - reused,
        output_tokens=output,
        ttft_ms=round((first - started) * 1000, 1),
        tpot_ms=round((last - first) * 1000 / (output - 1), 2) if output > 1 else None,
        finish_reason=finish_reason,
    )


def memory_mib(client: httpx.Client, model: str) -> dict[str, float]:
    """Resident memory of the daemon and of the model's engine, MiB."""
    status = client.get("/ostinato/status").json()
    processes = {"daemon": status["pid"]}
    processes["engine"] = next(engine["pid"] for engine in status["models"] if engine["name"] == model)
    return {name: round(psutil.Process(pid).memory_info().rss / 2**20, 1) for name, pid in processes.items()}


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:11435")
    parser.add_argument("--model", required=True)
    parser.add_argument("--session", type=Path, required=True)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()

    session = json.loads(arguments.session.read_text(encoding="utf-8"))
    client = httpx.Client(base_url=arguments.base_url, timeout=httpx.Timeout(600, connect=5))
    turns: list[Turn] = []
    print("turn  after   prompt  reused    new output   TTFT ms  TPOT ms  finish")
    for number, messages in enumerate(requests_of(session), start=1):
        turn = play_turn(client, arguments.model, number, messages, session["tools"], arguments.max_tokens)
        turns.append(turn)
        print(
            f"{turn.turn:>4}  {turn.after:<6} {turn.prompt_tokens:>7} {turn.reused_tokens:>7} {turn.new_tokens:>6} "
            f"{turn.output_tokens:>6} {turn.ttft_ms:>9.1f} {turn.tpot_ms or 0:>8.2f}  {turn.finish_reason}",
            flush=True,
        )
    memory = memory_mib(client, arguments.model)
    print("memory MiB: " + ", ".join(f"{name} {mib}" for name, mib in memory.items()))
    if arguments.out:
        result = {
            "session": session["id"],
            "source": session["source"],
            "model": arguments.model,
            "machine": f"{platform.processor() or platform.machine()}, {platform.system()} {platform.release()}",
            "date": time.strftime("%Y-%m-%d"),
            "command": " ".join(["python", *sys.argv]),
            "turns": [asdict(turn) for turn in turns],
            "memory_mib": memory,
        }
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
