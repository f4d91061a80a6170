from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

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
    write_report(concluded(PLAN, outcome(), {}), tmp_path / "new" / "folder")
    assert json.loads((tmp_path / "new" / "folder" / "report.json").read_text())["base"] == "ostinato"
    assert "<svg" in (tmp_path / "new" / "folder" / "plot.svg").read_text()
