"""`ostinato plan`: what is learned about a model's experts, why, and going forth and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import click

from ostinatod.cli.completion import complete_model
from ostinatod.cli.context import Cli, json_option, pass_cli
from ostinatod.cli.output import print_json, print_text, say
from ostinatod.cli.text import section, table


@click.command()
@click.argument("model", shell_complete=complete_model)
@click.option("--apply", "action", flag_value="apply", help="Change to the proposed set now.")
@click.option("--undo", "action", flag_value="undo", help="Return to the set before the one in use.")
@click.option("--history", is_flag=True, help="Every set so far, and what it did.")
@click.option("--explain", is_flag=True, help="Why this is proposed, and how it was compared.")
@json_option
@pass_cli
def plan(cli: Cli, model: str, action: str | None, history: bool, explain: bool, as_json: bool) -> None:
    """Show which experts are better kept hot, and change to them.

    Learned from your sessions with MODEL. The daemon applies a plan by itself when a model is idle and the plan is
    clearly better, and returns to the set before if it was not.
    """
    if action and (history or explain):
        raise click.UsageError("Expected one of --apply, --undo, --history and --explain.")
    with cli.client() as client:
        told = client.change_plan(model, action) if action else client.plan(model)
    if as_json:
        print_json(told)
    elif action:
        say(_changed(model, told, undone=action == "undo"))
    elif history:
        print_text(_history(told))
        if not told["history"]:
            say(f"No set of {model} was in use yet. What is proposed: ostinato plan {model}")
    else:
        print_text("\n\n".join(_paragraphs(told, explain=explain)))


def _changed(model: str, told: Mapping[str, Any], *, undone: bool) -> str:
    swap_ms = told.get("swap_ms")
    how = "from the next load on or restarted" if swap_ms is None else f"in {swap_ms:.0f} ms"
    kept = "went back" if undone else "changed"
    return f"{model} {kept}: generation {told.get('generation')}, {told.get('moved')} experts moved ({how})"


def _paragraphs(told: Mapping[str, Any], *, explain: bool) -> Iterator[str]:
    skew, proposal = told["skew"], told["proposal"]
    active = next((item for item in told["history"] if item["state"] == "active"), None)
    yield section(
        "Learned", [("sessions", str(told["sessions"])), ("in use", _generation(active)), ("routing", skew["sentence"])]
    )
    if proposal is None:
        yield "  Nothing better to propose."
        return
    yield section("Proposal", _proposal_lines(proposal))
    if explain:
        yield "\n".join(["  Why", *(f"    - {reason}" for reason in proposal["reasons"])])
    else:
        name = told["model"]
        yield f"  Why: ostinato plan {name} --explain. Change to it now: ostinato plan {name} --apply"


def _proposal_lines(proposal: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "generation", str(proposal["generation"])
    yield "hot experts", f"{proposal['hot_experts']}, {proposal['moved']} of them to be moved"
    now, then = _share(proposal["coverage_now"]), _share(proposal["coverage_held_out"])
    yield "coverage", f"{now} now, {then} expected of sessions to come"
    best = _share(proposal["coverage_hindsight"])
    yield "between", f"{_share(proposal['coverage_uniform'])} of a random set and {best} of the best in hindsight"
    now, then = _number(proposal["cold_routes_per_token_now"]), _number(proposal["cold_routes_per_token"])
    yield "cold routes", f"{now} per token now, {then} expected"
    if (token_ms := proposal["tpot_ms_predicted"]) is not None:
        yield "per token", f"{_number(proposal.get('tpot_ms_now'))} ms now, {token_ms:.1f} ms expected"


def _history(told: Mapping[str, Any]) -> str:
    rows = (
        (
            str(item["generation"]),
            _moment(item["created_at"]),
            item["source"],
            item["state"].replace("_", " "),
            str(item["sessions"]),
            str(item["hot_experts"]),
            str(item["moved"]),
            _share(item["coverage_measured"]),
            _share(item["coverage_held_out"]),
            _number(item["tpot_ms_measured"]),
            _number(item.get("tpot_ms_predicted")),
            item["note"],
        )
        for item in told["history"]
    )
    header = (
        "GENERATION",
        "MADE",
        "FROM",
        "STATE",
        "SESSIONS",
        "HOT",
        "MOVED",
        "COVERAGE",
        "(EXPECTED)",
        "TPOT MS",
        "(EXPECTED)",
        "NOTE",
    )
    return table(header, rows)


def _generation(active: Mapping[str, Any] | None) -> str:
    if active is None:
        return "no set"
    return f"generation {active['generation']} ({active['source']}) since {_moment(active['created_at'])}"


def _moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s).astimezone().strftime("%Y-%m-%d %H:%M")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
