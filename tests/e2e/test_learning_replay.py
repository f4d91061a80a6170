"""The replay before and after learning, as it runs on a GPU, on the CPU with short sessions."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from ostinatod.installer.engine_build import EngineBuild
from ostinatod.models import bundled_file
from tests.e2e.programs import run_program

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SESSIONS = Path(__file__).parents[1] / "data" / "agent-sessions.npz"
FIRST_TOKENS, ANSWER_TOKENS, TURNS = 40, 6, 2


def shorten(out: Path) -> None:
    """Two development sessions and a held-out one of two domains, each turn cut to its last tokens."""
    data = np.load(SESSIONS)
    pieces = np.split(data["tokens"], np.cumsum(data["lengths"].ravel())[:-1])
    starts = np.cumsum(data["turns"]) - data["turns"]
    rows: list[int] = []
    for domain in ("airline", "swe"):
        for part, count in (("development", 2), ("held-out", 1)):
            of_part = (data["domain"] == domain) & (data["part"] == part) & (data["turns"] >= TURNS)
            rows += np.flatnonzero(of_part)[:count].tolist()
    kept = [
        piece[-limit:]
        for row in rows
        for turn in range(TURNS)
        for piece, limit in zip(pieces[2 * (starts[row] + turn) :][:2], (FIRST_TOKENS, ANSWER_TOKENS), strict=True)
    ]
    np.savez(
        out,
        **{name: data[name][rows] for name in ("name", "domain", "part")},
        turns=np.full(len(rows), TURNS),
        lengths=np.array([len(piece) for piece in kept]).reshape(-1, 2),
        tokens=np.concatenate(kept),
    )


@pytest.mark.engine
def test_a_learned_set_is_swapped_in_the_middle_of_a_conversation(engine_build: EngineBuild, tmp_path: Path) -> None:
    shorten(tmp_path / "sessions.npz")
    command = [sys.executable, str(BENCHMARKS / "learning_gpu.py"), "--model", str(bundled_file())]
    command += ["--libraries", str(engine_build.library_directory), "--sessions", str(tmp_path / "sessions.npz")]
    command += ["--out", str(tmp_path / "result.json")]
    run_program(command, timeout_s=300)
    told = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
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
