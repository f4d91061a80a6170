"""`ostinato doctor`: what is wrong with this installation, and which command comes next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ostinatod.cli.context import Cli, json_option, pass_cli
from ostinatod.cli.output import print_json, print_text, say
from ostinatod.cli.text import counted, one_line
from ostinatod.errors import ConfigError

if TYPE_CHECKING:
    from ostinatod.doctor.findings import Finding

_MARKS = {
    "ok": ("ok", "green"),
    "skipped": ("-", "bright_black"),
    "warning": ("!", "yellow"),
    "problem": ("FAIL", "red"),
}


@click.command()
@click.option("--all", "show_all", is_flag=True, help="Also show the checks that do not apply here.")
@json_option
@pass_cli
@click.pass_context
def doctor(context: click.Context, cli: Cli, show_all: bool, as_json: bool) -> None:
    """Find what is wrong with this installation.

    Looks at Python, the engine, compilers, GPUs, memory, disks, the daemon and the hub's settings, changes nothing,
    and says the next command for everything it finds. Ends with code 1 if something will fail, else with 0.
    """
    try:
        from ostinatod.doctor.examination import examine
    except ImportError as error:
        raise ConfigError(f"a package is missing: {error}", hint="In the checkout: python3 installer") from error

    findings: list[Finding] = []
    for finding in examine(cli.settings):
        findings.append(finding)
        if not as_json and (show_all or finding.level != "skipped"):
            _show(context, finding)
    problems = sum(finding.level == "problem" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    found = ((problems, "problem"), (warnings, "warning"))
    if as_json:
        print_json({"ok": not problems, "problems": problems, "warnings": warnings, "findings": findings})
    elif problems or warnings:
        told = " and ".join(counted(number, noun) for number, noun in found if number)
        say(f"{told}, explained in docs/troubleshooting.md")
    else:
        say("Everything is in order.")
    if problems:
        context.exit(1)


def _show(context: click.Context, finding: Finding) -> None:
    text, colour = _MARKS[finding.level]
    # Padded before it is coloured, so that columns stay aligned where colour is off.
    mark = click.style(text.ljust(4), fg=colour)
    click.echo(f"{mark}  {finding.check.ljust(12)}  {one_line(finding.found)}", color=context.color)
    if finding.hint:
        print_text(f"{' ' * 20}{one_line(finding.hint)}")
