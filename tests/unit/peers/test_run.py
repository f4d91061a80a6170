"""Processes, tables and files of a comparison."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers.measure import peer_named
from benchmarks.peers.protocol import Options, Work
from benchmarks.peers.run import compare, keep_longest, line_of, run_setting, shape_of, table
from benchmarks.peers.search import Outcome, Request
from benchmarks.peers.sessions import Replayed
from ostinatod.installer.engine_build import EngineBuild
from ostinatod.models import bundled_file
from tests.fakes import gguf
from tests.unit.peers.test_search import GIB, PEER, SHAPE, formula

ROOT = Path(__file__).parents[3]
REQUEST = Request(511, 11)


def test_what_could_not_run_is_recorded_in_its_own_words() -> None:
    outcome = run_setting(
        "ktransformers", peer_named("ktransformers"), Work(model="none.gguf"), {}, 60.0, dict(os.environ)
    )

    assert outcome.figures is None
    assert outcome.error.startswith("exit status 1\n")
    assert "ModuleNotFoundError: No module named 'kt_kernel'" in outcome.error
    # the last line is what the table has
    said = outcome.error.splitlines()[-1]
    assert said.startswith("RuntimeError: No module named 'kt_kernel': it needs the wheels kt-kernel and sglang-kt")
    assert said.endswith("of a GGUF file it takes the CPU's experts alone")
    assert outcome.peer == "KTransformers"


def test_a_setting_that_takes_too_long_is_ended() -> None:
    outcome = run_setting(
        "ktransformers", peer_named("ktransformers"), Work(model="none.gguf"), {}, 0.01, dict(os.environ)
    )

    # the last line is what the table has
    assert outcome.error.splitlines()[-1] == "not done after 0 s"
    assert outcome.wall_s < 30


def test_the_shape_of_a_model_is_read_from_its_file(tmp_path: Path) -> None:
    experts = [
        gguf.Tensor(f"blk.{layer}.ffn_{part}_exps.weight", (256, 64, 12), kind)
        for layer, kind in ((1, "MXFP4"), (2, "Q8_0"))
        for part in ("gate", "up", "down")
    ]
    file = gguf.write(tmp_path / "m.gguf", {}, [gguf.Tensor("token_embd.weight", (256, 500)), *experts])

    shape, vocabulary = shape_of(file)

    q8_0_bytes = 256 * 64 * 12 // 32 * 34
    assert (shape.layers, shape.experts, vocabulary) == (2, 12, 500)
    assert shape.layer_expert_bytes == 3 * q8_0_bytes
    assert shape.other_bytes == 256 * 500 * 4


def test_the_bundled_model_has_a_shape() -> None:
    shape, vocabulary = shape_of(bundled_file())

    assert shape.layers > 1
    assert shape.experts > 1
    assert vocabulary > 1


def test_a_file_without_experts_is_refused(tmp_path: Path) -> None:
    file = gguf.write(tmp_path / "m.gguf", {}, [gguf.Tensor("token_embd.weight", (256, 500))])

    with pytest.raises(SystemExit, match="expected experts"):
        shape_of(file)


def test_the_table_has_the_fastest_setting_and_the_last_words_of_what_failed() -> None:
    slow, fast = (
        formula({"n-cpu-moe": 8, "locked": True, "batch": 64}),
        formula({"n-cpu-moe": 6, "locked": True, "batch": 64}),
    )
    failed = Outcome("other", {}, None, "exit status 1\nTraceback\nImportError: no CUDA")

    text = table({"formula": [slow, fast], "other": [failed]}, REQUEST, 12 * GIB, (511,))

    rows = text.splitlines()
    assert rows[2].startswith("| formula | 231 | 7.00 | 161 | 7.06 | n-cpu-moe=6")
    assert "did not run" in rows[3]
    assert rows[3].endswith("ImportError: no CUDA |")
    assert len({row.count("|") for row in rows}) == 1


def test_a_line_says_what_ran_and_what_failed() -> None:
    assert "request 231 ms" in line_of(formula({"n-cpu-moe": 6, "locked": True, "batch": 64}), REQUEST)
    assert line_of(Outcome("other", {"a": 1}, None, "x\ny", 2.0), REQUEST) == "other: y  [a=1] (2.0 s)"


def test_every_outcome_is_reported_as_it_comes() -> None:
    seen: list[int] = []
    results = compare(
        {"formula": PEER}, SHAPE, 12 * GIB, REQUEST, lambda _, options: formula(options), 3, 600.0,
        lambda results, outcome: seen.append(sum(map(len, results.values()))),
    )  # fmt: skip

    assert seen == [1, 2, 3]
    assert len(results["formula"]) == 3


def test_every_engine_replays_before_any_runs_more_and_anew_when_it_got_faster() -> None:
    events: list[str] = []

    def run(module: str, options: Options) -> Outcome:
        events.append(f"{module} runs {options['n-cpu-moe']} {options['batch']}")
        return dataclasses.replace(formula(options), peer=module)

    def then(module: str, fastest: Outcome) -> None:
        events.append(f"{module} replays {fastest.options['n-cpu-moe']} {fastest.options['batch']}")

    peers = {name: dataclasses.replace(PEER, name=name) for name in ("a", "b")}
    compare(
        peers, SHAPE, 12 * GIB, REQUEST, run, 3, 600.0, lambda *_: None, then, 0.0, 1,
        {"a": {"n-cpu-moe": 6, "batch": 512}, "b": {"n-cpu-moe": 4, "batch": 64}},
    )  # fmt: skip

    assert events[:4] == ["a runs 6 512", "a replays 6 512", "b runs 4 64", "b replays 4 64"]
    assert events[4:6] == ["a runs 4 512", "a replays 4 512"]
    # what was not faster is not replayed, and none runs more than it may
    assert [event for event in events[6:] if "replays" in event] == []
    assert sum("runs" in event for event in events) == 6


def test_a_replay_that_time_ran_out_on_does_not_take_the_place_of_a_longer_one() -> None:
    turn = {"total_ms": 1.0}
    whole, faster, cut = (Replayed("a", {"n": n}, {"s": [turn] * turns}) for n, turns in ((1, 2), (2, 2), (3, 1)))
    replays: list[Replayed] = []

    for item in (whole, Replayed("b", {}, {}), faster, cut):
        keep_longest(replays, item)

    assert replays == [faster, Replayed("b", {}, {})]


def test_no_setting_is_begun_that_leaves_no_time_to_replay_it() -> None:
    runs: list[Options] = []

    def run(_: str, options: Options) -> Outcome:
        runs.append(options)
        return formula(options)

    compare({"formula": PEER}, SHAPE, 12 * GIB, REQUEST, run, 9, 50.0, lambda *_: None, None, 60.0, 1)

    assert len(runs) == 1


@pytest.mark.engine
def test_stock_llama_cpp_runs_in_a_process_of_its_own(engine_build: EngineBuild, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "benchmarks.peers.run", "--model", str(bundled_file()), "--out", str(out)]
    command += [
        "--peers",
        "stock",
        "--budget-gib",
        "1",
        "--llama-cpp",
        str(engine_build.library_directory),
        "--depth",
        "16",
    ]
    command += ["--lengths", "8", "--request", "8,4", "--decode-tokens", "4", "--repeats", "1", "--threads", "1"]

    child = subprocess.run([*command, "--runs", "2"], cwd=ROOT, capture_output=True, text=True, timeout=100)

    assert child.returncode == 0, child.stdout + child.stderr
    outcomes = json.loads(out.read_text(encoding="utf-8"))["peers"]["llama.cpp"]
    assert len(outcomes) == 2
    assert all(outcome["figures"]["decode_ms"] > 0 for outcome in outcomes)
    assert outcomes[0]["options"]["load-mode"] != outcomes[1]["options"]["load-mode"]
