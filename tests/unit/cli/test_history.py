from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from ostinatod.cli.history import human_ms, parse_moment
from ostinatod.errors import ConfigError
from tests.fakes.daemon import FakeDaemon
from tests.unit.cli.conftest import Invoke


def percentiles(p50: float | None, p90: float | None = None, p99: float | None = None) -> dict[str, float | None]:
    return {"p50": p50, "p90": p90, "p99": p99}


STATS: dict[str, Any] = {
    "models": [
        {
            "model": "tiny",
            "sessions": 12,
            "sessions_merged": 3,
            "requests": 340,
            "side_requests": 12,
            "prefix_breaks": 2,
            "lost_tokens": 9000,
            "new_tokens": 100_000,
            "reused_tokens": 2_000_000,
            "output_tokens": 30_000,
            "phases": {
                "prefill": {"tokens": 100_000, "routes": 6_400_000, "coverage": 0.8125},
                "decode": {"tokens": 30_000, "routes": 1_920_000, "coverage": None},
            },
            "kinds": {
                "after_tool": {
                    "requests": 200,
                    "new_tokens": 60_000,
                    "reused_tokens": 1_500_000,
                    "ttft_ms": percentiles(850.4, 1500, 12_345),
                    "tpot_ms": percentiles(9.876, 12.3, 20),
                },
                "side": {
                    "requests": 12,
                    "new_tokens": 900,
                    "reused_tokens": 0,
                    "ttft_ms": percentiles(None),
                    "tpot_ms": percentiles(None),
                },
            },
        }
    ],
    "sessions": 12,
    "requests": 340,
    "database": {"used_bytes": 12_300_000, "file_bytes": 13_000_000, "file": "/data/routes.db"},
    "log": {"state": "on", "reason": None, "hint": None, "dropped": 0, "written": 5, "cap_bytes": 512_000_000},
}


@pytest.fixture
def daemon_with_stats(daemon: FakeDaemon) -> FakeDaemon:
    daemon.errors["/ostinato/stats"] = (200, STATS)
    daemon.errors["/ostinato/forget"] = (200, {"sessions": 1, "requests": 20})
    return daemon


def test_stats_shows_totals_and_times_by_kind_of_turn(invoke: Invoke, daemon_with_stats: FakeDaemon) -> None:
    assert invoke("stats").stdout.splitlines() == [
        "  tiny",
        "    sessions          12, 3 of them merged",
        "    requests          340, 12 of them side requests",
        "    prompt tokens     100000 read, 2000000 reused",
        "    output tokens     30000",
        "    prefix breaks     2, 9000 tokens read again",
        "    prefill routes    6400000, 81.2% of them hot",
        "    decode routes     1920000",
        "",
        "TURN            REQUESTS    READ     REUSED     TTFT P50    P90      P99       PER TOKEN P50    P90",
        "after a tool    200         60000    1500000    850 ms      1.5 s    12.3 s    9.88 ms          12 ms",
        "side request    12          900      0          -           -        -         -                -",
        "",
        "  Routing log",
        "    state    on",
        "    size     12 MB of 512 MB",
        "    file     /data/routes.db",
    ]


def test_stats_says_why_the_log_is_off_and_what_was_lost(invoke: Invoke, daemon: FakeDaemon) -> None:
    reason = "the routing log is off because the disk is full"
    log = {"state": "off", "reason": reason, "hint": "Free some space", "dropped": 1, "cap_bytes": 0}
    daemon.errors["/ostinato/stats"] = (200, {"models": [], "log": log, "database": {}})
    assert invoke("stats").stdout.splitlines()[1:4] == [
        f"    state    {reason}",
        "             Free some space",
        "    lost     1 request since the daemon started",
    ]


def test_stats_as_json_is_what_the_daemon_told(invoke: Invoke, daemon_with_stats: FakeDaemon) -> None:
    assert json.loads(invoke("stats", "--json").stdout) == STATS


def test_stats_of_one_model_asks_for_it(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.errors["/ostinato/stats?model=hf.co%2Fa%2Fb%3AQ4"] = (200, STATS)
    assert invoke("stats", "hf.co/a/b:Q4").exit_code == 0


def test_a_log_that_cannot_be_read_ends_with_the_next_command(invoke: Invoke, daemon: FakeDaemon) -> None:
    told = {"error": "it is damaged", "kind": "routing_log_unavailable", "hint": "ostinato forget --all"}
    daemon.errors["/ostinato/stats"] = (503, told)
    done = invoke("stats")
    assert done.exit_code == 1
    assert done.stderr.splitlines() == ["Error: it is damaged", "ostinato forget --all"]


@pytest.mark.parametrize(
    ("arguments", "question", "asked"),
    [
        (("--all",), "the whole routing log", {}),
        (("--model", "tiny"), "what is logged of tiny", {"model": "tiny"}),
        (("--session", "s1"), "what is logged of session s1", {"session": "s1"}),
        (
            ("--model", "tiny", "--before", "2026-01-31"),
            "what is logged of tiny before 2026-01-31 00:00",
            {"model": "tiny", "before": datetime(2026, 1, 31).timestamp()},
        ),
    ],
)
def test_forget_asks_first_and_then_tells_how_much_went(
    invoke: Invoke, daemon_with_stats: FakeDaemon, arguments: tuple[str, ...], question: str, asked: dict[str, Any]
) -> None:
    done = invoke("forget", *arguments, stdin="y\n")
    assert done.stderr.startswith(f"Forget {question}? [y/N]: ")
    assert done.stderr.endswith("forgot 1 session and 20 requests\n")
    assert daemon_with_stats.asked("/ostinato/forget") == [{"model": None, "session": None, "before": None, **asked}]


def test_forget_without_a_yes_forgets_nothing(invoke: Invoke, daemon_with_stats: FakeDaemon) -> None:
    for answer in ("n\n", "\n", ""):
        assert invoke("forget", "--all", stdin=answer).exit_code == 130
    assert daemon_with_stats.asked("/ostinato/forget") == []


def test_forget_with_yes_does_not_ask(invoke: Invoke, daemon_with_stats: FakeDaemon) -> None:
    done = invoke("forget", "--all", "--yes", "--json")
    assert json.loads(done.stdout) == {"sessions": 1, "requests": 20}
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [(), ("--all", "--model", "tiny"), ("--yes",)])
def test_forget_wants_to_know_what(invoke: Invoke, daemon_with_stats: FakeDaemon, arguments: tuple[str, ...]) -> None:
    done = invoke("forget", *arguments)
    assert done.exit_code == 2
    assert "Expected --all, or what to forget" in done.stderr
    assert daemon_with_stats.requests == []


def test_a_moment_is_a_date_or_an_age() -> None:
    assert parse_moment("2026-01-31T12:00:00+00:00", now=0) == 1769860800
    assert parse_moment("2d", now=200_000.0) == 200_000 - 2 * 86400
    for text in ("soon", "forever", "-3d", "2026-13-01"):
        with pytest.raises(ConfigError, match="2026-01-31 or an age such as 30d"):
            parse_moment(text, now=0)


def test_times_are_shown_in_a_unit_of_their_size() -> None:
    assert [human_ms(value) for value in (None, 0.5, 9.99, 10.4, 999.4, 1000, 61_000)] == [
        *("-", "0.50 ms", "9.99 ms", "10 ms", "999 ms", "1.0 s", "61.0 s")
    ]
