"""The verbs of `python3 installer`: install, run, test, uninstall. Standard library only."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from . import checks, prerequisites, removal
from .environment import Environment
from .steps import InstallError, Steps

_DEFAULT_MODEL = "tiny"
_VALUE_OPTIONS = ("--backend", "--cuda-arch", "--jobs", "--sdist", "--python")
_DEFAULT_PROMPT = "Write a Python function that reverses a string."
_DEFAULT_TOKENS = 120
"""Enough to see that it works: the bundled model knows no end, and a whole context of it takes many minutes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb and returns the exit status."""
    own, forwarded = split_arguments(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(own)
    try:
        if os.name != "posix":
            raise InstallError("Ostinato runs on Linux and macOS; on Windows, install it inside WSL 2.")
        checkout = _checkout()
        if options.verb == "uninstall":
            return removal.uninstall(Environment(checkout), purge=options.purge, assume_yes=options.yes)
        environment = _install(checkout, options)
        if options.verb == "run":
            return _run(environment, forwarded)
        if options.verb == "test":
            return checks.run_checks(environment, forwarded)
        _print_next_steps(environment)
    except InstallError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; run it again to go on from where it stopped", file=sys.stderr)
        return 130
    return 0


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(the installer's own arguments, what `run` and `test` forward): the first foreign word starts the latter.

    `install` is put in front when no verb is named.
    """
    own = list(arguments)
    if not own or (own[0].startswith("-") and own[0] not in {"-h", "--help"}):
        own.insert(0, "install")
    if own[0] not in {"run", "test"}:
        return own, []
    at = 1
    while at < len(own):
        name, joined, _ = own[at].partition("=")
        if name in {"-h", "--help"}:
            at += 1
        elif name in _VALUE_OPTIONS:
            at += 1 if joined else 2
        else:
            break
    rest = own[at:]
    return own[:at], rest[1:] if rest[:1] == ["--"] else rest


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 installer",
        description="Installs Ostinato into .venv of this checkout and compiles its engine. Needs no root.",
        epilog="Without a verb it installs. A second run does only what has changed.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--backend", choices=("auto", "cpu", "cuda"), default="auto", help="default: auto")
    common.add_argument("--cuda-arch", metavar="CC", help="compute capability to compile for, such as 89")
    common.add_argument("--jobs", type=_positive, metavar="N", help="compilers at once; default: by cores and memory")
    common.add_argument("--sdist", type=Path, metavar="FILE", help="the engine's pinned source, without a network")
    common.add_argument("--python", metavar="PATH", help="interpreter for .venv; default: the one running this")
    verbs.add_parser("install", parents=[common], help="install, or bring up to date")
    run = verbs.add_parser("run", parents=[common], help="install, then answer one prompt")
    run.usage = "python3 installer run [OPTIONS] [MODEL] [PROMPT...] [OPTIONS OF `ostinato run`...]"
    test = verbs.add_parser("test", parents=[common], help="install, then run every check and test")
    test.usage = "python3 installer test [OPTIONS] [ARGUMENTS OF pytest...]"
    uninstall = verbs.add_parser("uninstall", help="remove what the installer made")
    uninstall.add_argument("--purge", action="store_true", help="also settings, logs, routing data and the model list")
    uninstall.add_argument("--yes", action="store_true", help="do not ask")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _checkout() -> Path:
    """The folder this installer belongs to. Raises InstallError when that is no checkout."""
    folder = Path(__file__).resolve().parent.parent
    if not (folder / "pyproject.toml").is_file():
        raise InstallError(f"expected a checkout of Ostinato around {folder}; run `python3 installer` in one")
    return folder


def _install(checkout: Path, options: argparse.Namespace) -> Environment:
    environment = Environment(checkout)
    prerequisites.require(options.python or sys.executable, makes_environment=not environment.directory.exists())
    started = time.monotonic()
    log = checkout / "build" / "installer.log"
    log.unlink(missing_ok=True)
    steps = Steps(log)
    environment.ensure(options.python, steps)
    environment.ensure_package(frozenset({"dev"} if options.verb == "test" else ()), steps)
    environment.ensure_build_tools(steps)
    command = [environment.python, "-m", "ostinatod.installer.engine_setup", "--backend", options.backend]
    for name in ("cuda_arch", "jobs", "sdist"):
        value = getattr(options, name)
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        raise InstallError(f"the engine is not ready (status {status}); see above")
    print(f"Everything is in place after {time.monotonic() - started:.1f} s.", flush=True)
    return environment


def _run(environment: Environment, rest: Sequence[str]) -> int:
    """One answer of the model, which also shows that all parts work together."""
    words = words_of_run(rest)
    print(f"$ ostinato run {shlex.join(words)}", flush=True)
    return subprocess.run([str(environment.scripts / "ostinato"), "run", *words], check=False).returncode


def words_of_run(given: Sequence[str]) -> list[str]:
    """The words after `ostinato run`: those given, with a short answer to a prompt of ours where there is none."""
    words = list(given) or [_DEFAULT_MODEL]
    if len(words) == 1 and not words[0].startswith("-"):
        words += [_DEFAULT_PROMPT, "--max-tokens", str(_DEFAULT_TOKENS)]
    return words


def _print_next_steps(environment: Environment) -> None:
    command = environment.scripts / "ostinato"
    print(f"\nTry it:      {command} run {_DEFAULT_MODEL}")
    found = shutil.which("ostinato")
    if found is None or not os.path.samefile(found, command):
        print(f"For PATH:    ln -sf {command} ~/.local/bin/ostinato")
