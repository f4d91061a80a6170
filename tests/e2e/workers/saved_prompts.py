"""saved_prompts.py LIBRARIES MODEL PACK OUT.json [--device gpu]: what a turn reads and answers after a restart.

A prompt is read, saved from its slot, and left for another one; the next turn repeats the prompt, but not what was
sampled behind it. Once the engine goes on, and once another one is given the file. On the model itself and on tiny ones
of PACK with a sliding window and with recurrent layers, each with llama.cpp's own nodes and with half of its experts
hot. Run as a module.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.e2e.workers.engine_server import EngineServer
from tests.e2e.workers.served import Placements, models_with_checkpoints, read_arguments

PROMPT_TOKENS = 1000
FILE = "prompt.state"

Outcome = dict[str, Any]


def turn(engine: EngineServer, prompt: Sequence[int]) -> Outcome:
    """Greedy tokens behind a prompt, and how much of it was read."""
    body = {"prompt": list(prompt), "n_predict": 12, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    answer = engine.post("/completion", body)
    if answer.status != 200:
        raise RuntimeError(f"a turn of {len(prompt)} tokens: {answer.body}")
    return {"tokens": answer.body["tokens"], "read": answer.body["timings"]["prompt_n"]}


def act(engine: EngineServer, action: str) -> Outcome:
    """On the only slot and the file."""
    answer = engine.post(f"/slots/0?action={action}", {"filename": FILE})
    if answer.status != 200:
        raise RuntimeError(f"to {action} a slot: {answer.body}")
    told: Outcome = answer.body
    return told


def observe(libraries: Path, model: Path, flags: Sequence[str], directory: Path) -> Outcome:
    """The next turn of an engine that goes on, and of another one that was given the file."""
    rng = np.random.default_rng(31)
    prompt, behind, other = (rng.integers(5, 120, n).tolist() for n in (PROMPT_TOKENS, 20, 300))
    served = (*flags, "--parallel", "1", "--slot-save-path", str(directory))
    with EngineServer(libraries, model, served) as engine:
        turn(engine, prompt)
        n_state_bytes = act(engine, "save")["n_written"]
        turn(engine, other)
        goes_on = turn(engine, prompt + behind)
    with EngineServer(libraries, model, served) as engine:
        act(engine, "restore")
        restored = turn(engine, prompt + behind)
    n_bytes = (directory / FILE).stat().st_size
    sizes = {"state_bytes": n_state_bytes, "checkpoint_bytes": n_bytes - n_state_bytes}
    return {"goes_on": goes_on, "restored": restored, **sizes}


def main() -> int:
    """The program."""
    arguments = read_arguments()
    result: Outcome = {"device": arguments.device, "models": {}}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for name, path, more in (("model", arguments.model, ()), *models_with_checkpoints(arguments, directory)):
            flags = Placements(arguments.device, path, directory).flags
            result["models"][name] = {
                placed: observe(arguments.libraries, path, (*flags[placed], *more), directory) for placed in flags
            }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
