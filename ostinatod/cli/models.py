"""Commands about the models on this machine: pull, list, show, rm, cp."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ostinatod.cli.completion import complete_model
from ostinatod.cli.context import Cli, json_option, pass_cli
from ostinatod.cli.output import print_json, print_text, report, say
from ostinatod.cli.progress import Display, bytes_display
from ostinatod.cli.text import ago, human_bytes, section, table
from ostinatod.errors import ModelError, ModelNotFound, RequestError

if TYPE_CHECKING:
    from ostinatod.client import DaemonClient
    from ostinatod.client_values import ModelDetails, ModelListing
    from ostinatod.store.records import PullProgress

SHORT_ID = 12
"""Digits of a digest that tables show."""


@dataclass(frozen=True, slots=True)
class Removed:
    """A name that was removed, and what that freed; 0 if another name uses the same files."""

    model: str
    freed_bytes: int


@click.command()
@click.argument("model")
@click.option("--name", help="Name to register a local file or directory under.")
@json_option
@pass_cli
def pull(cli: Cli, model: str, name: str | None, as_json: bool) -> None:
    """Download a model, or register one that is on this machine.

    MODEL is a reference such as hf.co/org/repo:Q4_K_M or org/repo, or a path: a .gguf file, the first part of a split
    one, or a directory, which is used where it is. An interrupted download is resumed by the same command.
    """
    with cli.client() as client:
        known_as = fetch(client, model, name)
        if as_json:
            details = client.show(known_as)
            print_json({"name": known_as, "source": details.source, "parts": details.parts})


def fetch(client: DaemonClient, model: str, name: str | None = None) -> str:
    """Pull `model`, or register it if it is a path, and tell of it; the name it can be run by."""
    path = local_path(model)
    if path is not None:
        added = client.add(str(path), name)
        say(f"registered {added.name}, {human_bytes(added.size_bytes)}, used where it is")
        return added.name
    if name is not None:
        raise RequestError(
            "--name is for local files; a download keeps the name of its reference",
            hint=f"Give it a further name: ostinato cp {model} {name}",
        )
    try:
        with bytes_display() as display, closing(client.pull(model)) as steps:
            _show_pull(display, model, steps)
    except KeyboardInterrupt:
        say(f"What was fetched is kept. Resume it: ostinato pull {model}")
        raise
    return model


def local_path(text: str) -> Path | None:
    """The absolute path that `text` names, None if it reads like a reference. Raises ModelNotFound for a missing one.

    Links are kept: a download cache links names that end in .gguf to files that do not.
    """
    path = Path(os.path.abspath(os.path.expanduser(text)))
    if text in (".", "..") or text.startswith(("./", "../", "/", "~")):
        if not path.exists():
            raise ModelNotFound(f"there is no file or directory {path}", hint="Give a .gguf file or its directory")
        return path
    return path if text.lower().endswith(".gguf") and path.exists() else None


@click.command("list")
@click.argument("prefix", default="")
@json_option
@pass_cli
def list_models(cli: Cli, prefix: str, as_json: bool) -> None:
    """List the models on this machine (also: ls).

    With PREFIX, only those whose name begins with it.
    """
    with cli.client() as client:
        models = [model for model in client.models() if model.name.lower().startswith(prefix.lower())]
    if as_json:
        print_json(models)
        return
    print_text(listing_table(models))
    if not models:
        none_at_all = "There are no models yet. Get one: ostinato pull ORG/REPO"
        say(f"No model's name begins with {prefix}. All of them: ostinato list" if prefix else none_at_all)


def listing_table(models: Sequence[ModelListing]) -> str:
    """The table of `list`."""
    now = datetime.now(timezone.utc)
    return table(
        ("NAME", "ID", "SIZE", "MODIFIED"),
        (
            (model.name, short_id(model.digest), human_bytes(model.size_bytes), ago(model.modified_at, now))
            for model in models
        ),
    )


@click.command()
@click.argument("model", shell_complete=complete_model)
@click.option("--template", is_flag=True, help="Print only the chat template.")
@json_option
@pass_cli
def show(cli: Cli, model: str, template: bool, as_json: bool) -> None:
    """Show what is known about a model."""
    with cli.client() as client:
        details = client.show(model)
    if as_json:
        print_json(details)
    elif template:
        print_text(details.template)
    else:
        print_text(details_text(details))


def details_text(details: ModelDetails) -> str:
    """The sections of `show`."""
    experts = f"{details.n_experts} in each layer, {details.k} selected per token" if details.n_experts else ""
    facts = [
        ("name", details.name),
        ("architecture", details.family),
        ("parameters", details.parameter_size),
        ("quantization", details.quantization),
        ("experts", experts),
        ("context", _context(details)),
        ("source", details.source),
    ]
    sections = [section("Model", [(key, value) for key, value in facts if value])]
    if details.capabilities:
        sections.append(section("Capabilities", [(item, "") for item in details.capabilities]))
    if details.parameters.strip():
        pairs = [line.strip().partition(" ") for line in details.parameters.strip().splitlines()]
        sections.append(section("Parameters", [(key, value.strip()) for key, _, value in pairs]))
    if details.parts:
        sections.append(section("Files", [(part, "") for part in details.parts]))
    return "\n\n".join(sections)


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...", shell_complete=complete_model)
@json_option
@pass_cli
@click.pass_context
def rm(context: click.Context, cli: Cli, models: tuple[str, ...], as_json: bool) -> None:
    """Remove models.

    Files go only when no other name uses them, and never those registered from a path.
    """
    with cli.client() as client:
        outcomes = [_remove(client, model, debug=cli.debug) for model in models]
    if as_json:
        print_json([outcome for outcome in outcomes if isinstance(outcome, Removed)])
    failures = [outcome for outcome in outcomes if isinstance(outcome, ModelError)]
    if failures:
        context.exit(failures[0].exit_code)


@click.command()
@click.argument("source", shell_complete=complete_model)
@click.argument("destination")
@json_option
@pass_cli
def cp(cli: Cli, source: str, destination: str, as_json: bool) -> None:
    """Give a model a further name. Nothing is copied on disk."""
    with cli.client() as client:
        client.copy(source, destination)
    if as_json:
        print_json({"source": source, "destination": destination})
    else:
        say(f"{source} can also be called {destination}")


def short_id(digest: str) -> str:
    """The digits of a digest that tables show."""
    return digest.removeprefix("sha256:")[:SHORT_ID]


def _context(details: ModelDetails) -> str:
    if not details.context_tokens:
        return ""
    trained = details.model_info.get("ostinato.trained_context_length")
    text = f"{details.context_tokens} tokens"
    return text if trained in (None, details.context_tokens) else f"{text}, trained for {trained}"


def _remove(client: DaemonClient, model: str, *, debug: bool) -> Removed | ModelError:
    """What came of it; a failure is told and does not keep the others from going."""
    try:
        freed = client.delete(model)
    except ModelError as error:
        report(error, debug=debug)
        return error
    say(f"removed {model}, {human_bytes(freed)} freed")
    return Removed(model, freed)


def _show_pull(display: Display, model: str, steps: Iterable[PullProgress]) -> None:
    announced = False
    status = ""
    for step in steps:
        if not announced and step.all_total_bytes:
            display.note(_announcement(model, step))
            announced = True
        verified = step.detail.get("verified_bytes")
        if step.file and isinstance(verified, int):
            display.update(f"verifying {step.file}", verified, step.total_bytes)
        elif step.file and step.total_bytes:
            display.update(step.file, step.completed_bytes, step.total_bytes)
        elif step.status != status:
            display.note(step.status)
        status = step.status


def _announcement(model: str, step: PullProgress) -> str:
    """What a pull is about: its size, what of it is still to fetch, and the room there is."""
    text = f"pulling {model}: {human_bytes(step.all_total_bytes)}"
    needed, free = step.detail.get("needed_bytes"), step.detail.get("free_bytes")
    if isinstance(needed, int) and needed != step.all_total_bytes:
        text += f", {human_bytes(needed)} still to fetch"
    return f"{text}, {human_bytes(free)} free" if isinstance(free, int) else text
