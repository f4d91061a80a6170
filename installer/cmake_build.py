"""Configure and compile with CMake and Ninja, with progress, a log, and errors that show the compiler's first words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ostinatod.errors import EngineBuildError
from ostinatod.installer.build_cache import BUILD_COMMAND
from ostinatod.installer.build_progress import BuildProgress, Report
from ostinatod.installer.child_process import run_logged
from ostinatod.installer.ninja_progress import NINJA_STATUS, first_errors, parse_line
from ostinatod.installer.toolchain import Toolchain


def configure(source: Path, build: Path, toolchain: Toolchain, definitions: Sequence[str], log: Path) -> None:
    """Writes the build graph of the CMake project `source` into `build`; `definitions` are NAME=VALUE.

    Raises EngineBuildError with CMake's first complaint.
    """
    command = [
        str(toolchain.cmake), "-S", str(source), "-B", str(build), "-G", "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={toolchain.ninja}", *(f"-D{definition}" for definition in definitions),
    ]  # fmt: skip
    lines: list[str] = []
    if run_logged(command, log, lines.append) != 0:
        raise _failure("CMake could not configure the engine", lines, log)


def compile_targets(
    build: Path, toolchain: Toolchain, targets: Sequence[str], jobs: int, log: Path, report: Report
) -> None:
    """Compiles `targets`; what is finished already is not compiled again.

    Raises EngineBuildError with the first error of the compiler; everything finished by then is kept.
    """
    lines: list[str] = []

    def follow(line: str) -> None:
        lines.append(line)
        if step := parse_line(line):
            report(BuildProgress("compile", step.done, step.total, step.detail))

    command = [str(toolchain.cmake), "--build", str(build), "--parallel", str(jobs), "--target", *targets]
    if run_logged(command, log, follow, {"NINJA_STATUS": NINJA_STATUS}) != 0:
        raise _failure("the engine could not be compiled", lines, log)


def _failure(what: str, lines: Sequence[str], log: Path) -> EngineBuildError:
    shown = "\n".join(f"    {line}" for line in first_errors(lines))
    hint = f"to go on from where it stopped, run `{BUILD_COMMAND}`"
    if "Killed signal" in shown:
        hint = f"the machine ran out of memory; {hint} with --jobs 1"
    return EngineBuildError(f"{what}:\n{shown}\nThe whole output is in {log}", hint=hint)
