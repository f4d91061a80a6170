from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from threading import Thread
from typing import Any

import httpx
import pytest

from ostinatod.bench.http_comparison import reading_notes
from ostinatod.bench.http_replay import replay_over_http
from ostinatod.bench.http_sessions import HttpSession, recorded_over_http, shaped_over_http
from ostinatod.bench.results import TurnResult
from ostinatod.bench.sessions import Limits
from ostinatod.bench.tokens import pieces
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


def replay(
    answer: Answer, limits: Limits | None = None, recorded: HttpSession | None = None
) -> tuple[list[TurnResult], list[dict[str, Any]]]:
    bodies: list[dict[str, Any]] = []

    def handle(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/completions"
        bodies.append(json.loads(request.content))
        return answer(bodies[-1])

    turns: list[TurnResult] = []
    with httpx.Client(transport=httpx.MockTransport(handle), base_url="http://server") as client:
        limits = limits or Limits()
        own = recorded if recorded is not None else recorded_over_http(session("a"), limits)
        replay_over_http(client, "tiny", own, limits.tokens, "server", turns.append)
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


def test_lengths_of_the_log_are_filled_with_text_of_recorded_sessions() -> None:
    shape = {"id": "s", "turns": [("first", 30, 20, 7), ("after_tool", 56, 10, 5), ("after_user", 33, 4, 2)]}
    shaped = shaped_over_http(shape, Limits(), [session("a"), session("b")])
    assert len(pieces(shaped.prefix)) == pytest.approx(30, abs=3)
    assert [(turn.kind, turn.output) for turn in shaped.turns] == [("first", 7), ("after_tool", 5), ("after_user", 2)]
    assert [len(pieces(turn.added)) for turn in shaped.turns] == pytest.approx([20, 10, 4], abs=3)
    # Half of the conversation is there no more at the third turn: 33 of 70 tokens.
    assert [round(turn.kept, 2) for turn in shaped.turns] == [1.0, 1.0, 0.47]
    turns, bodies = replay(streamed, None, shaped)
    assert [body["max_tokens"] for body in bodies] == [1, 7, 5, 2]
    assert [turn.turn for turn in turns] == [0, 1, 2]
    assert bodies[1]["prompt"] == shaped.prefix + shaped.turns[0].added
    assert bodies[2]["prompt"] == bodies[1]["prompt"] + "x" * 7 + shaped.turns[1].added
    said = bodies[2]["prompt"] + "x" * 5
    assert bodies[3]["prompt"] == said[: round(len(said) * shaped.turns[2].kept)] + shaped.turns[2].added


def test_servers_that_read_other_amounts_of_the_same_turns_are_told() -> None:
    first = [TurnResult("a", "s", n, 0, "first", 900, 100, 5, 1.0, 1.0, 2.0) for n in range(3)]
    second = [replace(turn, setting="b", reused=880, new=120) for turn in first[:2]]
    assert list(reading_notes([*first, *second])) == [
        "Prompt tokens read and reused in the same turns: a 200 and 1,800; b 240 and 1,760.",
        "They differ: what a server held before the first turn, or has let go between two, is in its times.",
    ]
    assert len(list(reading_notes(first))) == 1


def test_no_two_sessions_of_the_log_begin_with_the_same_text() -> None:
    shapes = [{"id": name, "turns": [("first", 0, 20, 7)]} for name in "st"]
    first, second = (shaped_over_http(shape, Limits(), [session("a")]) for shape in shapes)
    assert first.turns[0].added[:8] != second.turns[0].added[:8]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda _: httpx.Response(400, text="too long"), "HTTP 400: too long"),
        (lambda _: httpx.Response(404, json={"error": {"message": "no such model"}}), "HTTP 404: no such model$"),
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
            replay_over_http(client, "tiny", recorded_over_http(session("a"), Limits()), None, "server", turns.append)
        server.shutdown()
    assert len(turns) == 3
