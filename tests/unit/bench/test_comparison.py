"""What a comparison does with a GPU, with a scripted process in place of the one that loads models."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ostinatod.bench.comparison import RESULTS_FILE, Comparison, Outcome, compare
from ostinatod.bench.memory import pool_limit, pool_limit_with_staging
from ostinatod.bench.options import Options
from ostinatod.bench.settings import Setting
from ostinatod.errors import EngineError, RequestError
from ostinatod.profiles.experts import ModelExperts

EXPERTS = ModelExperts(layers=(0, 1, 2, 3), expert_bytes=(10,) * 4, n_experts=(8,) * 4, k=2)
"""80 bytes per layer, 320 in all."""

SCRIPTED = """
import json, os, sys
job = json.load(open(sys.argv[-1]))
setting = job["setting"]
with open(os.environ["JOBS"], "a") as jobs:
    jobs.write(json.dumps({**job, "min_batch": os.environ.get("GGML_OP_OFFLOAD_MIN_BATCH")}) + "\\n")
tell = lambda **event: print(json.dumps(event), flush=True)
turns = lambda n: [{"kind": "first", "reused": 0, "new": [1] * 10, "output": [2, 3]}] + [
    {"kind": "after_tool", "reused": 11 + 3 * i, "new": [1, 1], "output": [2, 3]} for i in range(n - 1)]
if job["do"] == "tokenize":
    sessions = [{"id": i, "domain": "", "part": p, "prefix": [], "turns": turns(3)}
                for i, p in (("d", "development"), ("h", "held-out"), ("g", "held-out"))]
    json.dump(sessions, open(job["out"], "w"))
elif job["do"] == "count":
    tell(event="loaded", load_s=1, gpu_bytes=40)
    # Expert 0 of every layer is selected most, then expert 1, and so on.
    counts = [[8 - e for e in range(8)] for _ in range(4)]
    tell(event="counted", session="d", layers=[0, 1, 2, 3], prefill=counts, decode=counts, new_tokens=300,
         output_tokens=300, turns=3)
else:
    if setting["kind"] == "stock" and setting["cpu_layers"] < int(os.environ.get("FITS_FROM", 0)):
        tell(event="failed", kind="engine_load_error", reason="cannot be loaded", log="out of memory")
        sys.exit()
    if setting["name"] == os.environ.get("CRASHES"):
        os.abort()
    tell(event="loaded", load_s=1, gpu_bytes=40)
    ms = {"none": 100, "mmap": 300}[setting["load_mode"]] + (setting["min_batch"] or 0) / 10
    ms = 50 if setting["kind"] == "ostinato" else ms
    ms += 40 * setting["repacked"]
    for session in job["only"]:
        for turn in range(job["done"].get(session, 0), min(3, job["turns"] or 3)):
            tell(event="turn", session=session, turn=turn, kind="first", reused=0, new=10, output=2, ttft_ms=ms,
                 tpot_ms=1, total_ms=ms + 1, likely_token=7)
"""


class Quiet:
    """Progress that keeps its notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def update(self, name: str, completed: int, total: int) -> None:
        assert completed <= total

    def note(self, text: str) -> None:
        self.notes.append(text)


