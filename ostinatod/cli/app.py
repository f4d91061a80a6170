"""The root of the command line: global options, the commands, and how their errors end the process."""

from __future__ import annotations

import errno
from typing import Any

import click

from ostinatod import __version__
from ostinatod.cli.bench import bench
from ostinatod.cli.chat import run
from ostinatod.cli.connect import launch
from ostinatod.cli.context import Cli
from ostinatod.cli.daemon import serve, status, version
from ostinatod.cli.dashboard import tui
from ostinatod.cli.diagnosis import doctor
from ostinatod.cli.engine import engine
from ostinatod.cli.groups import SuggestingGroup, unknown_option, wrong_value
from ostinatod.cli.history import forget, stats
from ostinatod.cli.keys import keys
from ostinatod.cli.loaded import load, ps, stop
from ostinatod.cli.logs import logs
from ostinatod.cli.models import cp, list_models, pull, rm, show
from ostinatod.cli.output import colour_wanted, report, say
from ostinatod.cli.plan import plan
from ostinatod.cli.profile import profile
from ostinatod.cli.prune import prune
from ostinatod.cli.service import service
from ostinatod.cli.shell_completion import completion
from ostinatod.cli.verify import verify
from ostinatod.errors import OstinatoError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells count it: 128 and the number of SIGINT."""

ALIASES = {"ls": "list"}


class CommandGroup(SuggestingGroup):
    """The root: suggestions, aliases, and this project's exit codes."""

    aliases = ALIASES

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The words that stand before the command."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise unknown_option(error, self, ctx) from error

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
        except click.NoSuchOption as error:
            raise unknown_option(error, self, ctx) from error
        except click.BadParameter as error:
            raise wrong_value(error) from error
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


_COMMANDS = (
    serve,
    pull,
    run,
    launch,
    list_models,
    show,
    ps,
    load,
    stop,
    rm,
    cp,
    prune,
    status,
    tui,
    plan,
    verify,
    bench,
    stats,
    forget,
    logs,
    profile,
    doctor,
    engine,
    keys,
    service,
    completion,
    version,
)

for _command in _COMMANDS:
    cli.add_command(_command)
