"""Commands about the engine: building it on this machine and telling which build is in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ostinatod.cli.context import json_option
from ostinatod.cli.groups import SuggestingGroup
from ostinatod.cli.output import print_json, print_text, say
from ostinatod.cli.progress import share_display
from ostinatod.cli.text import outline

if TYPE_CHECKING:
    from ostinatod.installer.backend_choice import BackendRequest
    from ostinatod.installer.engine_build import BuildProgress, EngineBuild


@click.group(cls=SuggestingGroup)
def engine() -> None:
    """Build the engine, or show which build is in use."""


@engine.command()
@click.option(
    "--backend",
    type=click.Choice(("auto", "cpu", "cuda")),
    default="auto",
    show_default=True,
    help="What to compile for; auto takes CUDA where its compiler and a GPU are found.",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Compilers to run at once; one per core otherwise.")
@json_option
def build(backend: BackendRequest, jobs: int | None, as_json: bool) -> None:
    """Compile the engine for this machine.

    Nothing happens if it is up to date.
    """
    from ostinatod.installer.engine_build import build_engine

    with share_display() as display:
        told = ""

        def show_step(progress: BuildProgress) -> None:
            nonlocal told
            if progress.total > 0:
                display.update(progress.step, progress.done, progress.total)
            elif progress.step != told:
                display.note(f"{progress.step} {progress.detail}".strip())
            told = progress.step

        built = build_engine(backend, jobs, show_step)
    if as_json:
        print_json(_facts(built))
    else:
        say(f"The {built.backend} engine is ready in {built.directory}")


@engine.command("status")
@json_option
def engine_status(as_json: bool) -> None:
    """Show the engine build in use."""
    from ostinatod.installer.engine_build import find_engine, is_up_to_date

    found = find_engine()
    facts = {**_facts(found), "up_to_date": is_up_to_date(found)}
    if as_json:
        print_json(facts)
    else:
        print_text(outline(facts))
        if not facts["up_to_date"]:
            say("Its sources have changed since. Build it anew: ostinato engine build")


def _facts(built: EngineBuild) -> dict[str, str | bool]:
    return {
        "backend": built.backend,
        "digest": built.digest,
        "directory": str(built.directory),
        "server": str(built.server),
        "library_directory": str(built.library_directory),
    }
