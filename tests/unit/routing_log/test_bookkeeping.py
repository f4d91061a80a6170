from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinatod.routing_log import reader
from ostinatod.routing_log.bookkeeping import (
    Arrival,
    Bookkeeper,
    EngineBook,
    HotSet,
    Outcome,
    hot_routes_of,
    read_hot_set,
    tpot_ms,
    ttft_ms,
)
from ostinatod.routing_log.counts import RouteCounts
from ostinatod.routing_log.writer import RoutingLog
from tests.unit.routing_log.conftest import MODEL, OpenLog, counts

KEY = b"k" * 32
STREAMED = Outcome(
    status="ok",
    total_ms=500.0,
    admitted_ms=20.0,
    first_byte_ms=100.0,
    prompt_tokens=300,
    reused_tokens=200,
    output_tokens=5,
)


@pytest.fixture
def books(log: RoutingLog) -> Bookkeeper:
    return Bookkeeper(log, KEY, KEY)


def arrival(number: int = 1, **changes: Any) -> Arrival:
    fields: dict[str, Any] = {
        "id": f"req-{number:012x}",
        "fingerprint": MODEL,
        "k": 2,
        "dialect": "openai",
        "request": {"messages": [{"role": "user", "content": "Hello"}]},
        "headers": {"x-session-id": "s1"},
        "stream": True,
        "started_at": float(number),
    }
    return Arrival(**{**fields, **changes})


def told(found: RouteCounts) -> bytes:
    shape = {"layers": list(found.layers), "n_experts": found.prefill.shape[1]}
    return json.dumps({**shape, "prefill": found.prefill.tolist(), "decode": found.decode.tolist()}).encode()


def settle(books: Bookkeeper, engine: EngineBook, came: Arrival, outcome: Outcome, counters: bytes | None) -> None:
    books.settle(came, books.identify(came), outcome, engine, counters, None)


# -- times ------------------------------------------------------------------------------------------------------------


def test_the_first_token_of_a_stream_comes_with_its_first_byte() -> None:
    assert ttft_ms(STREAMED, stream=True) == 100.0


def test_the_first_token_of_a_whole_answer_comes_when_the_prompt_is_read() -> None:
    whole = Outcome(status="ok", total_ms=500.0, admitted_ms=20.0, first_byte_ms=500.0, prompt_ms=60.0)
    assert ttft_ms(whole, stream=False) == 80.0
    assert ttft_ms(Outcome(status="ok", total_ms=500.0, first_byte_ms=500.0), stream=False) is None


def test_time_per_token_is_the_engines_measure_or_what_a_stream_shows() -> None:
    # 400 ms after the first token for four more.
    assert tpot_ms(STREAMED, stream=True) == 100.0
    assert tpot_ms(STREAMED, stream=False) is None
    measured = Outcome(status="ok", total_ms=500.0, output_tokens=5, decode_ms=75.0)
    assert tpot_ms(measured, stream=False) == 15.0
    assert tpot_ms(Outcome(status="ok", total_ms=500.0, output_tokens=0, decode_ms=0.0), stream=True) is None
    assert tpot_ms(Outcome(status="ok", total_ms=500.0, first_byte_ms=1.0, output_tokens=1), stream=True) is None
    assert tpot_ms(Outcome(status="cancelled", total_ms=500.0), stream=True) is None


# -- hot experts ------------------------------------------------------------------------------------------------------


RESIDENCY = {"layers": [0, 1], "n_experts": 4, "hot": [[1, 3], [0]]}


def test_the_engines_residency_is_read() -> None:
    found = read_hot_set(7, RESIDENCY)
    assert (found.generation, found.layers) == (7, (0, 1))
    assert found.hot.tolist() == [[False, True, False, True], [True, False, False, False]]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        [],
        {"error": {}},
        {**RESIDENCY, "hot": [[4], []]},
        {**RESIDENCY, "hot": [[1]]},
        {**RESIDENCY, "hot": 3},
    ],
)
def test_without_a_readable_residency_the_generation_is_known_but_no_coverage(answer: Any) -> None:
    found = read_hot_set(7, answer)
    assert found.generation == 7
    assert hot_routes_of(counts(20, 10), found) is None


def test_hot_routes_are_those_of_hot_experts() -> None:
    # All routes are of expert 1, which is hot in layer 0 only.
    assert hot_routes_of(counts(20, 10), read_hot_set(7, RESIDENCY)) == (20, 10)
    assert hot_routes_of(None, read_hot_set(7, RESIDENCY)) is None
    assert hot_routes_of(counts(20, 10), None) is None
    assert hot_routes_of(counts(20, 10, layers=3), read_hot_set(7, RESIDENCY)) is None


def test_coverage_and_cold_routes_are_logged(books: Bookkeeper, log: RoutingLog) -> None:
    came = arrival()
    hot = read_hot_set(7, RESIDENCY)
    books.settle(came, books.identify(came), STREAMED, EngineBook(), told(counts(20, 10)), hot)
    log.flush()
    (found,) = reader.latest_requests(log.file)
    assert (found.generation, found.routes, found.cold_routes) == (7, 60, 30)
    assert (found.coverage_prefill, found.coverage_decode) == (0.5, 0.5)


