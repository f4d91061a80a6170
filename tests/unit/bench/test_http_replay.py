from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from threading import Thread
from typing import Any

import httpx
import pytest

from ostinatod.bench.http_replay import replay_over_http
from ostinatod.bench.results import TurnResult
from ostinatod.bench.sessions import Limits
from ostinatod.errors import EngineError
from tests.unit.bench.test_traces import session

Answer = Callable[[dict[str, Any]], httpx.Response]


def streamed(body: dict[str, Any]) -> httpx.Response:
    """A server that says "x" as often as it is asked to, and has reused all but ten characters."""
    chunks: list[dict[str, Any]] = [{"choices": [{"text": "x"}]} for _ in range(body["max_tokens"])]
    read = len(body["prompt"])
    usage = {"prompt_tokens": read, "completion_tokens": body["max_tokens"]}
    chunks.append({"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": read - 10}}})
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    return httpx.Response(200, text=text)


def replay(answer: Answer, limits: Limits | None = None) -> tuple[list[TurnResult], list[dict[str, Any]]]:
    bodies: list[dict[str, Any]] = []

    def handle(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/completions"
        bodies.append(json.loads(request.content))
        return answer(bodies[-1])

    turns: list[TurnResult] = []
    with httpx.Client(transport=httpx.MockTransport(handle), base_url="http://server") as client:
        replay_over_http(client, "tiny", [session("a")], limits or Limits(), "server", turns.append)
    return turns, bodies


def test_each_turn_asks_for_the_length_of_the_recorded_answer() -> None:
    turns, bodies = replay(streamed)
    assert [turn.kind for turn in turns] == ["first", "after_tool", "after_user"]
    assert [turn.output for turn in turns] == [body["max_tokens"] for body in bodies]
    assert all(body["ignore_eos"] and body["stream"] for body in bodies)
    assert bodies[0]["max_tokens"] > bodies[1]["max_tokens"] > 1


def test_the_conversation_continues_with_what_the_server_has_said() -> None:
    _, bodies = replay(streamed)
    for before, after in pairwise(bodies):
        assert after["prompt"].startswith(before["prompt"] + "x" * before["max_tokens"])
    assert "42 lines" in bodies[1]["prompt"].removeprefix(bodies[0]["prompt"])
    assert "Done." not in bodies[2]["prompt"]


def test_the_servers_own_counts_are_taken() -> None:
    turns, bodies = replay(streamed)
    assert [turn.reused for turn in turns] == [len(body["prompt"]) - 10 for body in bodies]
    assert {turn.new for turn in turns} == {10}
    assert all(turn.total_ms >= turn.ttft_ms > 0 for turn in turns)


def test_limits_hold_over_http_too() -> None:
    assert len(replay(streamed, Limits(turns=2))[0]) == 2
    assert {body["max_tokens"] for body in replay(streamed, Limits(output_tokens=2))[1]} == {2}
    whole, scaled = replay(streamed)[1], replay(streamed, Limits(scale=0.5))[1]
    assert len(scaled[0]["prompt"]) == round(len(whole[0]["prompt"]) / 2)
    assert replay(streamed, Limits(tokens=2))[0] == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda _: httpx.Response(400, text="too long"), "HTTP 400: too long"),
        (lambda _: httpx.Response(200, text='data: {"error": {"message": "no"}}\n\n'), "ended the answer"),
    ],
)
def test_a_server_that_refuses_is_told_in_its_words(answer: Answer, reason: str) -> None:
    with pytest.raises(EngineError, match=reason):
        replay(answer)


def test_a_server_that_is_not_there_is_told() -> None:
    def gone(_: dict[str, Any]) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(EngineError, match="did not answer: refused"):
        replay(gone)


def test_a_server_that_ends_a_connection_just_as_it_is_used_again_costs_nothing() -> None:
    class OneAnswer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        answered = False

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.answered:
                self.close_connection = True
                return
            self.answered = True
            answer = streamed(body).content
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), OneAnswer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        turns: list[TurnResult] = []
        with httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}") as client:
            replay_over_http(client, "tiny", [session("a")], Limits(), "server", turns.append)
        server.shutdown()
    assert len(turns) == 3
