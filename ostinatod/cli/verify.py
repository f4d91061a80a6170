"""`ostinato verify`: the proof, on this machine, that where experts are does not change what a model computes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ostinatod.cli.completion import complete_model
from ostinatod.cli.context import Cli, json_option, pass_cli
from ostinatod.cli.local_store import open_store
from ostinatod.cli.output import print_json, print_text, say
from ostinatod.cli.text import table
from ostinatod.errors import EngineError, RequestError

NOISE_SHARE = 4.0
"""A placement may differ from the stock nodes by so many times what their own batching changes."""

DIFFERS = 1
"""Exit code where a placement changes answers."""


@click.command()
@click.argument("model", shell_complete=complete_model)
@json_option
@pass_cli
def verify(cli: Cli, model: str, as_json: bool) -> None:
    """Check that MODEL computes the same wherever its experts are.

    Evaluates the same tokens with llama.cpp's own nodes and with all, none, every second and a random part of the
    experts hot, in passes of 1 to 128 tokens, and compares the logits. The model is loaded five times; no daemon
    is needed. Exit code 1 means that a placement changes answers.
    """
    from ostinatod.installer.engine_build import find_engine

    record = open_store(cli.settings()).resolve(model)
    if not record.shape.n_experts:
        raise RequestError(f"{record.name} has no experts to place", hint="Models with experts: ostinato list")
    build = find_engine()
    result = run_comparison(build.library_directory, record.parts[0], build.backend)
    same = all(is_same(case, result["noise"]) for case in result["cases"])
    if as_json:
        print_json({"model": record.name, "verdict": "same" if same else "differs", **result})
    else:
        head = ("PLACEMENT", "NMSE", "SAME TOKEN", "SAME BITS AGAIN")
        print_text(table(head, [_row(case) for case in result["cases"]]))
        print_text(f"\nllama.cpp against itself, one pass instead of seven: NMSE {result['noise']:.1e}")
        print_text("placement does not change the answers" if same else "a placement CHANGES the answers")
    if not same:
        sys.exit(DIFFERS)


def is_same(case: Mapping[str, Any], noise: float) -> bool:
    """Whether a placement stays within the noise of the stock nodes, and repeats itself."""
    return bool(case["repeats"]) and case["nmse"] <= NOISE_SHARE * max(noise, 1e-7)


def _row(case: Mapping[str, Any]) -> tuple[str, str, str, str]:
    nmse = f"{case['nmse']:.1e}" if case["nmse"] else "0"
    return case["placement"], nmse, f"{100 * case['same_token']:.1f} %", "yes" if case["repeats"] else "NO"


def run_comparison(libraries: Path, model: Path, backend: str) -> dict[str, Any]:
    """The comparison in a process of its own: a model that crashes it must not take the command along.

    Raises EngineError where it fails.
    """
    command = [sys.executable, "-m", "ostinatod.verification", str(libraries), str(model), backend]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        result: dict[str, Any] | None = None
        refused: EngineError | None = None
        for line in process.stdout:
            told = json.loads(line)
            if "error" in told:
                refused = EngineError(f"the comparison failed: {told['error']}", hint=told["hint"])
            elif "step" in told:
                say(f"evaluating: {told['step']}")
            else:
                result = told
        errors = process.stderr.read()
    if refused is not None:
        raise refused
    if process.returncode != 0 or result is None:
        last = errors.strip().splitlines()[-1:] or [f"it ended with status {process.returncode}"]
        raise EngineError(f"the comparison failed: {last[0]}")
    return result
