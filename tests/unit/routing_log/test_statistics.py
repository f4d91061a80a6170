from __future__ import annotations

from ostinatod.routing_log.statistics import model_statistics, session_percentiles
from ostinatod.routing_log.writer import RoutingLog
from ostinatod.sessions.prefix_break import PrefixBreak
from tests.unit.routing_log.conftest import MODEL, request

OTHER = "cd" * 32


def test_totals_are_of_all_requests_and_times_of_those_answered(log: RoutingLog) -> None:
    log.put(request(1, kind="first", ttft_ms=500.0))
    log.put(request(2, ttft_ms=100.0, prefix_break=PrefixBreak("tools", None, 40)))
    log.put(request(3, ttft_ms=300.0))
    log.put(request(4, status="cancelled", ttft_ms=9.0, new_tokens=None, output_tokens=None))
    log.put(request(5, kind="side", turn=None))
    log.put(request(6, fingerprint=OTHER))
    log.flush()
    found = model_statistics(log.file)
    assert set(found) == {MODEL, OTHER}
    told = found[MODEL]
    assert (told["sessions"], told["sessions_merged"], told["requests"], told["side_requests"]) == (1, 0, 5, 1)
    assert (told["started_at"], told["last_at"]) == (1.0, 5.0)
    assert (told["prefix_breaks"], told["lost_tokens"]) == (1, 40)
    assert (told["new_tokens"], told["reused_tokens"], told["output_tokens"]) == (40, 450, 20)
    assert told["statuses"] == {"ok": 4, "cancelled": 1}
    after_tool = told["kinds"]["after_tool"]
    assert after_tool["requests"] == 3
    # Of 100 and 300 ms.
    assert after_tool["ttft_ms"] == {"p50": 200.0, "p90": 280.0, "p99": 298.0}
    assert list(model_statistics(log.file, OTHER)) == [OTHER]


def test_coverage_is_weighted_by_routes_and_ignores_what_is_unknown(log: RoutingLog) -> None:
    # 40 prefill routes each: all hot, none hot, not known.
    for number, coverage in enumerate((1.0, 0.0, None), 1):
        log.put(request(number, coverage_prefill=coverage))
    log.flush()
    phases = model_statistics(log.file)[MODEL]["phases"]
    assert phases["prefill"] == {"tokens": 30, "routes": 120, "coverage": 0.5}
    assert phases["decode"] == {"tokens": 15, "routes": 60, "coverage": None}


def test_medians_of_a_session_leave_out_failures_and_side_requests(log: RoutingLog) -> None:
    log.put(request(1, kind="first", ttft_ms=900.0, tpot_ms=10.0))
    log.put(request(2, ttft_ms=100.0, tpot_ms=20.0))
    log.put(request(3, ttft_ms=200.0, tpot_ms=None))
    log.put(request(4, status="cancelled", ttft_ms=1.0))
    log.put(request(5, kind="side", turn=None, ttft_ms=1.0))
    log.flush()
    session = request(1).session or ""
    assert session_percentiles([(MODEL, session), (MODEL, "unknown")], log.file) == {
        (MODEL, session): {"ttft_ms_p50": 200.0, "tpot_ms_p50": 15.0, "wait_after_tool_ms_p50": 150.0},
        (MODEL, "unknown"): {"ttft_ms_p50": None, "tpot_ms_p50": None, "wait_after_tool_ms_p50": None},
    }


def test_nothing_logged_has_no_statistics(log: RoutingLog) -> None:
    log.flush()
    assert model_statistics(log.file) == {}
    assert model_statistics(log.file.with_name("none.db")) == {}
