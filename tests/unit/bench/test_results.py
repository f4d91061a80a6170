from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostinatod.bench.results import ResultFile, TurnResult, continue_results
from ostinatod.errors import RequestError

REQUEST = {"model": "m.gguf", "limits": {"turns": None}, "sessions": [["held-out", "a", 2, 100]]}


def turn(number: int, setting: str = "ostinato", session: str = "a", repeat: int = 0) -> TurnResult:
    return TurnResult(setting, session, number, repeat, "after_tool", 10, 20, 5, 100.5, 9.25, 137.5, 7)


def test_what_was_appended_is_in_the_file_at_once(tmp_path: Path) -> None:
    with ResultFile(tmp_path / "out" / "turns.jsonl", REQUEST, {"hot": [[1]]}) as file:
        file.append_loaded("ostinato", {"load_s": 2})
        file.append(turn(0))
        lines = [json.loads(line) for line in (tmp_path / "out" / "turns.jsonl").read_text().splitlines()]
    assert lines[0] == {"request": REQUEST, "chosen": {"hot": [[1]]}}
    assert lines[1] == {"setting": "ostinato", "loaded": {"load_s": 2}}
    assert (lines[2]["turn"], lines[2]["ttft_ms"]) == (0, 100.5)


def test_a_run_that_was_cut_short_continues_after_its_last_whole_turn(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    with ResultFile(path, REQUEST, {"hot": [[1]]}) as file:
        file.append_loaded("ostinato", {"load_s": 2})
        file.append(turn(0))
        file.append(turn(1))
    raw = path.read_bytes()
    path.write_bytes(raw[:-40])

    continued = continue_results(path, REQUEST)
    assert continued is not None
    with continued:
        assert continued.turns == [turn(0)]
        assert (continued.loaded, continued.chosen) == ({"ostinato": {"load_s": 2}}, {"hot": [[1]]})
        continued.append(turn(1))
    assert path.read_bytes() == raw


def test_done_turns_are_counted_from_the_first_on_by_setting_and_repeat(tmp_path: Path) -> None:
    with ResultFile(tmp_path / "turns.jsonl", REQUEST, {}) as file:
        for item in (turn(0), turn(1), turn(0, session="b"), turn(0, "stock"), turn(0, repeat=1), turn(3)):
            file.append(item)
        assert file.done("ostinato", 0) == {"a": 2, "b": 1}
        assert file.done("ostinato", 1) == {"a": 1}
        assert file.done("other", 0) == {}


def test_there_is_nothing_to_continue_where_there_is_no_file(tmp_path: Path) -> None:
    assert continue_results(tmp_path / "turns.jsonl", REQUEST) is None


def test_another_comparison_is_not_continued_and_says_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    ResultFile(path, REQUEST, {}).__exit__()
    before = path.read_bytes()
    with pytest.raises(RequestError, match="differs in limits, model"):
        continue_results(path, {**REQUEST, "model": "other", "limits": {"turns": 3}})
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", ["", "{}\n", "[1]\n", '{"request": {}, "chosen": {}}\n{"turn": 1}\n', "x\n"])
def test_files_that_are_no_results_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "turns.jsonl").write_text(content)
    with pytest.raises(RequestError, match="holds no results"):
        continue_results(tmp_path / "turns.jsonl", REQUEST)
