"""Learning reads what the routing log has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ostinatod.learning.files import READ_SESSIONS, LoggedRoutes
from ostinatod.profiles.rates import Forgetting, remembered
from ostinatod.routing_log.writer import RoutingLog
from tests.unit.routing_log.conftest import CAP_BYTES, MODEL, request


def test_sessions_and_times_of_a_generation_come_from_the_log(tmp_path: Path) -> None:
    file = tmp_path / "routes.db"
    log = RoutingLog(file, CAP_BYTES)
    log.start()
    log.put(request(1, generation=1, tpot_ms=30.0, output_tokens=8))
    log.put(request(2, generation=2, tpot_ms=20.0, output_tokens=8))
    other: dict[str, Any] = {"generation": 2, "session": "5e55104e00000002"}
    log.put(request(3, tpot_ms=None, output_tokens=8, **other))
    # What is broken off, or over after a few tokens, says little about time.
    log.put(request(4, tpot_ms=500.0, output_tokens=7, counts=None, **other))
    log.put(request(5, tpot_ms=500.0, output_tokens=8, status="cancelled", counts=None, **other))
    log.close()

    routes = LoggedRoutes(file)
    first, second = routes.sessions(MODEL)
    # Two requests of 10 decode routes in each of two layers, and one.
    assert (int(first.decode.sum()), int(second.decode.sum())) == (40, 20)
    assert routes.tpots_ms(MODEL, 2) == [20.0]
    assert routes.sessions("other") == []


def test_no_more_sessions_are_read_than_have_a_say(tmp_path: Path) -> None:
    file = tmp_path / "routes.db"
    log = RoutingLog(file, CAP_BYTES, queue_records=1000)
    log.start()
    for number in range(READ_SESSIONS + 2):
        log.put(request(number, session=f"s{number}"))
    log.close()
    found = LoggedRoutes(file).sessions(MODEL)
    assert [session.session for session in found] == [f"s{number}" for number in range(2, READ_SESSIONS + 2)]
    assert len(remembered(found, Forgetting())) < len(found)


def test_without_a_log_nothing_is_known(tmp_path: Path) -> None:
    assert LoggedRoutes(tmp_path / "none.db").sessions(MODEL) == []
