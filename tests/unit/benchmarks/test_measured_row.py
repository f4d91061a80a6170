"""What a row makes of its steps, its counters and its text, and the tables that it is shown in."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from measured_row import SPARE_TOKENS, Job, changed, pooled
from session_text import SessionText
from text_table import shown, text_table
from this_machine import expected

from ostinatod.bindings import DeviceStatus

SESSIONS = Path(__file__).parents[2] / "data" / "agent-sessions.npz"


def status(**values: Any) -> DeviceStatus:
    """A device that has counted nothing, but for these."""
    kinds = {"str": "CUDA0", "bool": True, "int": 0, "float": 0.0}
    known = {item.name: kinds[str(item.type)] for item in dataclasses.fields(DeviceStatus)}
    return DeviceStatus(**{**known, **values})


def test_every_counter_is_divided_by_the_steps() -> None:
    before = [status(cold_routes=10, waited_ns=100), status(cold_routes=5)]
    after = [status(cold_routes=30, waited_ns=400, pool_capacity=0), status(cold_routes=6)]
    first, second = changed(before, after, 10)
    assert (first["cold_routes"], first["waited_ns"], second["cold_routes"]) == (2.0, 30.0, 0.1)
    assert "name" not in first
    assert "is_gpu" not in first


def test_texts_are_pooled_and_devices_added() -> None:
    texts = [
        {"per_step": [{"cold_routes": 2.0}, {"cold_routes": 1.0}]},
        {"per_step": [{"cold_routes": 4.0}, {"cold_routes": 1.0}]},
    ]
    told = pooled([1.0, 2.0, 3.0, 2.0], texts)
    assert (told["decode_ms"], told["decode_ms_mean"]) == (2.0, 2.0)
    assert told["decode_ms_spread"] == [1.3, 2.7]
    # Three routes a step in one text, five in the other.
    assert told["per_step"] == {"cold_routes": 4.0}
    assert pooled([1.0], [{"per_step": []}])["per_step"] == {}


def test_text_is_the_same_for_all_who_ask_and_has_no_end() -> None:
    text = SessionText(SESSIONS, "held-out", 32000)
    assert text.at(5, 3) == text.at(0, 8)[5:]
    whole = len(text._tokens) if text._tokens is not None else 0
    assert text.at(whole - 1, 3) == [*text.at(whole - 1, 1), *text.at(0, 2)]
    assert text.at(20_000, 50) != SessionText(SESSIONS, "development", 32000).at(20_000, 50)
    random = SessionText(None, "held-out", 100)
    assert random.at(7, 20) == random.at(7, 20)
    assert random.at(7, 20) != random.at(8, 20)
    assert max(random.at(0, 1000)) < 100


@pytest.mark.parametrize(
    ("own", "tokens"),
    [
        ({"lengths": (32, 2048)}, 8192 + 2048),
        ({"new_tokens": 249, "decode_tokens": 192}, 8192 + 249 + 16 + 192),
        ({"depths": (16,), "decode_tokens": 1, "counts": True}, 4096),
    ],
)
def test_a_context_has_room_for_the_deepest_request(own: dict[str, Any], tokens: int) -> None:
    job = Job(**{"libraries": "", "model": "", "setting": {}, "out": "", "contexts": "", "decode_tokens": 64, **own})
    assert job.context_tokens == tokens + SPARE_TOKENS


def test_numbers_stand_below_each_other() -> None:
    assert text_table(["", "ms"], [["a long name", "1.5"], ["b", "12.25"]]).splitlines() == [
        "                ms",
        "a long name    1.5",
        "b            12.25",
    ]
    assert (shown(None), shown(1.234), shown(1.0, ".0f")) == ("-", "1.23", "1")


def test_the_expected_time_is_that_of_loading(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    with model.open("wb") as file:
        file.truncate(9_000_000_000)
    assert expected(3, [model], None, "turns").startswith("Expected: 3 loads of about 8 s, 24 s in all")
    assert expected(3, [model], 300.0, "turns").endswith("no more than 300 s, by leaving turns out")
