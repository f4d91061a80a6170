"""Which path a request's prompt took, from the engine's counters."""

from __future__ import annotations

from typing import Any

import pytest

from ostinatod.routing_log.engine_work import EngineWork, PathTaken, WorkLedger, read_engine_work


def work(uploaded: int = 0, cpu_routes: int = 0) -> EngineWork:
    """Experts of 100 bytes."""
    return EngineWork(False, uploaded, 100 * uploaded, cpu_routes)


@pytest.mark.parametrize(
    ("now", "path"),
    [
        (EngineWork(is_stock=True), PathTaken("stock", 0)),
        (work(5, 90), PathTaken("split", 0)),
        (work(5, 50), PathTaken("split", 0)),
        (work(8, 50), PathTaken("upload", 300)),
        (work(8, 60), PathTaken("choice", 300)),
    ],
)
def test_the_path_is_what_was_uploaded_and_what_the_cpu_computed(now: EngineWork, path: PathTaken) -> None:
    ledger = WorkLedger()
    ledger.take(work(5, 50), alone=True)
    assert ledger.take(now, alone=True) == path


def test_the_first_request_of_an_engine_did_all_that_was_done() -> None:
    assert WorkLedger().take(work(2, 7), alone=True) == PathTaken("choice", 200)


def test_requests_at_once_cannot_be_told_apart() -> None:
    ledger = WorkLedger()
    assert ledger.take(work(1), alone=False) is None
    assert ledger.take(work(3), alone=True) is None
    assert ledger.take(work(4), alone=True) == PathTaken("upload", 100)


def test_an_engine_that_died_counts_from_zero() -> None:
    ledger = WorkLedger()
    ledger.take(work(9, 9), alone=True)
    ledger.restarted()
    assert ledger.take(work(9, 10), alone=True) == PathTaken("choice", 900)
    assert ledger.take(work(1, 1), alone=True) == PathTaken("choice", 100)


APPLIED: dict[str, Any] = {
    "residency": {"state": "applied"},
    "devices": [{"uploaded": 2, "uploaded_bytes": 200}, {"uploaded": 1, "uploaded_bytes": 50}],
    "cpu_branch": [{"prefill": {"cpu_routes": 7}}, {"prefill": {"cpu_routes": 1}}],
}


def test_the_engine_s_status_is_read() -> None:
    assert read_engine_work(APPLIED) == EngineWork(False, 3, 250, 8)
    assert read_engine_work({"residency": {"state": "none"}}) == EngineWork(is_stock=True)


@pytest.mark.parametrize("status", [None, {}, {**APPLIED, "devices": None}, {**APPLIED, "cpu_branch": [{}]}])
def test_an_engine_that_does_not_tell_is_not_guessed(status: dict[str, Any] | None) -> None:
    assert read_engine_work(status) is None
