from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ostinatod import locations

HEAVY = (
    "httpx",
    "rich",
    "prompt_toolkit",
    "fastapi",
    "uvicorn",
    "pydantic",
    "numpy",
    "sqlite_utils",
    "textual",
    "asyncio",
)
LIST_MODULES = "import json, sys; print(json.dumps(sorted(sys.modules)))"


def modules_after(arguments: list[str]) -> set[str]:
    """What is imported once the command line has run with `arguments`."""
    program = (
        "import sys, contextlib, io\n"
        "from ostinatod.cli.app import cli\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        f"    cli({arguments!r}, prog_name='ostinato')\n"
    ) + LIST_MODULES
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["engine", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    assert not set(HEAVY) & modules_after(arguments)


def test_a_listing_imports_neither_the_server_nor_the_chat() -> None:
    loaded = modules_after(["--host", "127.0.0.1:1", "list"])
    assert "httpx" in loaded
    assert not {"prompt_toolkit", "fastapi", "uvicorn", "sqlite_utils", "numpy", "textual"} & loaded


def test_the_package_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ostinatod", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "ostinato 0.1.0\n"


def test_a_machine_without_a_log_in_session_is_told_nothing_about_that(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_RUNTIME_DIR", "OSTINATO_HOME"):
        monkeypatch.delenv(name, raising=False)
    # Warnings are errors here.
    assert locations.runtime_dir().name == "ostinato"
