"""Commands about the routing log: stats, forget."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from ostinatod.cli.completion import complete_model
from ostinatod.cli.context import Cli, json_option, pass_cli
from ostinatod.cli.output import print_json, print_text, say
from ostinatod.cli.text import counted, human_bytes, section, table
from ostinatod.config import FOREVER_S, parse_duration_s
from ostinatod.errors import ConfigError

_KIND_WORDS = {
    "first": "first",
    "after_tool": "after a tool",
    "after_user": "after the user",
    "side": "side request",
    "other": "other",
}


@click.command()
@click.argument("model", default="", shell_complete=complete_model)
@json_option
@pass_cli
def stats(cli: Cli, model: str, as_json: bool) -> None:
    """Show sessions, tokens and times by kind of turn.

    This is what the routing log holds. With MODEL, only that model's.
    """
    with cli.client() as client:
        told = client.stats(model or None)
    if as_json:
        print_json(told)
    else:
        print_text("\n\n".join(_paragraphs(told)))


@click.command()
@click.option("--model", metavar="MODEL", shell_complete=complete_model, help="What is logged of one model.")
@click.option("--session", metavar="ID", help="One session, by its name in the dashboard or by the client's own id.")
@click.option("--before", metavar="TIME", help="What is older: a date such as 2026-01-31, or an age such as 30d.")
@click.option("--all", "everything", is_flag=True, help="The whole log, also one that is damaged.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_cli
def forget(
    cli: Cli,
    model: str | None,
    session: str | None,
    before: str | None,
    everything: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete from the routing log, for good.

    Conditions that are given together must all hold. What was learnt from it stays until the next plan. Prompts
    that are kept on disk (prompt_state_bytes) cannot be told apart: all of the model's go.
    """
    conditions = [value for value in (model, session, before) if value is not None]
    if everything == bool(conditions):
        raise click.UsageError("Expected --all, or what to forget: --model, --session, --before.")
    before_at = None if before is None else parse_moment(before, now=time.time())
    if not yes:
        click.confirm(f"Forget {_described(model, session, before_at)}?", abort=True, err=True)
    with cli.client() as client:
        sessions, requests = client.forget(model=model, session=session, before=before_at)
    if as_json:
        print_json({"sessions": sessions, "requests": requests})
    else:
        say(f"forgot {counted(sessions, 'session')} and {counted(requests, 'request')}")


def parse_moment(text: str, *, now: float) -> float:
    """Unix seconds of a date, a date with a time, or an age. Raises ConfigError for anything else.

    now   Unix seconds, what ages are counted from
    """
    with contextlib.suppress(ValueError, OverflowError, OSError):
        # Local time where none is named.
        return datetime.fromisoformat(text.strip()).timestamp()
    with contextlib.suppress(ConfigError):
        age_s = parse_duration_s(text)
        if age_s != FOREVER_S:
            return now - age_s
    raise ConfigError(f"expected a date such as 2026-01-31 or an age such as 30d, found {text!r}")


def _described(model: str | None, session: str | None, before_at: float | None) -> str:
    if model is None and session is None and before_at is None:
        return "the whole routing log"
    parts = ["what is logged"]
    if session is not None:
        parts.append(f"of session {session}")
    if model is not None:
        parts.append(f"of {model}")
    if before_at is not None:
        parts.append(f"before {datetime.fromtimestamp(before_at):%Y-%m-%d %H:%M}")
    return " ".join(parts)


def _paragraphs(told: Mapping[str, Any]) -> Iterator[str]:
    for model in told.get("models") or []:
        yield section(str(model["model"]), _totals(model))
        yield table(
            ("TURN", "REQUESTS", "READ", "REUSED", "TTFT P50", "P90", "P99", "PER TOKEN P50", "P90"), _turns(model)
        )
    log, database = told.get("log") or {}, told.get("database") or {}
    yield section("Routing log", _log(log, database))


def _totals(model: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    merged, side = model["sessions_merged"], model["side_requests"]
    yield "sessions", f"{model['sessions']}{f', {merged} of them merged' if merged else ''}"
    yield "requests", f"{model['requests']}{f', {side} of them side requests' if side else ''}"
    yield "prompt tokens", f"{model['new_tokens']} read, {model['reused_tokens']} reused"
    yield "output tokens", str(model["output_tokens"])
    yield "prefix breaks", f"{model['prefix_breaks']}, {model['lost_tokens']} tokens read again"
    for phase, told in model["phases"].items():
        coverage = told["coverage"]
        yield f"{phase} routes", f"{told['routes']}{'' if coverage is None else f', {coverage:.1%} of them hot'}"


def _turns(model: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for kind, told in model["kinds"].items():
        ttft, tpot = told["ttft_ms"], told["tpot_ms"]
        yield (
            _KIND_WORDS.get(kind, kind),
            *(str(told[name]) for name in ("requests", "new_tokens", "reused_tokens")),
            *(human_ms(ttft[name]) for name in ("p50", "p90", "p99")),
            *(human_ms(tpot[name]) for name in ("p50", "p90")),
        )


def _log(log: Mapping[str, Any], database: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "state", str(log.get("reason") or log.get("state") or "-")
    if hint := log.get("hint"):
        yield "", str(hint)
    if dropped := log.get("dropped"):
        yield "lost", f"{counted(dropped, 'request')} since the daemon started"
    yield "size", f"{human_bytes(database.get('used_bytes') or 0)} of {human_bytes(log.get('cap_bytes') or 0)}"
    yield "file", str(database.get("file") or "-")


def human_ms(value: float | None) -> str:
    """A time in a unit of its size; "-" where it is not known."""
    if value is None:
        return "-"
    if value < 10:
        return f"{value:.2f} ms"
    return f"{value:.0f} ms" if value < 1000 else f"{value / 1000:.1f} s"
