"""Groups of commands that keep the order of their use and suggest what may have been meant."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import ClassVar

import click


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
            close = difflib.get_close_matches(name, [*self.commands, *self.aliases], n=3)
            suggestion = f" Did you mean: {', '.join(close)}?" if close else ""
            raise click.UsageError(f"No such command {name!r}.{suggestion}", ctx)
        return super().resolve_command(ctx, args)
