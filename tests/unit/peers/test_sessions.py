"""Recorded sessions for every engine: which turns they are, how they are replayed, and what the table compares."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.measure import measure, peer_named
from benchmarks.peers.protocol import Options, Tokens, Work
from benchmarks.peers.run import compare, run_setting
from benchmarks.peers.search import Outcome, Request
from benchmarks.peers.sessions import held_out_sessions
from benchmarks.peers.timed_passes import TimedPasses
from ostinatod.bench.sessions import Limits, Session, Turn, write_sessions
from tests.fakes import gguf
from tests.unit.bench.test_traces import session as recorded
from tests.unit.peers.test_requests import freetoken_site
from tests.unit.peers.test_search import GIB, PEER, SHAPE, formula

SESSIONS = [
    Session(
        name,
        "swe",
        "held-out",
        (
            Turn("first", 0, (1, 2, 3), (4, 5)),
            Turn("after_tool", 4, (5, 6), (7, 8, 9)),
        ),
    )
    for name in ("a", "b")
]


class Passes(TimedPasses):
    """An engine that keeps its context and every pass."""

    def __init__(self) -> None:
        super().__init__(100)
        self.held: list[int] = []
        self.passes: list[list[int]] = []

    def _pass(self, tokens: Tokens) -> None:
        self.held += tokens.tolist()
        self.passes.append(tokens.tolist())

    def _rewind(self, depth: int) -> None:
        assert depth <= len(self.held)
        del self.held[depth:]

    def _last_logits(self) -> Any:
        return (ctypes.c_float * 100)()

    def facts(self) -> dict[str, Any]:
        return {"passes": len(self.passes)}


def work_of(folder: Path) -> Work:
    file = folder / "sessions.json"
    write_sessions(file, SESSIONS)
    return Work(model="m.gguf", depth=8, lengths=(8,), decode_tokens=2, sessions=str(file), session_tokens=900)


def test_a_turn_reads_what_is_new_and_all_but_the_last_token_it_emits(tmp_path: Path) -> None:
    engine, kept, readings = Passes(), list[str](), iter(range(1000, 9000, 1000))
    measure(lambda *_: engine, work_of(tmp_path), {}, lambda result: kept.append(json.dumps(result)), readings.__next__)
    first = engine.passes.index([1, 2, 3])
    assert engine.passes[first:] == [[1, 2, 3], [4], [5, 6], [7], [8]] * 2
    assert engine.held == [1, 2, 3, 4, 5, 6, 7, 8]
    # Anew after every turn, behind what was timed before: what is cut short keeps its beginning.
    results = [json.loads(text) for text in kept]
    assert "sessions" not in results[0]
    assert [sum(map(len, result["sessions"].values())) for result in results[1:]] == [1, 2, 3, 4]
    assert all(result["prefill_ms"] == results[0]["prefill_ms"] for result in results)
    assert [result["gpu_bytes"] for result in results] == [1000, 2000, 3000, 4000, 5000]
    turn = results[-1]["sessions"]["b"][1]
    assert (turn["kind"], turn["reused"], turn["new"], turn["output"]) == ("after_tool", 4, 2, 3)
    assert 0 <= turn["ttft_ms"] <= turn["total_ms"]


def test_the_context_has_room_for_the_longest_session(tmp_path: Path) -> None:
    assert work_of(tmp_path).n_ctx > 900
    assert Work.from_json(json.loads(json.dumps(work_of(tmp_path).as_json()))) == work_of(tmp_path)


def test_an_engine_that_takes_whole_requests_replays_after_what_it_was_timed_with(tmp_path: Path) -> None:
    options: Options = {"moe-strategy": "offload", "moe-cache-mem": GIB}
    outcome = run_setting(
        "freetoken", peer_named("freetoken"), work_of(tmp_path), options, 60.0, freetoken_site(tmp_path)
    )
    assert outcome.figures is not None, outcome.error
    turns = outcome.figures["sessions"]
    assert [len(turns[name]) for name in ("a", "b")] == [2, 2]
    assert all(turn["ttft_ms"] >= 52 for name in turns for turn in turns[name])
    # The fake takes 2 ms for each token.
    assert 2 * 2 <= turns["a"][1]["total_ms"] - turns["a"][1]["ttft_ms"] < 50


def test_with_first_one_process_is_timed_and_replays(tmp_path: Path) -> None:
    trace, starts, out = tmp_path / "traces.jsonl", tmp_path / "starts.json", tmp_path / "out.json"
    trace.write_text("".join(json.dumps(recorded(f"t{i}")) + "\n" for i in range(3)), encoding="utf-8")
    starts.write_text('{"freetoken": {"moe-strategy": "offload"}}', encoding="utf-8")
    tensors = [gguf.Tensor(name, (256, 64, 12)) for name in ("blk.0.ffn_up_exps.weight", "token_embd.weight")]
    model = gguf.write(tmp_path / "m.gguf", {"tokenizer.ggml.model": "none"}, tensors)
    options = {
        "model": model, "out": out, "site": tmp_path / "site", "sessions": trace, "starts": starts, "budget-gib": 1,
        "peers": "ktransformers,freetoken", "depth": 8, "lengths": 8, "request": "8,4", "decode-tokens": 2,
        "repeats": 1, "first": 1, "runs": 1, "development": 1, "held-out": 2, "turns": 2,
    }  # fmt: skip
    freetoken_site(tmp_path / "site")
    command = [sys.executable, "-m", "benchmarks.peers.run"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    child = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=100)
    # What one engine could not do is told and costs the others nothing.
    assert child.returncode == 1, child.stdout + child.stderr
    assert "    RuntimeError: No module named 'kt_kernel'" in child.stdout
    result = json.loads(out.read_text(encoding="utf-8"))
    ((outcome,), replayed) = result["peers"]["FreeToken"], result["replays"]["FreeToken"]
    assert outcome["error"] == ""
    assert outcome["figures"]["decode_ms"] > 0
    assert replayed["sessions"] == outcome["figures"]["sessions"]
    assert len(replayed["sessions"]) == 2
    assert set(result["command"].split()) >= {"python", "--peers", "ktransformers,freetoken"}
    assert result["date"]
    assert result["machine"]
    assert [item["setting"] for item in result["comparison"]["settings"]] == ["FreeToken"]
    assert f"FreeToken: {sum(map(len, replayed['sessions'].values()))} turns replayed" in child.stdout
    assert child.stdout.endswith("FreeToken: GPU memory unknown\n")


def test_packages_that_are_named_come_before_those_of_the_checkout(tmp_path: Path) -> None:
    carried = tmp_path / "ostinatod"
    carried.mkdir()
    (carried / "__init__.py").write_text("raise ImportError('the carried one')\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    outcome = run_setting("stock", peer_named("stock"), Work(model="none.gguf"), {}, 60.0, environment)
    assert outcome.error.endswith("ImportError: the carried one")


def test_held_out_sessions_are_in_tokens_of_the_vocabulary_and_within_the_limits(tmp_path: Path) -> None:
    trace = tmp_path / "traces.jsonl"
    trace.write_text("".join(json.dumps(recorded(f"t{i}")) + "\n" for i in range(4)), encoding="utf-8")
    file = gguf.write(
        tmp_path / "m.gguf", {"tokenizer.ggml.model": "none"}, [gguf.Tensor("token_embd.weight", (8, 50))]
    )
    found = held_out_sessions(file, 50, trace, 1, 2, Limits(turns=1))
    assert len(found) == 2
    assert all(len(item.turns) == 1 and item.part == "held-out" for item in found)
    assert all(0 <= token < 50 for item in found for token in item.turns[0].new)
    with pytest.raises(SystemExit, match="within 1 tokens per session"):
        held_out_sessions(file, 50, trace, 1, 2, Limits(tokens=1))
    named = gguf.write(
        tmp_path / "n.gguf", {"tokenizer.ggml.model": "gpt2"}, [gguf.Tensor("token_embd.weight", (8, 50))]
    )
    with pytest.raises(SystemExit, match="without a tokenizer, found 'gpt2'"):
        held_out_sessions(named, 50, trace, 1, 2, Limits())


def test_the_fastest_setting_of_each_engine_is_replayed() -> None:
    seen: list[tuple[str, Outcome]] = []
    results = compare(
        {"formula": PEER}, SHAPE, 12 * GIB, Request(511, 11), lambda _, options: formula(options), 4, 600.0,
        lambda *_: None, lambda module, outcome: seen.append((module, outcome)),
    )  # fmt: skip
    ((module, fastest),) = seen
    assert module == "formula"
    assert fastest in results["formula"]
    nothing: list[str] = []
    compare(
        {"formula": PEER}, SHAPE, 12 * GIB, Request(511, 11), lambda *_: Outcome("formula", {}, None, "crashed"), 4,
        600.0, lambda *_: None, lambda module, _: nothing.append(module),
    )  # fmt: skip
    assert nothing == []


def test_a_replay_takes_its_time_from_its_engines_share() -> None:
    counts: list[int] = []
    for then_s in (0.0, 600.0):
        results = compare(
            {"formula": PEER}, SHAPE, 12 * GIB, Request(511, 11), lambda _, options: formula(options), 4, 600.0,
            lambda *_: None, lambda *_: None, then_s,
        )  # fmt: skip
        counts.append(len(results["formula"]))
    assert counts == [4, 1]
