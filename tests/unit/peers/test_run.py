"""Processes, tables and files of a comparison."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers.measure import peer_named
from benchmarks.peers.protocol import Work
from benchmarks.peers.run import compare, line_of, run_setting, shape_of, table
from benchmarks.peers.search import Outcome, Request
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
    assert outcome.error.endswith("ModuleNotFoundError: No module named 'kt_kernel'")
    assert outcome.peer == "KTransformers"


def test_a_setting_that_takes_too_long_is_ended() -> None:
    outcome = run_setting(
        "ktransformers", peer_named("ktransformers"), Work(model="none.gguf"), {}, 0.01, dict(os.environ)
    )

    assert outcome.error.startswith("not done after 0 s")
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
