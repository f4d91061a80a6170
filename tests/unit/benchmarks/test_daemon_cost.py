"""What the daemon adds: its intervals, its core time, and the time that measuring may take."""

from __future__ import annotations

import os
import time
from typing import Any

import daemon_cost
import httpx
import numpy as np
import pytest
from daemon_cost import Times, core_time, difference, lines_of, registered, summary


def times(ms: float) -> Times:
    return Times(ms, ms, ms, ms)


def test_differences_are_within_pairs() -> None:
    # The machine is ten times slower in every other pair; what the daemon adds is the same.
    pairs = [(times(slow), times(slow + 2)) for slow in (1.0, 10.0) * 10]
    found = summary(pairs, None)["ttft"]
    assert found["difference_ms"] == found["low_ms"] == found["high_ms"] == pytest.approx(2)
    assert found["daemon_ms"] - found["engine_ms"] == pytest.approx(2)


def test_an_interval_is_as_wide_as_the_pairs_scatter() -> None:
    engine = np.ones(40)
    narrow = difference(np.stack([engine, engine + np.linspace(1, 2, 40)], axis=1))
    wide = difference(np.stack([engine, engine + np.linspace(0, 3, 40)], axis=1))
    assert wide["low_ms"] < narrow["low_ms"] < narrow["difference_ms"] < narrow["high_ms"] < wide["high_ms"]


def test_core_time_is_divided_between_requests_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(client: httpx.Client, model: str, tokens: int) -> Times:
        # 10 ms for each of the two requests, 1 ms for each streamed token.
        ends_at = time.process_time() + 0.020 + 0.001 * tokens
        while time.process_time() < ends_at:
            pass
        return times(1)

    monkeypatch.setattr(daemon_cost, "ask", ask)
    with httpx.Client() as client:
        found = core_time(client, "m", os.getpid(), 8, 6, time.monotonic() + 100)
    assert found["requests"] == 24
    assert found["per_token"] == pytest.approx(1, rel=0.4)
    assert found["per_request"] == pytest.approx(10, rel=0.4)


def test_no_more_requests_are_made_than_the_time_suffices_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def ask(client: httpx.Client, model: str, tokens: int) -> Times:
        asked.append(tokens)
        return times(1)

    monkeypatch.setattr(daemon_cost, "ask", ask)
    with httpx.Client() as client:
        found = core_time(client, "m", os.getpid(), 4, 50, time.monotonic() - 1)
    assert asked == [4, 4, 32, 32]
    assert found["requests"] == 8


def test_what_was_measured_is_told_also_before_core_time_is_known() -> None:
    pairs = [(times(1), times(3))] * 4
    assert len(list(lines_of(summary(pairs, None)))) == 4
    core: dict[str, Any] = {"per_request": 14.0, "per_token": 0.5, "requests": 8}
    assert next(lines_of(summary(pairs, core))).endswith("14.00 ms per request, 0.500 ms per token (8 requests)")


def test_a_registered_name_is_taken_as_it_is() -> None:
    assert registered("no-such-file", {}) == "no-such-file"
