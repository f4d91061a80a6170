"""`ostinato plan`: what is learned about a model's experts, why, and going forth and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import click

from ostinatod.cli.completion import complete_model
from ostinatod.cli.context import Cli, json_option, pass_cli
from ostinatod.cli.output import print_json, print_text, say
from ostinatod.cli.text import counted, one_line, section, table


@click.command()
@click.argument("model", shell_complete=complete_model)
@click.option("--apply", is_flag=True, help="Change to the proposed set now.")
@click.option("--undo", is_flag=True, help="Return to the set before the one in use.")
@click.option("--history", is_flag=True, help="Every set so far, and what it did.")
@click.option("--explain", is_flag=True, help="Why this is proposed, and how it was compared.")
@json_option
@pass_cli
def plan(cli: Cli, model: str, apply: bool, undo: bool, history: bool, explain: bool, as_json: bool) -> None:
    """Show which experts are better kept hot, and change to them.

    Learned from your sessions with MODEL. The daemon applies a plan by itself when a model is idle and the plan is
    clearly better, and returns to the set before if it was not.
    """
    if apply + undo + history + explain > 1:
        raise click.UsageError("Expected one of --apply, --undo, --history and --explain.")
    action = "apply" if apply else "undo" if undo else None
    with cli.client() as client:
        told = client.change_plan(model, action) if action else client.plan(model)
    if as_json:
        print_json(told)
    elif action:
        say(_changed(model, told, undone=undo))
    elif history:
        print_text(_history(told))
        if not told["history"]:
            say(f"No set of {model} was in use yet. What is proposed: ostinato plan {model}")
    else:
        print_text("\n\n".join(_paragraphs(told, explain=explain)))


def _changed(model: str, told: Mapping[str, Any], *, undone: bool) -> str:
    swap_ms = told.get("swap_ms")
    how = "with the next load, or in a restarted engine" if swap_ms is None else f"in {swap_ms:.0f} ms"
    kept = "went back" if undone else "changed"
    return f"{model} {kept}: generation {told.get('generation')}, {told.get('moved')} experts moved ({how})"


def _paragraphs(told: Mapping[str, Any], *, explain: bool) -> Iterator[str]:
    proposal, name = told["proposal"], told["model"]
    yield section("Learned", _learned(told))
    if proposal is None:
        yield "  Nothing better to propose."
    else:
        yield section("Proposal", _proposal_lines(proposal))
    if proposal is not None and not _is_better(proposal):
        yield "  No better than the set in use, so it is not applied by itself."
    if explain:
        reasons = told.get("reasons") or (proposal or {}).get("reasons") or [told["skew"]["sentence"]]
        yield "\n".join(["  Why", *(f"    - {reason}" for reason in reasons)])
    elif proposal is None or not _is_better(proposal):
        yield f"  Why: ostinato plan {name} --explain"
    else:
        yield f"  Why: ostinato plan {name} --explain. Change to it now: ostinato plan {name} --apply"


def _is_better(proposal: Mapping[str, Any]) -> bool:
    now, then = proposal["coverage_now"], proposal["coverage_held_out"]
    return now is None or then is None or bool(then > now)


def _learned(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    active = next((item for item in told["history"] if item["state"] == "active"), None)
    in_use = active if "in_use" not in told else _numbered(told, told["in_use"])
    yield "sessions", str(told["sessions"])
    yield "in use", _generation(in_use, active)
    if in_use is not None and in_use["coverage_measured"] is not None:
        sessions = counted(in_use["sessions_measured"], "session")
        token_ms = in_use["tpot_ms_measured"]
        per_token = "" if token_ms is None else f", {_number(token_ms)} ms per token"
        yield "measured", f"{_share(in_use['coverage_measured'])} of the routes in {sessions} since{per_token}"
    yield "routing", told["skew"]["sentence"]


def _numbered(told: Mapping[str, Any], number: int | None) -> Mapping[str, Any] | None:
    return next((item for item in told["history"] if item["generation"] == number), None)


def _proposal_lines(proposal: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "generation", str(proposal["generation"])
    yield "hot experts", f"{proposal['hot_experts']}, {proposal['moved']} of them to be moved"
    now, then = _share(proposal["coverage_now"]), _share(proposal["coverage_held_out"])
    yield "coverage", f"{now} now, {then} expected of sessions to come"
    best = _share(proposal["coverage_hindsight"])
    yield "between", f"{_share(proposal['coverage_uniform'])} of a random set and {best} of the best in hindsight"
    # With one session there is nothing to judge by but what was learned from.
    promise = "expected" if proposal["coverage_held_out"] is not None else "at best"
    now, then = _number(proposal["cold_routes_per_token_now"]), _number(proposal["cold_routes_per_token"])
    yield "cold routes", f"{now} per token now, {then} {promise}"
    if (token_ms := proposal["tpot_ms_predicted"]) is not None:
        yield "per token", f"{_number(proposal.get('tpot_ms_now'))} ms now, {token_ms:.1f} ms {promise}"


def _history(told: Mapping[str, Any]) -> str:
    header = ("GENERATION", "MADE", "FROM", "STATE", "SESSIONS", "HOT", "MOVED", "COVERAGE", "TPOT MS")
    rows = (
        (
            str(item["generation"]),
            _moment(item["created_at"]),
            item["source"],
            item["state"].replace("_", " "),
            str(item["sessions"]),
            str(item["hot_experts"]),
            str(item["moved"]),
            _beside(item["coverage_measured"], item["coverage_held_out"], _share),
            _beside(item["tpot_ms_measured"], item.get("tpot_ms_predicted"), _number),
        )
        for item in told["history"]
    )
    titles, *lines = table(header, rows).splitlines()
    notes = (f"\n  {one_line(item['note'])}" if item["note"] else "" for item in told["history"])
    expected = "\n\nIn brackets: as expected when it was made." if lines else ""
    return "\n".join([titles, *(line + note for line, note in zip(lines, notes, strict=True))]) + expected


def _beside(measured: float | None, expected: float | None, text: Callable[[float | None], str]) -> str:
    return text(measured) if expected is None else f"{text(measured)} ({text(expected)})"


def _generation(in_use: Mapping[str, Any] | None, active: Mapping[str, Any] | None) -> str:
    if in_use is not None:
        return f"generation {in_use['generation']} ({in_use['source']}) since {_moment(in_use['created_at'])}"
    return "no set" if active is None else f"no set; the last was generation {active['generation']}"


def _moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s).astimezone().strftime("%Y-%m-%d %H:%M")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
