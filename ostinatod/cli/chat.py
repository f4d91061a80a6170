"""`ostinato run`: one answer, or a conversation."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ostinatod.cli.completion import complete_model
from ostinatod.cli.context import Cli, pass_cli
from ostinatod.cli.loaded import show_load
from ostinatod.cli.models import fetch, local_path
from ostinatod.cli.output import print_json, say
from ostinatod.config import parse_duration_s
from ostinatod.errors import ModelNotFound

if TYPE_CHECKING:
    from ostinatod.client import DaemonClient


@click.command()
@click.argument("model", shell_complete=complete_model)
@click.argument("prompt", required=False)
@click.option("--system", help="System prompt.")
@click.option("--temperature", type=click.FloatRange(0, 10), help="0 takes the likeliest token each time.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Repeat the same choices.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Longest answer.")
@click.option("--keepalive", metavar="TIME", help="How long to stay in memory unused: 90s, 5m, 1h30m, forever.")
@click.option("--format", "answer_format", type=click.Choice(("json",)), help="Make the model answer in JSON.")
@click.option("--verbose", is_flag=True, help="Print the timings of each answer on stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with text, usage and timings.")
@pass_cli
def run(
    cli: Cli,
    model: str,
    prompt: str | None,
    system: str | None,
    temperature: float | None,
    seed: int | None,
    max_tokens: int | None,
    keepalive: str | None,
    answer_format: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Ask a model once, or talk with it.

    With PROMPT, or text on stdin, the answer goes to stdout; both are joined, stdin first. Otherwise a conversation
    begins; /? in it lists its commands. Starts the daemon if none is running and pulls MODEL if it is a reference that
    is not on this machine. An empty PROMPT ("") only loads the model.
    """
    keep_alive_s = None if keepalive is None else parse_duration_s(keepalive)
    question = _question(prompt)
    if question is None and as_json:
        raise click.UsageError("--json needs a prompt, as an argument or on stdin.")
    options: dict[str, Any] = {"temperature": temperature, "seed": seed, "max_tokens": max_tokens}
    if answer_format:
        options["response_format"] = {"type": "json_object"}
    options = {key: value for key, value in options.items() if value is not None}

    from ostinatod.cli.answer import AnswerPrinter, ask, tell_end
    from ostinatod.cli.conversation import Conversation
    from ostinatod.cli.launch import ensure_daemon

    with cli.client() as client:
        ensure_daemon(client, cli.settings())
        name = present(client, model)
        started = time.monotonic()
        show_load(client, name, keep_alive_s)
        load_ms = (time.monotonic() - started) * 1000
        conversation = Conversation(name, system, options)
        if question is None:
            from ostinatod.cli.repl import Repl, terminal_reader

            Repl(client, conversation, terminal_reader(), verbose=verbose, load_ms=load_ms, debug=cli.debug).talk()
        elif question:
            answer = ask(client, conversation.request(question), AnswerPrinter(quiet=as_json), load_ms)
            if as_json:
                print_json({"model": name, **asdict(answer)})
            tell_end(answer, verbose=verbose)


def present(client: DaemonClient, model: str) -> str:
    """The name under which `model` is registered, after getting it if it is a path or a reference to download."""
    if local_path(model) is not None:
        return fetch(client, model)
    try:
        client.show(model)
    except ModelNotFound:
        if "/" not in model:
            raise
        say(f"{model} is not on this machine; pulling it")
        return fetch(client, model)
    return model


def _question(prompt: str | None) -> str | None:
    """What to ask; None for a conversation. Raises UsageError if there is neither a prompt nor anyone to type one."""
    if sys.stdin.isatty():
        return prompt
    # Documents come first, so that several questions about one share the beginning that the engine keeps.
    piped = sys.stdin.read()
    parts = [part for part in (piped.rstrip("\n"), prompt) if part and part.strip()]
    if not parts and prompt is None:
        raise click.UsageError("Expected a prompt, as an argument or on stdin.")
    return "\n\n".join(parts)
