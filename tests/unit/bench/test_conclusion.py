from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinatod.bench.comparison import Comparison, Outcome
from ostinatod.bench.conclusion import concluded, write_report
from ostinatod.bench.learning import Chosen, Learned, chosen_from_json
from ostinatod.bench.options import Options
from ostinatod.bench.sessions import Limits, Session, Turn
from ostinatod.bench.settings import Setting
from ostinatod.profiles.experts import ModelExperts
from tests.unit.bench.test_report import TURNS

EXPERTS = ModelExperts(layers=(0, 1), expert_bytes=(1000, 1000), n_experts=(4, 4), k=2)
HOT = np.array([[True, True, False, False], [True, False, False, False]])
PLAN = Comparison(
    libraries=Path("lib"),
    model=Path("folder/m.gguf"),
    experts=EXPERTS,
    context_tokens=4096,
    recorded=(),
    on_gpu=True,
    pool_bytes=None,
    options=Options(limits=Limits(turns=2), gpu_bytes=5000),
)
SESSIONS = [
    Session("first", "swe", "held-out", (Turn("first", 0, (1, 2), (3,)), Turn("after_tool", 2, (4,), (5, 6)))),
    Session("taught", "swe", "development", (Turn("first", 0, (1,), (2,)),)),
]


def outcome(**changes: Any) -> Outcome:
    settings = (Setting("ostinato", "ostinato"), Setting("stock <best>", "stock", 1))
    values: dict[str, Any] = {
        "chosen": Chosen(Learned(3000, HOT, 0.75), settings, ({"setting": {}, "total_ms": 1.0, "reason": None},)),
        "turns": TURNS,
        "sessions": SESSIONS,
        "loaded": {"ostinato": {"load_s": 2.0, "hot_experts": 3}},
        "failures": {},
        "skipped": [],
    }
    return Outcome(**{**values, **changes})


def test_a_report_says_what_its_numbers_depend_on() -> None:
    report = concluded(PLAN, outcome(), {"machine": "a machine"})
    assert report.base == "ostinato"
    told = report.facts
    assert (told["model"], told["backend"], told["hot_experts"], told["experts"]) == ("m.gguf", "cuda", 3, 8)
    assert told["sessions"]["held-out"] == [{"id": "first", "domain": "swe", "turns": 2, "tokens": 5}]
    notes = " ".join(report.notes)
    for words in ("1 held-out session with 2 turns", "chosen on 1 other session", "38% of them all", "first 2 at most"):
        assert words in notes
    assert "no interval" in notes


def test_settings_that_were_given_are_not_said_to_be_the_best() -> None:
    assert "Hot experts and the best setting of each kind: chosen" in concluded(PLAN, outcome(), {}).notes[0]
    given = replace(outcome().chosen, search=())
    assert "best setting" not in concluded(PLAN, outcome(chosen=given), {}).notes[0]


def test_what_went_otherwise_than_planned_is_told() -> None:
    notes = concluded(
        PLAN,
        outcome(failures={"stock <best>": "out of memory"}, skipped=["long"], loaded={"ostinato": {"hot_experts": 2}}),
        {},
    ).notes
    assert "stock <best> could not go to its end: out of memory" in notes
    assert any("turns that both have" in note for note in notes)
    assert not any("turns that both have" in note for note in concluded(PLAN, outcome(), {}).notes)
    assert "Left out, since their first turn does not fit: long." in notes
    assert "ostinato: the engine kept 2 of 3 hot experts, more did not fit." in notes


def test_a_staging_buffer_that_was_asked_for_is_told_with_its_size() -> None:
    asked = replace(PLAN, options=replace(PLAN.options, staging_experts=108))
    ready = {"ostinato": {"hot_experts": 3, "staging_bytes": 1444}, "stock": {"load_s": 2.0}}
    report = concluded(asked, outcome(loaded=ready), {})
    assert (report.facts["staging_experts"], report.facts["staging_bytes"]) == (108, {"ostinato": 1444})
    assert any("staging buffer, for 108 experts as asked, comes on top" in note for note in report.notes)
    assert any("staging buffer is within it" in note for note in concluded(PLAN, outcome(), {}).notes)


def test_a_busy_machine_is_told() -> None:
    notes = concluded(PLAN, outcome(), {"load_before": 8.4, "cores": 2}).notes
    assert any(
        note.startswith("Other programs were at work when this began (a load of 8.4 on 2 cores)") for note in notes
    )
    assert not any(
        "Other programs" in note for note in concluded(PLAN, outcome(), {"load_before": 0.4, "cores": 2}).notes
    )


def test_models_in_a_daemon_are_told() -> None:
    notes = concluded(PLAN, outcome(), {"daemon_models": ["tiny", "qwen3"]}).notes
    assert "The daemon had tiny, qwen3 loaded when this began, which takes memory and cores." in notes
    assert not any("daemon" in note for note in concluded(PLAN, outcome(), {"daemon_models": []}).notes)


def test_stock_with_more_memory_than_the_others_is_told() -> None:
    # One of two layers of 4,000 bytes is on the GPU, where hot experts and staging buffer may have 3,000.
    assert any(note.endswith("(50.0%), more than that.") for note in concluded(PLAN, outcome(), {}).notes)
    fits = Chosen(Learned(4000, HOT, 0.75), outcome().chosen.settings, ())
    assert not any("more than that" in note for note in concluded(PLAN, outcome(chosen=fits), {}).notes)


def test_what_is_chosen_survives_the_file_of_results() -> None:
    chosen = outcome().chosen
    again = chosen_from_json(json.loads(json.dumps(chosen.as_json())))
    assert (again.learned.hot == HOT).all()
    assert (again.settings, again.search) == (chosen.settings, chosen.search)
    assert (again.learned.pool_bytes, again.learned.coverage) == (3000, 0.75)


def test_report_and_plot_are_written_beside_each_other(tmp_path: Path) -> None:
    written = write_report(concluded(PLAN, outcome(), {}), tmp_path / "new" / "folder")
    assert [file.name for file in written] == ["report.json", "plot.svg", "plot.png"]
    assert (tmp_path / "new" / "folder" / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "new" / "folder" / "report.json").read_text())["base"] == "ostinato"
    assert "<svg" in (tmp_path / "new" / "folder" / "plot.svg").read_text()


def test_without_pillow_there_is_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    written = write_report(concluded(PLAN, outcome(), {}), tmp_path)
    assert [file.name for file in written] == ["report.json", "plot.svg"]
    assert not (tmp_path / "plot.png").exists()
