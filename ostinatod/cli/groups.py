"""Groups of commands that keep the order of their use and suggest what may have been meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import ClassVar

import click

_NOT_A_CHOICE = re.compile(r"'(.*?)' is not one of ")


class SuggestingGroup(click.Group):
    """Commands in the order they are added, with aliases and suggestions."""

    aliases: ClassVar[Mapping[str, str]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, in the order of its use."""
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name or alias."""
        return super().get_command(ctx, self.aliases.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command to run. Raises UsageError with the names that come close."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {name!r}.{_meant(name, [*self.commands, *self.aliases])}", ctx)
        return super().resolve_command(ctx, args)


def unknown_option(error: click.NoSuchOption, root: click.Group, context: click.Context) -> click.UsageError:
    """The error to end with: for an option that stands at the wrong side of the command, one that says so."""
    name, here = error.option_name, error.ctx or context
    if here.command is not root and name in _options(root):
        right = f"ostinato {name} ... {' '.join(here.command_path.split()[1:])}"
        return click.UsageError(f"{name} belongs before the command: {right}", here)
    owners = [] if here.command is not root else [each for each in root.commands.values() if name in _options(each)]
    if owners:
        plain = next((each for each in owners if not any(part.required for part in each.params)), owners[0])
        return click.UsageError(f"{name} belongs behind a command, such as: ostinato {plain.name} {name}", here)
    return error


def wrong_value(error: click.BadParameter) -> click.BadParameter:
    """The error to end with: for a choice that there is not, one that names those that come closest."""
    typed = _NOT_A_CHOICE.match(error.message)
    if typed is None or error.param is None or not isinstance(error.param.type, click.Choice):
        return error
    close = _meant(typed[1], [str(name) for name in error.param.type.choices])
    return click.BadParameter(error.message + close, error.ctx, error.param, error.param_hint)


def _meant(wrong: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(wrong, list(known), n=3)
    return f" Did you mean: {', '.join(close)}?" if close else ""


def _options(command: click.Command) -> list[str]:
    return [word for option in command.params if isinstance(option, click.Option) for word in option.opts]
