"""The part of the installation that runs inside the environment: the engine, then the bindings.

`python -m ostinatod.installer.engine_setup` is what `python3 installer` calls; it prints what it does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

import ostinatod
from ostinatod.errors import OstinatoError
from ostinatod.installer.bindings import ensure_bindings
from ostinatod.installer.build_display import BuildDisplay
from ostinatod.installer.engine_build import build_engine
from ostinatod.installer.integration import restart_advice


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds and installs what is missing; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ostinatod.installer.engine_setup", description=__doc__)
    parser.add_argument("--backend", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--cuda-arch", help="compute capabilities to compile for, such as 89")
    parser.add_argument("--jobs", type=int, help="compilers at once")
    parser.add_argument("--sdist", type=Path, help="the pinned source distribution, instead of downloading it")
    options = parser.parse_args(arguments)
    try:
        with BuildDisplay(Console()) as display:
            build = build_engine(
                options.backend, options.jobs, display, cuda_arch=options.cuda_arch, sdist=options.sdist
            )
            ensure_bindings(display, sdist=options.sdist)
    except OstinatoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\ninterrupted; run it again to go on from where it stopped", file=sys.stderr)
        return 130
    print(f"Engine ready: {build.backend}, llama.cpp {build.llama_cpp_commit[:9]}, {build.directory}")
    sources = Path(ostinatod.__file__).resolve().parent.rglob("*.py")
    if advice := restart_advice([*sources, build.directory / "build.json"]):
        print(advice)
    return 0


if __name__ == "__main__":
    sys.exit(main())
