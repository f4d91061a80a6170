"""The replay before and after learning, as it runs on a GPU, on the CPU with short sessions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinatod.installer.engine_build import EngineBuild
from ostinatod.models import bundled_file
from tests.e2e.programs import run_program

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SESSIONS = Path(__file__).parents[1] / "data" / "agent-sessions.npz"
FIRST_TOKENS, ANSWER_TOKENS, TURNS = 40, 6, 2


def shorten(out: Path, *, development: int = 2, first_tokens: int = FIRST_TOKENS) -> None:
    """Development sessions and a held-out one of two domains, each turn cut to its last tokens."""
    data = np.load(SESSIONS)
    pieces = np.split(data["tokens"], np.cumsum(data["lengths"].ravel())[:-1])
    starts = np.cumsum(data["turns"]) - data["turns"]
    rows: list[int] = []
    for domain in ("airline", "swe"):
        for part, count in (("development", development), ("held-out", 1)):
            of_part = (data["domain"] == domain) & (data["part"] == part) & (data["turns"] >= TURNS)
            rows += np.flatnonzero(of_part)[:count].tolist()
    kept = [
        piece[-limit:]
        for row in rows
        for turn in range(TURNS)
        for piece, limit in zip(pieces[2 * (starts[row] + turn) :][:2], (first_tokens, ANSWER_TOKENS), strict=True)
    ]
    np.savez(
        out,
        **{name: data[name][rows] for name in ("name", "domain", "part")},
        turns=np.full(len(rows), TURNS),
        lengths=np.array([len(piece) for piece in kept]).reshape(-1, 2),
        tokens=np.concatenate(kept),
    )


def replayed(engine_build: EngineBuild, directory: Path, *options: str) -> dict[str, Any]:
    """What `learning_gpu.py` tells of the bundled model and the sessions in `directory`."""
    command = [sys.executable, str(BENCHMARKS / "learning_gpu.py"), "--model", str(bundled_file())]
    command += ["--libraries", str(engine_build.library_directory), "--sessions", str(directory / "sessions.npz")]
    run_program([*command, "--out", str(directory / "result.json"), *options], timeout_s=300)
    told: dict[str, Any] = json.loads((directory / "result.json").read_text(encoding="utf-8"))
    return told


@pytest.mark.engine
def test_a_learned_set_is_swapped_in_the_middle_of_a_conversation(engine_build: EngineBuild, tmp_path: Path) -> None:
    shorten(tmp_path / "sessions.npz")
    told = replayed(engine_build, tmp_path)
    talk = told["conversation"]
    assert talk["moved"] > 50
    assert talk["tokens_held"][0] == talk["tokens_held"][1] > FIRST_TOKENS
    assert talk["same_tokens_reused"]
    assert talk["same_tokens_read"]
    assert talk["nmse_before"] == 0.0
    assert talk["nmse_after"] < 2e-3  # 0 where hot and cold products round alike
    assert told["before"]["coverage"] == pytest.approx(0.44, abs=0.08)
    assert told["after"]["coverage"] > 0.6
    before, after = (told[name]["cold_routes_per_token"]["decode"] for name in ("before", "after"))
    assert after < 0.7 * before
    assert told["swaps"]["learned_to_the_set_of_one_session_less"]["moved"] < talk["moved"]


@pytest.mark.engine
def test_learning_follows_another_kind_of_work_and_leaves_what_a_wild_log_taught(
    engine_build: EngineBuild, tmp_path: Path
) -> None:
    shorten(tmp_path / "sessions.npz", development=3, first_tokens=60)
    told = replayed(engine_build, tmp_path, "--drift", "swe", "airline", "--adversary", "--threads", "1")
    drift = told["drift"]
    assert (drift["known_sessions"], len(drift["steps"])) == (3, 3)
    rows = {row["set"]: row for row in drift["rows"]}
    assert rows["even"]["coverage"] < rows["before"]["coverage"] < rows["adapted"]["coverage"]
    missed, still_missed = (rows["alone"]["coverage"] - rows[name]["coverage"] for name in ("before", "adapted"))
    assert still_missed < missed / 2
    assert rows["alone"]["coverage"] <= drift["hindsight_coverage"]
    assert rows["adapted"]["cold_routes_per_token"]["decode"] < rows["before"]["cold_routes_per_token"]["decode"]
    assert all(row["tpot_ms"]["n"] == rows["even"]["tpot_ms"]["n"] > 0 for row in drift["rows"])

    attacks = {attack["name"]: attack for attack in told["adversary"]["attacks"]}
    first = attacks["first day"]
    assert first["rows"][0]["coverage"] < first["rows"][0]["coverage_default"] - 0.1
    assert first["rows"][0]["timed"]
    for attack in attacks.values():
        below = [row["coverage"] < row["coverage_default"] for row in attack["rows"]]
        assert not below[-1], attack
        assert attack["below_default"]["sessions"] == sum(below) < len(below)
        assert len(attack["after_wild"]) == attack["wild_before"] + len(below) * attack["wild_between"]
