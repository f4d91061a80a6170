"""aider in an environment of its own, because it pins other versions of what we use. Standard library only.

    python3 -m tests.aider_environment [FOLDER]

installs it into FOLDER, build/aider of this checkout unless given: 570 MB, about a minute. What is there already stays.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

RELEASE = "0.86.2"
NEWEST_PYTHON = (3, 12)
FOLDER = Path(__file__).parents[1] / "build" / "aider"
VARIABLE = "OSTINATO_AIDER"
"""Names another folder. A test run that has it set takes a missing aider for an error."""
COMMAND = "python3 -m tests.aider_environment"


def folder() -> Path:
    """Where aider is looked for."""
    return Path(os.environ.get(VARIABLE) or FOLDER)


def program(environment: Path) -> Path | None:
    """aider of this release in an environment, if all of it is there."""
    found = environment / "bin" / "aider"
    complete = _stamp(environment).is_file() and _stamp(environment).read_text() == RELEASE
    return found if complete and found.is_file() and (environment / "bin" / "python").exists() else None


def make(environment: Path) -> None:
    """Installs aider into an environment that is made anew. Raises CalledProcessError when pip or venv fails."""
    if environment.exists():
        shutil.rmtree(environment)
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip: list[str | Path] = [environment / "bin" / "python", "-m", "pip", "install", "--quiet"]
    # It compiles what it imports on its first start; the rest need not be.
    subprocess.run([*pip, "--no-compile", f"aider-chat=={RELEASE}"], check=True)
    _stamp(environment).write_text(RELEASE)


def main() -> int:
    """Makes the environment unless it is there."""
    environment = Path(sys.argv[1]) if len(sys.argv) > 1 else folder()
    if program(environment) is None:
        if environment.exists() and not (environment / "pyvenv.cfg").is_file():
            print(f"{environment} exists and is no environment: name another folder", file=sys.stderr)
            return 1
        if sys.version_info[:2] > NEWEST_PYTHON:
            wanted = ".".join(map(str, NEWEST_PYTHON))
            print(f"aider {RELEASE} needs a Python up to {wanted}, found {sys.version.split()[0]}", file=sys.stderr)
            return 1
        make(environment)
    print(f"aider {RELEASE} is in {environment}")
    return 0


def _stamp(environment: Path) -> Path:
    """Holds the release once everything is installed."""
    return environment / "complete"


if __name__ == "__main__":
    sys.exit(main())
