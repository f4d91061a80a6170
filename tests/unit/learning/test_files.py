"""Learning reads what the routing log has written."""

from __future__ import annotations

from pathlib import Path

from ostinatod.learning.files import LoggedRoutes
from ostinatod.routing_log.writer import RoutingLog
from tests.unit.routing_log.conftest import CAP_BYTES, MODEL, request


def test_sessions_and_times_of_a_generation_come_from_the_log(tmp_path: Path) -> None:
    file = tmp_path / "routes.db"
    log = RoutingLog(file, CAP_BYTES)
    log.start()
    log.put(request(1, generation=1, tpot_ms=30.0))
    log.put(request(2, generation=2, tpot_ms=20.0))
    log.put(request(3, generation=2, tpot_ms=None, session="5e55104e00000002"))
    log.close()

    routes = LoggedRoutes(file)
    first, second = routes.sessions(MODEL)
    # Two requests of 10 decode routes in each of two layers, and one.
    assert (int(first.decode.sum()), int(second.decode.sum())) == (40, 20)
    assert routes.tpots_ms(MODEL, 2) == [20.0]
    assert routes.sessions("other") == []


def test_without_a_log_nothing_is_known(tmp_path: Path) -> None:
    assert LoggedRoutes(tmp_path / "none.db").sessions(MODEL) == []
