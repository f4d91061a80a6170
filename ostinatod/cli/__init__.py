"""The `ostinato` command.

Every command starts from `ostinatod.cli.app`. Modules of commands import at their top only what is quick to import;
the HTTP client, rich, prompt_toolkit and the server are imported by the command that needs them, so that help and
completion answer at once.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line of this process and exit with its code."""
    from ostinatod.cli.app import cli
    from ostinatod.cli.shell_completion import VARIABLE, BashWithColons

    if VARIABLE in os.environ:
        from click.shell_completion import add_completion_class

        add_completion_class(BashWithColons)
    for stream in (sys.stdout, sys.stderr):
        # Text that a narrow locale cannot encode is shown with replacements, not a UnicodeEncodeError.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
    cli(prog_name="ostinato")