class Scripted:
    """Runs comparisons and reads the jobs that they had done."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.jobs_file, self.progress = folder, folder / "jobs.jsonl", Quiet()
        (folder / "m.gguf").write_bytes(b"model")
        self.plan = Comparison(
            libraries=folder,
            model=folder / "m.gguf",
            experts=EXPERTS,
            context_tokens=4096,
            recorded=(),
            on_gpu=True,
            pool_bytes=None,
            options=Options(gpu_bytes=240),
        )

    def compare(self, *, resume: bool = False, **changes: Any) -> Outcome:
        self.jobs_file.unlink(missing_ok=True)
        plan = replace(self.plan, options=replace(self.plan.options, **changes))
        return compare(plan, self.folder / "out", self.progress, resume=resume)

    def jobs(self, do: str) -> list[dict[str, Any]]:
        every = [json.loads(line) for line in self.jobs_file.read_text().splitlines()]
        return [job for job in every if job["do"] == do]


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    (tmp_path / "scripted.py").write_text(SCRIPTED)
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {tmp_path / "scripted.py"} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    made = Scripted(tmp_path)
    monkeypatch.setenv("JOBS", str(made.jobs_file))
    return made


def test_what_the_rest_leaves_of_the_memory_is_for_experts_of_either_kind(scripted: Scripted) -> None:
    outcome = scripted.compare()
    # 240 bytes, 40 of them for the rest: two whole layers of 80, or 17 experts of 10 and an eighth for staging.
    assert (outcome.chosen.learned.pool_bytes, outcome.chosen.learned.hot.sum()) == (200, 17)
    assert outcome.chosen.learned.hot[:, :4].all()
    placed = outcome.chosen.settings[0]
    assert (placed.kind, placed.pool_bytes) == ("ostinato", pool_limit(200))
    assert {item["setting"]["cpu_layers"] for item in outcome.chosen.search} == {2}
    (count,) = scripted.jobs("count")
    assert (count["setting"]["cpu_layers"], count["on_gpu"], count["only"]) == (4, True, ["d"])


def test_where_experts_have_memory_of_their_own_routes_are_counted_with_what_fits_on_the_gpu(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.plan = replace(scripted.plan, pool_bytes=200)
    scripted.compare(gpu_bytes=None)
    assert [job["setting"]["cpu_layers"] for job in scripted.jobs("count")] == [0]
    counting = 'elif job["do"] == "count":\n'
    refused = f"{counting}    if setting['cpu_layers'] < 2:\n"
    refused += "        tell(event='loaded', load_s=1, gpu_bytes=0)\n"
    refused += "        tell(event='counted', session='d', layers=[0], prefill=[[9]], decode=[[9]], new_tokens=1,\n"
    refused += "             output_tokens=1, turns=1)\n"
    refused += "        os.abort()\n"
    refused += "    if setting['cpu_layers'] < 4:\n"
    refused += "        print(json.dumps(dict(event='failed', kind='engine_load_error', reason='no', log='')))\n"
    refused += "        sys.exit()\n"
    (scripted.folder / "scripted.py").write_text(SCRIPTED.replace(counting, refused))
    outcome = scripted.compare(gpu_bytes=None)
    assert [job["setting"]["cpu_layers"] for job in scripted.jobs("count")] == [0, 2, 4]
    # What was counted before it came to nothing is not counted twice.
    assert outcome.chosen.learned.hot.sum() == 17


def test_stocks_best_on_development_sessions_is_timed_on_held_out_ones(scripted: Scripted) -> None:
    outcome = scripted.compare()
    assert [setting.name for setting in outcome.chosen.settings] == ["ostinato", "stock none, uploads from 32"]
    trials = [job for job in scripted.jobs("replay") if job["only"] == ["d"]]
    assert [(job["setting"]["load_mode"], job["min_batch"]) for job in trials] == [
        ("none", "32"),
        ("none", None),
        ("none", "512"),
        ("mmap", "32"),
        ("mmap", "512"),
    ]
    timed = [job for job in scripted.jobs("replay") if job["only"] != ["d"]]
    assert [(job["setting"]["kind"], job["only"], bool(job["hot"])) for job in timed] == [
        ("ostinato", ["h", "g"], True),
        ("stock", ["h", "g"], False),
    ]
    assert len(outcome.turns) == 12


def test_layers_go_to_the_cpu_until_a_candidate_fits(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FITS_FROM", "4")
    outcome = scripted.compare()
    assert outcome.chosen.settings[1].cpu_layers == 4
    first = [item for item in outcome.chosen.search if item["setting"]["name"] == "stock none, uploads from 32"]
    assert [(item["setting"]["cpu_layers"], item["reason"] is None) for item in first] == [
        (2, False),
        (3, False),
        (4, True),
    ]
    assert "out of memory" in first[0]["reason"]


def test_a_staging_buffer_that_is_asked_for_takes_nothing_from_hot_experts(scripted: Scripted) -> None:
    usual = scripted.compare().chosen.learned
    outcome = scripted.compare(staging_experts=6)
    placed, stock = outcome.chosen.settings
    assert (placed.staging_experts, stock.staging_experts) == (6, 0)
    assert placed.pool_bytes == pool_limit_with_staging(200, EXPERTS, 6)
    assert (outcome.chosen.learned.hot == usual.hot).all()
    with pytest.raises(RequestError, match="differs in staging_experts"):
        scripted.compare(resume=True)


def test_trials_are_as_short_as_they_are_asked_to_be(scripted: Scripted) -> None:
    scripted.compare(trial_turns=1)
    assert {job["turns"] for job in scripted.jobs("replay") if job["only"] == ["d"]} == {1}


def test_a_setting_that_has_no_rival_need_not_be_tried(scripted: Scripted) -> None:
    only = [Setting("ostinato", "ostinato"), Setting("stock", "stock", cpu_layers=2)]
    outcome = scripted.compare(candidates=only, seconds=30.0, trial_turns=0)
    assert {tuple(job["only"]) for job in scripted.jobs("replay")} == {("h", "g")}
    assert len(outcome.turns) == 2 * 6
    assert outcome.chosen.search == ()


def test_all_settings_are_timed_where_that_is_asked_for(scripted: Scripted) -> None:
    candidates = [Setting(name, "ostinato") for name in "ab"] + [Setting(name, "stock", 2) for name in "cd"]
    outcome = scripted.compare(candidates=candidates, times_all=True)
    assert [setting.name for setting in outcome.chosen.settings] == ["a", "b", "c", "d"]
    assert [(job["setting"]["name"], job["only"]) for job in scripted.jobs("replay")] == [
        (name, ["h", "g"]) for name in "abcd"
    ]
    assert outcome.chosen.settings[1].pool_bytes == pool_limit(200)
    # None was tried, so nobody knows how long each takes: the first may have its part of the time, the last the rest.
    began = time.time()
    scripted.compare(candidates=candidates, times_all=True, seconds=400.0)
    first, *_, last = (job["until"] - began for job in scripted.jobs("replay"))
    # 100 s each, and what the jobs before have taken by the clock.
    assert first < 200
    assert last > 300
    only = scripted.compare(candidates=candidates, times_all=True, kinds=("stock",))
    assert {turn.setting for turn in only.turns} == {"c", "d"}


def test_repeats_take_turns_and_settings_that_crash_are_not_tried_again(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRASHES", "a")
    candidates = [Setting("a", "ostinato"), Setting("b", "stock")]
    outcome = scripted.compare(candidates=candidates, repeats=2)
    assert [job["setting"]["name"] for job in scripted.jobs("replay")] == ["a", "b", "b"]
    assert set(outcome.failures) == {"a"}
    assert sorted({turn.repeat for turn in outcome.turns}) == [0, 1]
    monkeypatch.delenv("CRASHES")
    scripted.compare(candidates=candidates, repeats=2)
    assert [job["setting"]["name"] for job in scripted.jobs("replay")] == ["a", "b", "a", "b"]


def test_a_resumed_run_neither_learns_nor_searches_again(scripted: Scripted) -> None:
    whole = scripted.compare()
    file = scripted.folder / "out" / RESULTS_FILE
    lines = file.read_bytes().splitlines(keepends=True)
    # The first line, what ostinato told when it was ready, and four of its six turns.
    file.write_bytes(b"".join(lines[:6]))
    again = scripted.compare(resume=True)
    assert scripted.jobs("count") == []
    assert [(job["setting"]["kind"], job["done"]) for job in scripted.jobs("replay")] == [
        ("ostinato", {"h": 3, "g": 1}),
        ("stock", {}),
    ]
    assert again.turns == whole.turns
    assert (again.chosen.learned.hot == whole.chosen.learned.hot).all()
    assert scripted.compare(resume=True).turns == whole.turns
    assert scripted.jobs("replay") == []


def test_a_run_of_other_sessions_or_memory_is_not_resumed(scripted: Scripted) -> None:
    scripted.compare()
    with pytest.raises(RequestError, match="differs in gpu_bytes"):
        scripted.compare(resume=True, gpu_bytes=300)


def test_where_nothing_can_run_the_reasons_are_told(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FITS_FROM", "9")
    with pytest.raises(EngineError, match=r"nothing could be timed: .*out of memory"):
        scripted.compare(kinds=("stock",))


def test_only_what_fits_into_the_time_is_timed_and_said_so(scripted: Scripted) -> None:
    # Turns of a scripted engine take no time, whatever it tells of them: everything fits.
    outcome = scripted.compare(seconds=12.0)
    assert outcome.chosen.timed is not None
    assert outcome.chosen.timed == {session.id: len(session.turns) for session in outcome.sessions if session.id != "d"}
    assert any("what fits into the" in note for note in scripted.progress.notes)
    assert len(outcome.turns) == 2 * sum(outcome.chosen.timed.values())
    again = scripted.compare(resume=True, seconds=100.0)
    assert again.chosen.timed == outcome.chosen.timed
    assert len(again.turns) == len(outcome.turns)


def test_nothing_takes_longer_than_the_time_there_is(scripted: Scripted) -> None:
    slow = "time.sleep(60 * (job['only'] != ['d'])); tell(event='loaded', load_s=1, gpu_bytes=40)"
    text = SCRIPTED.replace("import json, os, sys", "import json, os, sys, time")
    text = text.replace('tell(event="loaded", load_s=1, gpu_bytes=40)\n    ms', f"{slow}\n    ms")
    (scripted.folder / "scripted.py").write_text(text)
    candidates = [Setting("ostinato", "ostinato"), Setting("stock", "stock", cpu_layers=2)]
    begun = time.monotonic()
    with pytest.raises(EngineError, match="the time was over"):
        scripted.compare(seconds=2.0, candidates=candidates)
    assert time.monotonic() - begun < 30
