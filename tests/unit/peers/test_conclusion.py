"""What replayed sessions say about engines: ratios, intervals, who is fastest, and over which turns."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.peers.conclusion import NOTHING, concluded, main, words_of
from benchmarks.peers.sessions import Replayed
from ostinatod.bench.results import ResultFile, TurnResult


def turn_of(session: str, number: int, total_ms: float, repeat: int = 0) -> TurnResult:
    return TurnResult("ostinato", session, number, repeat, "after_tool", 10, 300, 11, total_ms / 2, None, total_ms)


def replay_of(engine: str, sessions: dict[str, Sequence[float]], error: str = "") -> Replayed:
    lengths = {"kind": "after_tool", "reused": 10, "new": 300, "output": 11}
    turns = {
        name: [{**lengths, "ttft_ms": ms - 100.0, "total_ms": ms} for ms in times] for name, times in sessions.items()
    }
    return Replayed(engine, {"n": 1}, turns, error, 5)


def own_turns(folder: Path, turns: Sequence[TurnResult]) -> Path:
    file = folder / "turns.jsonl"
    with ResultFile(file, {}, {}) as results:
        results.append_loaded("ostinato", {"load_s": 1, "gpu_bytes": 10, "pool_bytes": 20, "staging_bytes": 3})
        for turn in turns:
            results.append(turn)
    return file


def test_engines_are_compared_with_ours_over_the_turns_that_all_have(tmp_path: Path) -> None:
    file = own_turns(
        tmp_path, [turn_of("a", 0, 1000), turn_of("a", 1, 2000), turn_of("a", 2, 4000), turn_of("a", 0, 3000, repeat=1)]
    )
    cut = replay_of("ik", {"a": [5000.0, 6000.0]}, "not done")
    nothing = replay_of("none", {}, "crashed")

    report = concluded([cut, nothing], file)

    assert report is not None
    assert report.base == "ostinato"
    assert words_of(report).splitlines()[:4] == [
        "| session | ostinato | ik | fastest |",
        "| --- | --- | --- | --- |",
        "| a | 4.00 | 11.00 | ostinato |",
        "| all | 4.00 | 11.00 | ostinato |",
    ]
    (against,) = report.versus
    assert (against.setting, against.turns, against.total.value) == ("ik", 2, 11 / 4)
    assert report.facts == {"gpu_bytes": {"ik": 5, "none": 5}, "gpu_buffer_bytes": {"ostinato": 33}}


def test_a_session_that_another_engine_finishes_sooner_is_its(tmp_path: Path) -> None:
    file = own_turns(tmp_path, [turn_of("a", 0, 1000), turn_of("b", 0, 1000)])

    report = concluded([replay_of("ik", {"a": [500.0], "b": [3000.0]})], file)

    assert report is not None
    (against,) = report.versus
    assert (against.sessions, against.sessions_won) == (2, 1)
    assert (against.total.value, against.total.low, against.total.high) == (1.75, 0.5, 3.0)
    fastest = [row.split(" | ")[-1] for row in words_of(report).splitlines()[2:5]]
    assert fastest == ["ik |", "ostinato |", "ostinato |"]


def test_time_per_token_is_that_of_the_tokens_after_the_first() -> None:
    (result,) = replay_of("ik", {"a": [600.0]}).results()

    assert (result.ttft_ms, result.tpot_ms, result.total_ms) == (500.0, 10.0, 600.0)


def test_without_a_turn_that_all_have_there_is_nothing_to_compare(tmp_path: Path) -> None:
    file = own_turns(tmp_path, [turn_of("a", 0, 1000)])

    assert concluded([replay_of("ik", {"b": [500.0]})], file) is None
    assert concluded([], None) is None
    assert words_of(None) == NOTHING


def test_the_comparison_is_written_into_a_result_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replays = [replay_of("ik", {"a": [2000.0], "b": [4500.0]}), replay_of("FreeToken", {"a": [900.0], "b": [4000.0]})]
    result = tmp_path / "result.json"
    result.write_text(json.dumps({"work": 1, "replays": {r.engine: r.as_json() for r in replays}}), encoding="utf-8")
    file = own_turns(tmp_path, [turn_of("a", 0, 1000), turn_of("b", 0, 1500)])
    monkeypatch.setattr(sys, "argv", ["conclusion", str(result), "--replayed", str(file)])

    assert main() == 0

    found = json.loads(result.read_text(encoding="utf-8"))
    assert found["work"] == 1
    assert [item["sessions_won"] for item in found["comparison"]["versus"]] == [2, 1]
    assert [round(item["total"]["value"], 6) for item in found["comparison"]["versus"]] == [2.6, 1.96]
    told = capsys.readouterr().out
    assert "| b | 1.50 | 4.50 | 4.00 | ostinato |\n| all | 2.50 | 6.50 | 4.90 | ostinato |" in told
    assert "[2.00, 3.00]" in told
