"""What a comparison found, as tables for people and as JSON for programs. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ostinatod.bench.results import TurnResult
from ostinatod.bench.statistics import BUCKETS, Estimate, Group, Summary, Versus, summarize, versus

KIND_WORDS = {"first": "first turn", "after_tool": "after a tool", "after_user": "after the user"}


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a title; cells are text."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All settings of one comparison. `base` is what others are compared with; `notes` say what was measured how."""

    base: str
    settings: tuple[Summary, ...]
    versus: tuple[Versus, ...]
    notes: tuple[str, ...]
    facts: Mapping[str, Any]
    """Machine, model, command, what was chosen and what failed: whatever a reader needs to repeat it."""

    def as_json(self) -> dict[str, Any]:
        """For programs; times are milliseconds."""
        buckets = [bucket_words(bucket) for bucket in BUCKETS]
        return {**asdict(self), "new_token_buckets": buckets}


def make_report(
    turns: Sequence[TurnResult], base: str | None, notes: Sequence[str], facts: Mapping[str, Any]
) -> Report:
    """The report on turns; the base is the first setting where none is named or the one named has no turn."""
    names = list(dict.fromkeys(turn.setting for turn in turns))
    base = base if base in names else names[0]
    against = (versus(turns, name, base) for name in names if name != base)
    return Report(
        base=base,
        settings=tuple(summarize(turns, name) for name in names),
        versus=tuple(found for found in against if found),
        notes=tuple(notes),
        facts=facts,
    )


def tables(report: Report) -> Iterator[Table]:
    """The report for people."""
    against = {item.setting: item for item in report.versus}
    compared = (
        f"what {report.base} saves of a setting's time, in how many of them it is faster, and how many times as long "
        "the setting takes; 95 % intervals over sessions"
    )
    yield Table(
        f"Held-out sessions: {compared if report.versus else 'total request time, and medians of turns'}",
        ("SETTING", "TOTAL", "SAVED", "WON", "TTFT AFTER TOOL", "TPOT"),
        tuple(row for summary in report.settings for row in _main_rows(summary, against.get(summary.setting))),
    )
    if any(group.turns for item in report.settings for group in item.by_new_tokens):
        yield Table(
            "Median TTFT after a tool's output, by new tokens (turns)",
            ("SETTING", *(bucket_words(bucket) for bucket in BUCKETS)),
            tuple(_bucket_rows(report.settings, against)),
        )
    yield Table(
        "Median TTFT by kind of turn (turns)",
        ("SETTING", *KIND_WORDS.values()),
        tuple((item.setting, *map(_group, item.by_kind.values())) for item in report.settings),
    )
    saves = f", what {report.base} saves of it" if report.versus else ""
    yield Table(
        f"Each session: total request time{saves}, medians of its turns",
        ("SESSION", "SETTING", "TOTAL", "SAVED", "TTFT AFTER TOOL", "TPOT"),
        tuple(_session_rows(report, against)),
    )
    yield _phases(report.settings)


def search_table(search: Sequence[Mapping[str, Any]], chosen: Collection[str]) -> Table:
    """The candidates and their times on the development sessions; `chosen` are the names of those that are timed."""
    rows = tuple(
        (
            item["setting"]["name"],
            str(item["setting"]["cpu_layers"]) if item["setting"]["kind"] == "stock" else "-",
            _ms(item["total_ms"]),
            item["reason"] or ("chosen" if item["setting"]["name"] in chosen else ""),
        )
        for item in search
    )
    return Table("Candidates on development sessions", ("SETTING", "LAYERS ON THE CPU", "TOTAL", ""), rows)


def bucket_words(bucket: tuple[int, int | None]) -> str:
    """A bucket of new tokens for people."""
    least, below = bucket
    return f"{least:,}+" if below is None else f"{least:,}-{below - 1:,}"


def _main_rows(summary: Summary, against: Versus | None) -> Iterator[tuple[str, ...]]:
    times = _ms(summary.by_kind["after_tool"].ttft_ms), _ms(summary.tpot_ms)
    if against is None:
        yield summary.setting, _ms(summary.total_ms), "", "", *times
        return
    won = f"{against.sessions_won}/{against.sessions}"
    yield summary.setting, _ms(summary.total_ms), _percent(against.saved.value), won, *times
    total, *medians = (_parts(item, ".2f") for item in (against.total, against.ttft_after_tool, against.tpot))
    yield "  times as long", total[0], "", "", *(value for value, _ in medians)
    if total[1]:
        yield "  95 %", total[1], _parts(against.saved, ".1%")[1], "", *(interval for _, interval in medians)


def _phases(summaries: Sequence[Summary]) -> Table:
    """Reading and writing, and the share of their routes that went to hot experts where it is known of any setting."""
    if all(item.coverage_prefill is None and item.coverage_decode is None for item in summaries):
        rows = tuple((item.setting, _ms(item.prefill_ms), _ms(item.decode_ms)) for item in summaries)
        return Table("Where the time goes", ("SETTING", "READING", "WRITING"), rows)
    return Table(
        "Where the time goes, and the share of routes that went to hot experts",
        ("SETTING", "READING", "HOT", "WRITING", "HOT"),
        tuple(
            (
                item.setting,
                _ms(item.prefill_ms),
                _percent(item.coverage_prefill),
                _ms(item.decode_ms),
                _percent(item.coverage_decode),
            )
            for item in summaries
        ),
    )


def _session_rows(report: Report, against: Mapping[str, Versus]) -> Iterator[tuple[str, ...]]:
    for session in dict.fromkeys(name for item in report.settings for name in item.sessions):
        told = session
        for item in report.settings:
            if times := item.by_session.get(session):
                saved = against[item.setting].saved_by_session.get(session) if item.setting in against else None
                medians = _ms(times.ttft_after_tool_ms), _ms(times.tpot_ms)
                yield told, item.setting, _ms(times.total_ms), "" if saved is None else _percent(saved), *medians
                told = ""


def _bucket_rows(summaries: Sequence[Summary], against: Mapping[str, Versus]) -> Iterator[tuple[str, ...]]:
    for summary in summaries:
        yield summary.setting, *map(_group, summary.by_new_tokens)
        if summary.setting in against:
            yield "  ratio, turn by turn", *map(_ratio, against[summary.setting].by_new_tokens)


def _group(group: Group) -> str:
    return "-" if group.ttft_ms is None else f"{_ms(group.ttft_ms)} ({group.turns})"


def _ratio(estimate: Estimate | None) -> str:
    return " ".join(_parts(estimate, ".2f")).strip()


def _parts(estimate: Estimate | None, form: str) -> tuple[str, str]:
    """The value, and its interval in brackets where it has one."""
    if estimate is None:
        return "-", ""
    return (
        f"{estimate.value:{form}}",
        "" if estimate.low is None else f"[{estimate.low:{form}}, {estimate.high:{form}}]",
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 10:
        return f"{value:.2f} ms"
    return f"{value:.0f} ms" if value < 1000 else f"{value / 1000:.2f} s"
