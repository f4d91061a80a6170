"""`ostinato logs`: what the daemon, an engine or the last build wrote, also when the daemon is dead."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ostinatod import locations, log_files
from ostinatod.cli.completion import complete_log_source
from ostinatod.cli.context import Cli, pass_cli
from ostinatod.cli.local_store import open_store, registered
from ostinatod.cli.output import print_json, print_text
from ostinatod.config import Settings
from ostinatod.errors import LogNotFound


@click.command()
@click.argument("source", default="daemon", shell_complete=complete_log_source)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(0, 1_000_000), default=100, show_default=True, help="Last lines.")
@click.option("--path", "only_path", is_flag=True, help="Print only where the log lies.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs; with -f, one object for every line.")
@pass_cli
def logs(cli: Cli, source: str, follow: bool, lines: int, only_path: bool, as_json: bool) -> None:
    """Show a log.

    SOURCE is "daemon", "output" (what a daemon in the background printed, such as why it could not start), "build"
    (the last engine build), or a model, for what its engine said. Files of this machine are read where they lie, so no
    daemon has to run.
    """
    file = log_file(source, cli.settings())
    if only_path:
        if as_json:
            print_json({"source": source, "file": file})
        else:
            print_text(str(file))
        return
    try:
        shown = log_files.last_lines(file, lines)
    except FileNotFoundError as error:
        if not follow:
            raise LogNotFound(f"there is no log of {source} yet: {file}", hint=_hint(source)) from error
        shown = []
    if as_json and not follow:
        print_json({"source": source, "file": file, "lines": shown})
        return
    for line in shown:
        _print(line, source, as_json=as_json)
    if follow:
        for line in log_files.new_lines(file):
            _print(line, source, as_json=as_json)


def log_file(source: str, settings: Settings) -> Path:
    """The log of that source. Raises ModelNotFound, with suggestions, for one that is neither a word nor a model."""
    directory = locations.log_dir()
    if source == "daemon":
        return log_files.daemon_log(directory)
    if source == "output":
        return log_files.output_log(directory)
    if source == "build":
        return log_files.build_log(directory)
    return log_files.engine_log(directory, registered(open_store(settings), source).digest)


def _hint(source: str) -> str:
    if source in ("daemon", "output"):
        return "It begins when the daemon starts: ostinato serve"
    if source == "build":
        return "It begins with a build: ostinato engine build"
    return f"It begins when the model is loaded: ostinato load {source}"


def _print(line: str, source: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"source": source, "line": line}))
    else:
        print_text(line)