def test_no_routes_have_no_coverage(books: Bookkeeper, log: RoutingLog) -> None:
    came = arrival()
    books.settle(
        came, books.identify(came), STREAMED, EngineBook(), told(counts(20, 0)), HotSet(7, (0, 1), _none_hot())
    )
    log.flush()
    (found,) = reader.latest_requests(log.file)
    assert (found.coverage_prefill, found.coverage_decode) == (0.0, None)


def _none_hot() -> Any:
    return np.zeros((2, 4), np.bool_)


# -- whose routes -----------------------------------------------------------------------------------------------------


def test_requests_one_after_the_other_get_what_each_counted(books: Bookkeeper, log: RoutingLog) -> None:
    engine = EngineBook()
    for number, total in ((1, counts(20, 10)), (2, counts(26, 14))):
        came = arrival(number)
        engine.open_requests.add(came.id)
        settle(books, engine, came, STREAMED, told(total))
    log.flush()
    assert [found.routes for found in reader.latest_requests(log.file)] == [20, 60]


def test_requests_at_once_share_by_tokens(books: Bookkeeper, log: RoutingLog) -> None:
    engine = EngineBook()
    first, second = arrival(1), arrival(2)
    engine.open_requests |= {first.id, second.id}
    # 300 tokens were read and 20 written so far, 100 and 5 of them by the request that ends first.
    settle(books, engine, first, STREAMED, told(counts(600, 40)))
    settle(books, engine, second, STREAMED, told(counts(600, 50)))
    log.flush()
    # 2 layers of 200 and 10 routes, then 2 of 400 and 40.
    assert [found.routes for found in reader.latest_requests(log.file)] == [880, 420]


def test_a_request_whose_counters_could_not_be_read_leaves_them_to_the_next(books: Bookkeeper, log: RoutingLog) -> None:
    engine = EngineBook()
    settle(books, engine, arrival(1), STREAMED, None)
    settle(books, engine, arrival(2), STREAMED, told(counts(20, 10)))
    log.flush()
    assert [found.routes for found in reader.latest_requests(log.file)] == [60, None]


def test_what_a_broken_off_request_read_and_wrote_is_what_the_engine_counted(
    books: Bookkeeper, log: RoutingLog
) -> None:
    engine = EngineBook()
    came = arrival()
    engine.open_requests.add(came.id)
    # 2 routes for each token in every layer: 300 tokens were read and 20 written.
    settle(books, engine, came, Outcome("cancelled", 5.0), told(counts(600, 40)))
    log.flush()
    (found,) = reader.latest_requests(log.file)
    assert (found.new_tokens, found.reused_tokens, found.output_tokens) == (300, None, 20)
    (session,) = reader.sessions(MODEL, log.file)
    assert session.tokens == 320


def test_of_requests_at_once_nobody_can_say_what_a_broken_off_one_read(books: Bookkeeper, log: RoutingLog) -> None:
    engine = EngineBook()
    broken_off, other = arrival(1), arrival(2)
    engine.open_requests |= {broken_off.id, other.id}
    settle(books, engine, broken_off, Outcome("cancelled", 5.0), told(counts(600, 40)))
    log.flush()
    (found,) = reader.latest_requests(log.file)
    assert (found.routes, found.new_tokens, found.output_tokens) == (0, None, None)


def test_what_died_with_an_engine_is_nobodys(books: Bookkeeper, log: RoutingLog) -> None:
    engine = EngineBook()
    first, dies = arrival(1), arrival(2)
    engine.open_requests |= {first.id, dies.id}
    settle(books, engine, first, Outcome("cancelled", 5.0), told(counts(600, 40)))
    settle(books, engine, dies, Outcome("engine_died", 5.0), None)
    settle(books, engine, arrival(3), STREAMED, told(counts(700, 50)))
    log.flush()
    assert [found.routes for found in reader.latest_requests(log.file)] == [1500, None, 0]


def test_a_request_that_never_reached_an_engine_is_logged_without_numbers(books: Bookkeeper, log: RoutingLog) -> None:
    came = arrival()
    books.settle(came, books.identify(came), Outcome("engine_busy", 3.0), None, None, None)
    log.flush()
    (found,) = reader.latest_requests(log.file)
    assert (found.status, found.total_ms) == ("engine_busy", 3.0)
    assert (found.routes, found.ttft_ms, found.queue_ms, found.new_tokens) == (None, None, None, None)


# -- names of sessions ------------------------------------------------------------------------------------------------


def test_a_session_is_known_by_the_hash_of_its_id(books: Bookkeeper) -> None:
    turn = books.identify(arrival())
    assert turn.session == books.session_name("s1")
    assert turn.session != "s1"
    books.use_session_key(b"x" * 32)
    assert books.identify(arrival()).session != turn.session


def test_without_a_log_turns_are_still_counted(open_log: OpenLog, file: Path) -> None:
    books = Bookkeeper(open_log(0), KEY, KEY)
    assert books.identify(arrival()).number == 1
    assert not file.exists()
