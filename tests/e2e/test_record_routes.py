"""Recording routes of conversations that are longer than the context: every token is read, and counted, once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ostinatod.installer.engine_build import EngineBuild
from ostinatod.models import bundled_file
from tests.e2e.programs import run_program

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CONTEXT_TOKENS = 640
"""Just above one pass of the recorder."""
LAYERS, K = 8, 8

_PLAY = """
import json, sys
from pathlib import Path
from record_routes import Player
player = Player(Path(sys.argv[1]), int(sys.argv[2]), 1, Path(sys.argv[3]))
session = json.loads(sys.stdin.read())
told = []
for _ in range(2):
    played = player.play(session, 10_000, 4)
    told.append({
        "prefill_tokens": played.prefill_tokens, "decode_tokens": played.decode_tokens, "turns": played.turns,
        "prefill": played.prefill.sum(axis=1).tolist(), "decode": played.decode.sum(axis=1).tolist(),
        "step_turns": played.step_turns.tolist(),
    })
print(json.dumps(told))
"""


@pytest.mark.engine
def test_a_conversation_longer_than_the_context_is_read_through_a_window(engine_build: EngineBuild) -> None:
    said = "The order was sent on Monday and has not arrived; what can be done about it? " * 20
    roles = ("user", "assistant")
    session = {
        "tools": [],
        "messages": [{"role": roles[i % 2], "content": said if i % 2 == 0 else "It is on its way."} for i in range(6)],
    }
    command = [
        sys.executable,
        "-c",
        _PLAY,
        str(bundled_file()),
        str(CONTEXT_TOKENS),
        str(engine_build.library_directory),
    ]
    printed = run_program(command, timeout_s=120, said=json.dumps(session), PYTHONPATH=str(BENCHMARKS))
    first, again = json.loads(printed.splitlines()[-1])
    tokens: dict[str, Any] = {name: first[f"{name}_tokens"] for name in ("prefill", "decode")}
    assert first["turns"] == 3
    assert tokens["prefill"] > 1.5 * CONTEXT_TOKENS
    # The last layer of a prefill computes only the tokens whose logits are wanted.
    assert first["prefill"][:-1] == [tokens["prefill"] * K] * (LAYERS - 1)
    assert first["decode"] == [tokens["decode"] * K] * LAYERS
    assert first["step_turns"] == [0] * 4
    # What was forgotten is read again when the same conversation begins anew.
    assert again["prefill_tokens"] == tokens["prefill"]
