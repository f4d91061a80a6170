"""What panels say, without a terminal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from ostinatod.client_dashboard_reading import daemon_state, plan_of, requests_of, residency_of, routes_of
from ostinatod.client_dashboard_values import Reading, Residency, Routes, Unavailable
from ostinatod.errors import OstinatoError
from ostinatod.tui.view import charts, figures, heat, logs
from ostinatod.tui.view.experts import Experts, join
from ostinatod.tui.view.heat import HeatOptions, Place
from ostinatod.tui.view.hits import hits_subtitle
from ostinatod.tui.view.inert import ascii_only, inert
from ostinatod.tui.view.latency import series_of
from ostinatod.tui.view.learning import proposal_lines
from ostinatod.tui.view.lines import Line, Span, fit, right, width_of, wrap
from ostinatod.tui.view.memory import parts_of
from ostinatod.tui.view.skew import skew_lines
from ostinatod.tui.view.state import Link, View
from ostinatod.tui.view.symbols import ASCII, UNICODE
from ostinatod.tui.view.table import Column, Row, Table, body, layout
from ostinatod.tui.view.traffic import request_detail
from tests.fakes import dashboard_states as states


def spans(*texts: str) -> tuple[Span, ...]:
    return tuple(Span(text) for text in texts)


@settings(max_examples=40)
@given(st.text(max_size=60))
def test_inert_text_has_no_letter_that_a_terminal_obeys(text: str) -> None:
    shown = inert(text)
    assert inert(shown) == shown
    assert all(letter.isprintable() for letter in shown)
    assert ascii_only(shown).isascii()
    assert cell_len(ascii_only(shown)) == cell_len(shown)


@settings(max_examples=40)
@given(st.lists(st.text(max_size=12), max_size=5), st.integers(0, 40))
def test_lines_are_exactly_as_wide_as_asked(texts: list[str], width: int) -> None:
    entry = tuple(Span(inert(text)) for text in texts)
    assert width_of(fit(entry, width, "…")) == width
    assert width_of(right(entry, width, "…")) == width


@settings(max_examples=40)
@given(st.text(max_size=80), st.integers(2, 30))
def test_wrapped_rows_are_no_wider_than_asked(text: str, width: int) -> None:
    assert all(cell_len(row) <= width for row in wrap(text, width))


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (figures.gib(None, UNICODE), "\N{EN DASH}"),
        (figures.gib(158 * 1024**2, UNICODE), "158 MiB"),
        (figures.gib(24 * 1024**3, UNICODE), "24.0 GiB"),
        (figures.ms(8.44, UNICODE), "8.4 ms"),
        (figures.ms(812.4, UNICODE), "812 ms"),
        (figures.ms(9_800, UNICODE), "9.8 s"),
        (figures.ms(125_000, UNICODE), "2 m 05 s"),
        (figures.count(9_999, UNICODE), "9,999"),
        (figures.count(61_234, UNICODE), "61.2k"),
        (figures.count(1_234_567, UNICODE), "1.23M"),
        (figures.share(0.8412, UNICODE), "84.1 %"),
        (figures.share(None, ASCII), "-"),
        (figures.points(-0.002, UNICODE), "-0.2 pt"),
        (figures.length(11_532, UNICODE), "3 h 12 m"),
        (figures.ago(100.0, 400.0, UNICODE), "5 m"),
    ],
)
def test_figures_are_short_and_unknown_ones_are_dashes(shown: str, expected: str) -> None:
    assert shown == expected


def test_percentiles_lie_between_neighbours_and_of_nothing_are_unknown() -> None:
    assert figures.percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert figures.percentile([], 0.95) is None


@settings(max_examples=40)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=8), st.integers(1, 80))
def test_the_parts_of_a_bar_fill_it(sizes: list[int], width: int) -> None:
    parts = [(str(at), float(size)) for at, size in enumerate(sizes)]
    cells = charts.stacked(parts, float(sum(sizes)), width)
    assert sum(size for _, size in cells) == (width if sum(sizes) else 0)


def test_a_sparkline_runs_from_zero_and_leaves_gaps_for_what_is_unknown() -> None:
    (_, drawn) = charts.sparkline([0.0, None, 4.0, 8.0], 6, UNICODE)
    assert drawn.text == "▁ ▄▇"
    # Two in lines one above the other stay apart: no value fills its line.
    (row,) = charts.graph([1.0, 8.0], 6, 1, UNICODE)
    assert row[-1].text == "▂▇"
    assert width_of(charts.sparkline([1.0, 2.0], 6, UNICODE)) == 6


def test_the_least_important_columns_leave_first() -> None:
    columns = (Column("name", importance=9, least=4, grows=True), Column("b", importance=1), Column("c", importance=5))
    table = Table(columns, (Row("k", spans("a-long-name", "bbbb", "cccc")),))
    assert [at for at, _ in layout(table, 30)] == [0, 1, 2]
    assert [at for at, _ in layout(table, 15)] == [0, 2]
    assert [at for at, _ in layout(table, 8)] == [0]
    for width in (8, 15, 30):
        assert width_of(body(table, table.rows[0], layout(table, width), UNICODE)) == width


def small() -> Experts:
    """Two layers of four experts; expert 2 of layer 3 takes 6 of 10 routes and is hot."""
    prefill = np.array([[1, 1, 6, 2], [4, 3, 2, 1]])
    routes = Routes((3, 5), prefill, np.zeros_like(prefill))
    answer = {
        "generation": 1,
        "layers": [{"layer": 3, "experts": 4, "hot": [2]}, {"layer": 5, "experts": 4, "hot": [3]}],
    }
    joined = join(routes, residency_of(answer))
    assert isinstance(joined, Experts)
    return joined


def test_coverage_is_the_share_of_routes_that_meet_hot_experts() -> None:
    # Layer 3: 6 of 10, layer 5: 1 of 10; together 7 of 20. One expert in four is hot.
    assert small().coverage("prefill") == pytest.approx(0.35)
    assert small().hot_share() == 0.25
    assert small().coverage("decode") is None


def test_a_set_without_hot_experts_is_no_set() -> None:
    counts = routes_of(states.routes(2, 4))
    joined = join(counts, Residency(None, residency_of(states.residency(states.routes(2, 4))).layers[:0], None, "none"))
    assert isinstance(joined, Experts)
    assert joined.hot is None
    assert joined.residency_missing == Unavailable("none")


def test_the_map_is_ranked_by_routes_and_tells_hot_from_cold_by_glyph() -> None:
    experts = small()
    shown = heat.grid(experts, "rank", "all")
    assert shown.experts.tolist() == [[2, 3, 0, 1], [0, 1, 2, 3]]
    width = 4 * 3 + heat.GUTTER + heat.COVERAGE
    lines = heat.heat_lines(experts, shown, HeatOptions(has_colour=False), width, 2, ASCII)
    # Layer 3: 2.4 times an even share for its hot expert, then cold ones of 0.8, 0.4 and 0.4; layer 5: 1.6, 1.2 and 0.8
    # for its cold ones, 0.4 for its hot one.
    texts = ["".join(part.text for part in entry) for entry in lines]
    assert texts == ["   3 ###,,,......  60 %", "   5 ,,,,,,,,,+++  10 %"]


@pytest.mark.parametrize(
    "size", [(61, 256, 58, 20), (61, 256, 200, 70), (4, 16, 70, 12), (94, 128, 30, 6), (1, 8, 30, 3)]
)
@pytest.mark.parametrize("has_colour", [True, False])
def test_the_map_fits_every_size_and_finds_the_cell_under_the_mouse(
    size: tuple[int, int, int, int], has_colour: bool
) -> None:
    n_layers, n_experts, width, height = size
    counts = states.routes(n_layers, n_experts)
    experts = join(routes_of(counts), residency_of(states.residency(counts)))
    assert isinstance(experts, Experts)
    options = HeatOptions(has_colour=has_colour, cursor=Place(n_layers - 1, n_experts - 1))
    lines = heat.heat_lines(experts, heat.grid(experts, "rank", "all"), options, width, height, UNICODE)
    assert 0 < len(lines) <= height
    assert {width_of(entry) for entry in lines} == {width}
    assert sum(part.role == "cursor" for entry in lines for part in entry) >= 1
    place = heat.place_at(experts, options, heat.GUTTER, 0, width, height)
    assert place == Place(0, 0)


def test_memory_that_nobody_accounts_for_belongs_to_other_programs() -> None:
    answer = states.status(
        states.model("m", engine={"memory": {"devices": [states.device("GPU", 24, 2, dense=2, pool=18)]}})
    )
    (device,) = daemon_state(answer).models[0].devices
    gib = 1024**3
    assert parts_of(device) == (("dense", 2 * gib), ("pool", 18 * gib), ("other", 2 * gib), ("free", 2 * gib))


def test_the_wait_after_a_tool_counts_only_turns_that_carry_its_output() -> None:
    answer = {
        "requests": [
            states.request(1, kind="after_user", ttft_ms=5.0),
            states.request(2, ttft_ms=7.0, kind="after_tool"),
        ]
    }
    ttft, _, after_tool = series_of(requests_of(answer))
    assert ttft.values == (7.0, 5.0)
    assert after_tool.values == (7.0,)


def test_figures_that_the_daemon_does_not_tell_stay_unknown() -> None:
    (request,) = requests_of({"requests": [{"id": "a"}]})
    assert (request.ttft_ms, request.new_tokens, request.coverage_decode) == (None, None, None)
    assert plan_of({"model": "m"}).proposal is None


@pytest.mark.parametrize(
    "answer",
    [
        {"requests": [{"id": "a", "ttft_ms": "soon"}]},
        {"requests": {"id": "a"}},
        {"requests": [], "reason": "the database is locked"},
        {"requests": [{"id": "a", "ttft_ms": float("nan")}]},
    ],
)
def test_answers_of_the_wrong_shape_are_refused(answer: dict[str, object]) -> None:
    with pytest.raises(OstinatoError):
        requests_of(answer)


def texts(lines: list[Line]) -> list[str]:
    return ["".join(part.text for part in entry) for entry in lines]


def test_a_log_line_tells_the_day_of_other_days_and_sets_back_what_repeats() -> None:
    text = "2026-01-31 12:00:05,250 INFO ostinatod.api.relay request id=req-1 path=/v1/chat ms=41"
    shown = logs.log_line(text, "2026-01-31")
    assert "".join(part.text for part in shown) == "12:00:05 INFO api.relay request id=req-1 path=/v1/chat ms=41"
    assert [part.text for part in shown if part.role == "faint"] == ["12:00:05 ", "INFO ", "id=", "path=", "ms="]
    assert [part.text for part in shown if part.role == "strong"] == ["request"]
    assert texts([logs.log_line(text, "2026-02-01")])[0].startswith("2026-01-31 12:00:05,250 INFO api.relay")


def test_a_log_line_of_any_other_form_is_shown_as_it_is() -> None:
    engine = "0.46.601.125 I slot release: id  3 | stop processing"
    assert logs.log_line(engine) == (Span("0.46.601.125 ", "faint"), Span(engine[13:]))
    assert logs.log_line("ostinato-load 1.0000") == (Span("ostinato-load 1.0000"),)
    assert logs.log_line("2026-01-31 12:00:05 no level here", "2026-01-31") == (
        Span("12:00:05 ", "faint"),
        Span("no level here"),
    )


@pytest.mark.parametrize(("level", "role"), [("WARNING", "warn"), ("ERROR", "bad")])
def test_a_log_line_has_the_colour_of_its_level(level: str, role: str) -> None:
    shown = logs.log_line(f"2026-01-31 12:00:05,250 {level} ostinatod.serve engine_died model=m", "2026-01-31")
    assert {part.role for part in shown if part.text.strip() in (level, "engine_died", "m")} == {role}


@pytest.mark.parametrize(
    ("size", "done", "shown"),
    [(142e9, None, "142.0 GB"), (142e9, 18.2e9, "18.2/142.0 GB"), (38e6, 0, "0/38 MB"), (999e6, 999e6, "999/999 MB")],
)
def test_files_are_measured_as_disks_count(size: float, done: float | None, shown: str) -> None:
    assert figures.file_size(int(size), None if done is None else int(done)) == shown


def test_the_map_has_no_column_for_coverage_without_a_set() -> None:
    with_set = small()
    without = Experts(with_set.layers, with_set.prefill, with_set.decode, None)
    options = HeatOptions()
    rows = [
        texts(heat.heat_lines(each, heat.grid(each, "rank", "all"), options, 60, 8, UNICODE))
        for each in (with_set, without)
    ]
    assert all(line.rstrip().endswith("%") for line in rows[0][:1])
    assert not any(UNICODE.missing in line for line in rows[1])
    assert {width_of(fit((Span(line),), 60, "")) for line in rows[1]} == {60}


@pytest.mark.parametrize("width", [120, 70, 56])
def test_the_words_of_the_curve_fit_its_panel(width: int) -> None:
    (_, words, *_) = texts(skew_lines(small(), "all", width, 12, UNICODE))
    assert words.rstrip().endswith("at most 50.0 %")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"status": "running"}, "Not answered yet"),
        ({"turn": 1}, "The first turn of its session"),
        ({"turn": 2}, "The prefix held"),
        ({"prefix_break": {"reason": "tools", "detail": "", "lost_tokens": 5}}, "The prefix broke: tools changed"),
    ],
)
def test_a_request_tells_what_became_of_its_prefix_only_where_that_is_known(
    change: dict[str, object], told: str
) -> None:
    (request,) = requests_of({"requests": [states.request(1, prefix_break=None) | change]})
    view = View(Link("http://127.0.0.1:11435", "up"), UNICODE, states.NOW)
    assert told in " ".join(texts(request_detail(request, view, 90)))
    assert ("The prefix held" in " ".join(texts(request_detail(request, view, 90)))) == (told == "The prefix held")


def test_a_proposal_that_promises_less_says_so_and_offers_no_key() -> None:
    told = states.plan()
    told["proposal"] |= {"coverage_now": 0.641, "coverage_held_out": 0.637}
    view = View(
        Link("http://127.0.0.1:11435", "up"),
        UNICODE,
        states.NOW,
        Reading(states.NOW, daemon_state(states.status(states.model(states.MODEL))), plan=plan_of(told)),
        focus=states.MODEL,
    )
    assert "expected to cover less" in " ".join(texts(proposal_lines(view, 90, 30)))
    assert hits_subtitle(view) == ""
    more = plan_of(states.plan())
    assert view.reading is not None
    better = replace(view, reading=replace(view.reading, plan=more))
    assert "expected to cover less" not in " ".join(texts(proposal_lines(better, 90, 30)))
    assert hits_subtitle(better).startswith("a applies the proposal: +")
