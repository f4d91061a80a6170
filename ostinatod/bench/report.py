"""What a comparison found, as tables for people and as JSON for programs. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    yield Table(
        f"Held-out sessions; ratios: times as long as {report.base}, with 95 % intervals over sessions",
        (
            "SETTING",
            "TOTAL",
            "RATIO",
            "SAVED",
            "WON",
            "TTFT AFTER TOOL",
            "RATIO",
            "TPOT",
            "RATIO",
        ),
        tuple(_main_row(summary, against.get(summary.setting)) for summary in report.settings),
    )
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
    yield Table(
        f"Total request time of each session, and what {report.base} saves of it; in all with 95 % intervals",
        (
            "SESSION",
            *(item.setting for item in report.settings),
            *(f"SAVED OF {item.setting}" for item in report.versus),
        ),
        tuple(_session_rows(report)),
    )
    yield Table(
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
            for item in report.settings
        ),
    )


def search_table(search: Sequence[Mapping[str, Any]]) -> Table:
    """The candidates and their times on the development sessions."""
    rows = tuple(
        (
            item["setting"]["name"],
            str(item["setting"]["cpu_layers"]) if item["setting"]["kind"] == "stock" else "-",
            _ms(item["total_ms"]),
            item["reason"] or "",
        )
        for item in search
    )
    return Table("Candidates on development sessions", ("SETTING", "LAYERS ON THE CPU", "TOTAL", "COULD NOT RUN"), rows)


def bucket_words(bucket: tuple[int, int | None]) -> str:
    """A bucket of new tokens for people."""
    least, below = bucket
    return f"{least:,}+" if below is None else f"{least:,}-{below - 1:,}"


def _main_row(summary: Summary, against: Versus | None) -> tuple[str, ...]:
    after_tool = summary.by_kind["after_tool"].ttft_ms
    return (
        summary.setting,
        _ms(summary.total_ms),
        "1" if against is None else _ratio(against.total),
        "" if against is None else _saved(against.saved),
        "" if against is None else f"{against.sessions_won}/{against.sessions}",
        _ms(after_tool),
        "1" if against is None else _ratio(against.ttft_after_tool),
        _ms(summary.tpot_ms),
        "1" if against is None else _ratio(against.tpot),
    )


def _session_rows(report: Report) -> Iterator[tuple[str, ...]]:
    for session in report.settings[0].sessions:
        saved = (_percent(against.saved_by_session.get(session)) for against in report.versus)
        yield session, *(_ms(item.sessions.get(session)) for item in report.settings), *saved
    yield "all", *(_ms(item.total_ms) for item in report.settings), *(_saved(item.saved) for item in report.versus)


def _bucket_rows(summaries: Sequence[Summary], against: Mapping[str, Versus]) -> Iterator[tuple[str, ...]]:
    for summary in summaries:
        yield summary.setting, *map(_group, summary.by_new_tokens)
        if summary.setting in against:
            yield "  ratio, turn by turn", *map(_ratio, against[summary.setting].by_new_tokens)


def _group(group: Group) -> str:
    return "-" if group.ttft_ms is None else f"{_ms(group.ttft_ms)} ({group.turns})"


def _ratio(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    return f"{estimate.value:.2f}{_between(estimate, '.2f')}"


def _saved(estimate: Estimate) -> str:
    return f"{estimate.value:.1%}{_between(estimate, '.1%')}"


def _between(estimate: Estimate, form: str) -> str:
    return "" if estimate.low is None else f" [{estimate.low:{form}}, {estimate.high:{form}}]"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 10:
        return f"{value:.2f} ms"
    return f"{value:.0f} ms" if value < 1000 else f"{value / 1000:.2f} s"
