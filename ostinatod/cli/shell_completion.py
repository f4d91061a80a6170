"""`ostinato completion`: scripts for bash, zsh and fish, printed or put where the shell finds them."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete, split_arg_string

from ostinatod.cli.context import json_option
from ostinatod.cli.groups import SuggestingGroup
from ostinatod.cli.output import print_json, print_text, say
from ostinatod.shell_files import SHELLS, install_script, remove_scripts

VARIABLE = "_OSTINATO_COMPLETE"

_PROGRAM = "ostinato"

# bash takes a colon for the end of a word, and names such as org/repo:Q4_K_M have one. So the line goes to the program
# as it was typed, and of each answer the shell is given what comes after the part it has already.
_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' response reply kind value typed head
    typed="${COMP_LINE:0:COMP_POINT}"
    head=""
    if [[ "$COMP_WORDBREAKS" == *:* && "${typed##* }" == *:* ]]; then
        head="${typed##* }"
        head="${head%%:*}:"
    fi
    response=$(env COMP_LINE="$typed" COMP_WORDS= COMP_CWORD= %(complete_var)s=bash_complete "$1" 2>/dev/null)
    for reply in $response; do
        kind="${reply%%%%,*}"
        value="${reply#*,}"
        if [[ $kind == 'dir' ]]; then
            COMPREPLY=()
            compopt -o dirnames
        elif [[ $kind == 'file' ]]; then
            COMPREPLY=()
            compopt -o default
        elif [[ $kind == 'plain' ]]; then
            COMPREPLY+=("${value#"$head"}")
        fi
    done
    return 0
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class BashWithColons(BashComplete):
    """Completion for bash in which a word may contain colons."""

    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the cursor's, and the one that is being typed."""
        line = os.environ.get("COMP_LINE")
        if line is None:
            return super().get_completion_args()
        words = split_arg_string(line)[1:]
        if not words or line[-1:].isspace():
            return words, ""
        return words[:-1], words[-1]


class FishWithCommas(FishComplete):
    """Completion for fish in which names and their descriptions may have commas in them."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split -m 1 ","')


COMPLETIONS: dict[str, type[ShellComplete]] = {"bash": BashWithColons, "zsh": ZshComplete, "fish": FishWithCommas}


@click.group(cls=SuggestingGroup)
def completion() -> None:
    """Complete commands, options and model names in your shell."""


@completion.command()
@click.argument("shell", type=click.Choice(SHELLS))
@json_option
@click.pass_context
def show(context: click.Context, shell: str, as_json: bool) -> None:
    """Print the script for a shell."""
    script = completion_script(context.find_root().command, shell)
    if as_json:
        print_json({"shell": shell, "script": script})
    else:
        print_text(script.rstrip())


@completion.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@json_option
@click.pass_context
def install(context: click.Context, shell: str | None, as_json: bool) -> None:
    """Put the script where the shell finds it.

    Without SHELL, for the one you use. Only your home is written to, and no start-up file is changed.
    """
    chosen = shell or _own_shell()
    file, is_new = install_script(chosen, completion_script(context.find_root().command, chosen))
    if as_json:
        print_json({"shell": chosen, "file": file, "changed": is_new})
        return
    say(f"{'installed' if is_new else 'already installed:'} {file}")
    say(_next_step(chosen, file))


@completion.command()
@json_option
def uninstall(as_json: bool) -> None:
    """Remove the scripts that were installed, for every shell."""
    removed = remove_scripts()
    if as_json:
        print_json({"removed": removed})
    elif removed:
        for file in removed:
            say(f"removed {file}")
    else:
        say("No completion is installed.")


def completion_script(root: click.Command, shell: str) -> str:
    """The script for a shell."""
    kind = COMPLETIONS[shell]
    template, complete = kind.source_template, kind(root, {}, _PROGRAM, VARIABLE)
    return template % complete.source_vars()


def _own_shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise click.UsageError(f"Your shell is {name or 'not known'}; name one of: {', '.join(SHELLS)}.")
    return name


def _next_step(shell: str, file: Path) -> str:
    if shell == "zsh":
        return f"If it is not yet there, add to ~/.zshrc:  fpath+=({file.parent}); autoload -U compinit && compinit"
    if shell == "bash":
        return f"New shells have it where bash-completion is installed; else add to ~/.bashrc:  source {file}"
    return "New shells have it."
