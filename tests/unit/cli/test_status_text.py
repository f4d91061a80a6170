"""What `ostinato status` says to people."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from ostinatod.cli.status_text import status_text
from ostinatod.config import Settings
from ostinatod.errors import OstinatoError

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=timezone.utc)
URL = "http://127.0.0.1:11435"
MIB = 1024**2


def lines(told: dict[str, Any]) -> dict[str, str]:
    """What is said, by the words it is said of."""
    rows = (line.strip().partition("    ") for line in status_text(told, URL, NOW).splitlines())
    return {name: value.strip() for name, _, value in rows if name}


def model(**values: Any) -> dict[str, Any]:
    return {"models": [{"name": "tiny", "state": "ready", **values}]}


def test_the_daemon_is_told_by_address_age_build_and_log() -> None:
    said = lines(
        {
            "version": "0.1.0",
            "pid": 7,
            "uptime_s": 4000.0,
            "build": {"backend": "cuda", "digest": "0123456789abcdef"},
            "routing_log": {"state": "on", "written": 3, "dropped": 0, "cap_bytes": 500_000_000},
            "models": [],
        }
    )
    assert said["address"] == URL
    assert said["process"] == "7, up about an hour"
    assert said["engine"] == "built for cuda, 0123456789ab"
    assert said["routing log"] == "on, 3 requests since the start, at most 500 MB"
    assert "No model is in memory." in said


def test_only_settings_that_were_changed_are_told() -> None:
    usual = {"host": "0.0.0.0", "parallel": Settings().parallel, "engine_args": []}
    assert "settings" not in lines({"settings": usual})
    changed = {**usual, "parallel": 9, "engine_args": ["-ngl", "1"], "newer": 3}
    assert lines({"settings": changed})["settings"] == "parallel = 9, engine_args = -ngl 1"


def test_a_log_that_is_off_or_loses_requests_says_why() -> None:
    off = {"state": "off", "reason": "the disk is full", "hint": "Make room"}
    said = status_text({"routing_log": off}, URL, NOW)
    assert "off: the disk is full" in said
    assert "Make room" in said
    lossy = {"state": "on", "written": 9, "dropped": 2, "cap_bytes": 0, "reason": None}
    assert "2 requests not logged: see ostinato logs" in lines({"routing_log": lossy})["routing log"]


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ({"in_flight": 0, "queued": 0}, "ready, idle"),
        ({"in_flight": 2, "queued": 1}, "ready, 2 running, 1 waiting"),
        ({"state": "loading", "load": {"progress": 0.456}}, "loading, 46 %"),
        ({"state": "draining", "in_flight": 1}, "draining, 1 running"),
    ],
)
def test_a_models_state_says_what_it_does(values: dict[str, Any], state: str) -> None:
    assert lines(model(**values))["state"] == state


def test_a_pool_is_told_by_its_size_and_generation_and_memory_by_device() -> None:
    engine = {
        "residency": {"state": "on", "generation": 4, "hot_experts": 225, "pool_bytes": 9 * MIB},
        "memory": {
            "devices": [{"name": "CUDA0", "dense_bytes": 5 * MIB, "pool_bytes": 9 * MIB, "margin_bytes": 99 * MIB}]
        },
    }
    choice = {"chosen": "pool", "reason": "it does not fit", "refused": None, "hint": None}
    said = lines(model(rss_bytes=50_000_000, engine=engine, gpu_experts=choice))
    assert said["experts"] == "pool, since it does not fit; 225 hot in 9.4 MB, generation 4"
    assert said["memory"] == "50 MB resident, 15 MB on CUDA0"


def test_a_refused_pool_says_why_and_what_to_do() -> None:
    choice = {"chosen": "pool", "reason": "asked for", "refused": "an adapter is loaded", "hint": "Leave it out"}
    said = status_text(model(gpu_experts=choice), URL, NOW)
    assert "no expert pool: an adapter is loaded" in said
    assert "Leave it out" in said
    assert "asked for" not in said


def test_routes_that_are_not_counted_and_checked_predictions_are_told() -> None:
    said = lines(
        model(
            engine={"route_counting": {"enabled": False, "reason": "too many layers"}},
            timing={"checked_requests": 12, "median_error": 0.083},
        )
    )
    assert said["routes"] == "not counted: too many layers"
    assert said["predictions"] == "8.3% off in the median of 12 requests"


def test_a_model_says_until_when_it_stays() -> None:
    later = (NOW + timedelta(minutes=5)).isoformat()
    assert lines(model(expires_at=later))["until"] == "5 minutes from now"
    assert lines(model(expires_at=None))["until"] == "Forever"


def test_names_cannot_take_hold_of_the_terminal() -> None:
    told = model(gpu_experts={"chosen": "stock", "reason": "x\x1b]0;t\x07\ny"})
    told["models"][0]["name"] = "evil\x1b[2J\u202e"
    said = status_text(told, URL, NOW)
    assert not any(letter in said for letter in ("\x1b", "\x07", "\u202e"))


@pytest.mark.parametrize("told", [{}, {"models": None}, {"models": [{}]}])
def test_an_older_daemon_that_tells_less_is_no_error(told: dict[str, Any]) -> None:
    assert "Daemon" in status_text(told, URL, NOW)


def test_an_answer_of_another_shape_is_an_error_that_says_so() -> None:
    with pytest.raises(OstinatoError):
        status_text({"models": "nonsense"}, URL, NOW)
