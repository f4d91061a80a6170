"""The root of the command line: global options, the commands, and how their errors end the process."""

from __future__ import annotations

import difflib
import errno
from typing import Any

import click

from ostinatod import __version__
from ostinatod.cli.chat import run
from ostinatod.cli.context import Cli
from ostinatod.cli.daemon import serve, status, version
from ostinatod.cli.engine import engine
from ostinatod.cli.loaded import load, ps, stop
from ostinatod.cli.models import cp, list_models, pull, rm, show
from ostinatod.cli.output import colour_wanted, report, say
from ostinatod.errors import OstinatoError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells count it: 128 and the number of SIGINT."""

ALIASES = {"ls": "list"}


class CommandGroup(click.Group):
    """Commands in the order they are added, with aliases, suggestions, and this project's exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, in the order of its use."""
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name or alias."""
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command to run. Raises UsageError with the names that come close."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            close = difflib.get_close_matches(name, [*self.commands, *ALIASES], n=3)
            suggestion = f" Did you mean: {', '.join(close)}?" if close else ""
            raise click.UsageError(f"No such command {name!r}.{suggestion}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; every failure ends in a message and an exit code, and in a traceback only on request."""
        debug = bool(ctx.params.get("debug"))
        try:
            return super().invoke(ctx)
        except OstinatoError as error:
            report(error, debug=debug)
            ctx.exit(error.exit_code)
        except (KeyboardInterrupt, click.Abort):
            say("interrupted")
            ctx.exit(INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise
            unexpected = OstinatoError(
                f"internal error: {type(error).__name__}: {error}", hint="See where: ostinato --debug COMMAND"
            )
            unexpected.__cause__ = error
            report(unexpected, debug=debug)
            ctx.exit(unexpected.exit_code)


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--host", metavar="HOST:PORT", help="Address of the daemon; OSTINATO_HOST otherwise.")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
@click.version_option(__version__, "-v", "--version", prog_name="ostinato", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context, host: str | None, debug: bool) -> None:
    """Run large mixture-of-experts models on this machine."""
    context.obj = Cli(host=host, debug=debug)
    context.color = colour_wanted()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _command in (serve, pull, run, list_models, show, ps, load, stop, rm, cp, status, engine, version):
    cli.add_command(_command)
