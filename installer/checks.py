"""`python3 installer test`: every check a change must pass, in one run. Standard library only."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from .environment import Environment


def run_checks(environment: Environment, pytest_arguments: Sequence[str]) -> int:
    """Runs all checks, also after a failure; returns 0 when all passed. The engine's tests may not be skipped."""
    checkout = environment.checkout
    tree = checkout / "build" / "types"
    python = str(environment.python)
    if subprocess.run([python, "-m", "ostinatod.installer.type_tree", checkout, tree], check=False).returncode != 0:
        return 1
    # Its cache misses modules that came after it was made, and reading everything takes half a second.
    lint_imports = [str(environment.scripts / "lint-imports"), "--no-cache"]
    mypy = [python, "-m", "mypy", "--config-file", str(checkout / "pyproject.toml")]
    mypy += ["--cache-dir", str(checkout / ".mypy_cache")]
    benchmarks = checkout / "benchmarks"
    scripts = sorted(benchmarks.glob("*.py"))  # they import each other as files beside them
    checks: list[tuple[str, list[str], Path, dict[str, str]]] = [
        ("ruff check", [python, "-m", "ruff", "check", "."], checkout, {}),
        ("ruff format", [python, "-m", "ruff", "format", "--check", "."], checkout, {}),
        ("mypy", [*mypy, "-p", "ostinatod"], tree, {"MYPYPATH": str(tree)}),
        (
            "mypy benchmarks",
            [*mypy, *map(str, scripts)],
            tree,
            {"MYPYPATH": os.pathsep.join(map(str, (tree, benchmarks)))},
        ),
        ("lint-imports", lint_imports, tree, {"PYTHONPATH": str(tree)}),
        ("pytest", [python, "-m", "pytest", *pytest_arguments], checkout, {"OSTINATO_REQUIRE_ENGINE": "1"}),
    ]
    outcomes = []
    for name, command, directory, variables in checks:
        print(f"== {name}", flush=True)
        started = time.monotonic()
        status = subprocess.run(command, cwd=directory, env={**os.environ, **variables}, check=False).returncode
        outcomes.append((name, status, time.monotonic() - started))
    print("== summary")
    for name, status, seconds in outcomes:
        print(f"{name:<15} {seconds:7.1f} s  {'passed' if status == 0 else f'FAILED (status {status})'}")
    return 0 if all(status == 0 for _, status, _ in outcomes) else 1
