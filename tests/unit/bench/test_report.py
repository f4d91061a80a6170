from __future__ import annotations

import io
import json
from dataclasses import replace
from xml.etree import ElementTree

from PIL import Image

from ostinatod.bench.drawing import as_png, as_svg
from ostinatod.bench.plot import plot
from ostinatod.bench.report import bucket_words, make_report, search_table, tables
from ostinatod.bench.results import TurnResult
from ostinatod.bench.sessions import Kind
from ostinatod.bench.settings import Setting, as_json
from ostinatod.bench.statistics import BUCKETS

SHAPE: tuple[tuple[Kind, int, float], ...] = (("first", 3000, 900.0), ("after_tool", 100, 100.0))
TURNS = [
    TurnResult(name, session, n, 0, kind, 0, new, 11, ttft * factor, 10.0 * factor, (ttft + 100) * factor, 1)
    for name, factor in (("ostinato", 1), ("stock <best>", 2))
    for session in ("first", "second")
    for n, (kind, new, ttft) in enumerate(SHAPE)
]
REPORT = make_report(TURNS, "ostinato", ["A note."], {"machine": "a machine"})


def cells(title: str) -> dict[str, tuple[str, ...]]:
    """Rows of the table whose title begins so, by their first cell."""
    (found,) = [item for item in tables(REPORT) if item.title.startswith(title)]
    assert all(len(row) == len(found.header) for row in found.rows)
    return {row[0]: row[1:] for row in found.rows}


def test_the_main_table_compares_every_setting_with_ostinato() -> None:
    rows = cells("Held-out sessions")
    assert rows["ostinato"] == ("2.40 s", "", "", "100 ms", "10 ms")
    assert rows["stock <best>"] == ("4.80 s", "50.0%", "2/2", "200 ms", "20 ms")
    assert rows["  times as long"] == ("2.00", "", "", "2.00", "2.00")
    assert rows["  95 %"] == ("[2.00, 2.00]", "[50.0%, 50.0%]", "", "[2.00, 2.00]", "[2.00, 2.00]")


def test_one_session_has_no_row_of_intervals() -> None:
    (main, *_) = tables(make_report([turn for turn in TURNS if turn.session == "first"], "ostinato", [], {}))
    assert [row[0] for row in main.rows] == ["ostinato", "stock <best>", "  times as long"]


def test_waits_are_told_by_new_tokens_with_their_number_of_turns() -> None:
    rows = cells("Median TTFT after")
    assert rows["ostinato"] == ("100 ms (2)", "-", "-", "-", "-")
    assert rows["  ratio, turn by turn"][:2] == ("2.00 [2.00, 2.00]", "-")


def test_each_session_has_its_times_under_every_setting() -> None:
    (found,) = [item for item in tables(REPORT) if item.title.startswith("Each session")]
    assert found.rows == (
        ("first", "ostinato", "1.20 s", "", "100 ms", "10 ms"),
        ("", "stock <best>", "2.40 s", "50.0%", "200 ms", "20 ms"),
        ("second", "ostinato", "1.20 s", "", "100 ms", "10 ms"),
        ("", "stock <best>", "2.40 s", "50.0%", "200 ms", "20 ms"),
    )


def test_a_setting_that_did_not_come_to_a_session_has_no_times_of_it() -> None:
    cut = [turn for turn in TURNS if turn.setting == "ostinato" or turn.session == "first"]
    (found,) = [item for item in tables(make_report(cut, "ostinato", [], {})) if item.title.startswith("Each session")]
    assert [row[:2] for row in found.rows] == [
        ("first", "ostinato"),
        ("", "stock <best>"),
        ("second", "ostinato"),
    ]


def test_without_counted_routes_the_share_of_hot_ones_is_not_invented() -> None:
    assert cells("Where the time goes")["ostinato"] == ("2.00 s", "400 ms")
    counted = [replace(turn, prefill_hot_routes=3, prefill_routes=4) for turn in TURNS if turn.setting == "ostinato"]
    (found,) = [
        item for item in tables(make_report(counted, None, [], {})) if item.title.startswith("Where the time goes")
    ]
    assert found.rows == (("ostinato", "2.00 s", "75.0%", "400 ms", "-"),)


def test_without_a_turn_after_a_tools_output_nothing_is_said_of_such_turns() -> None:
    asked = make_report([turn for turn in TURNS if turn.kind == "first"], "ostinato", [], {})
    assert not any("tool's output" in item.title for item in tables(asked))
    assert "tool's output" not in as_svg(plot(asked)).replace("&#x27;", "'")
    assert "tool's output" in as_svg(plot(REPORT)).replace("&#x27;", "'")
    assert plot(asked).height < plot(REPORT).height


def test_a_setting_alone_is_compared_with_nothing() -> None:
    alone = make_report([turn for turn in TURNS if turn.setting == "ostinato"], None, [], {})
    assert not any("saves" in item.title for item in tables(alone))


def test_the_first_setting_is_the_base_where_ostinato_could_not_run() -> None:
    stock_only = [turn for turn in TURNS if turn.setting != "ostinato"]
    assert make_report(stock_only, "ostinato", [], {}).base == "stock <best>"


def test_the_report_is_json_with_the_conditions_that_numbers_depend_on() -> None:
    told = json.loads(json.dumps(REPORT.as_json()))
    assert (told["base"], told["notes"], told["facts"]) == ("ostinato", ["A note."], {"machine": "a machine"})
    assert told["versus"][0]["total"]["value"] == 2
    assert told["new_token_buckets"] == ["1-127", "128-255", "256-511", "512-1,023", "1,024+"]


def test_candidates_are_told_with_their_time_or_why_they_could_not_run() -> None:
    found = search_table(
        [
            {"setting": as_json(Setting("a", "stock", 3)), "total_ms": 1234.0, "reason": None},
            {"setting": as_json(Setting("b", "ostinato")), "total_ms": None, "reason": "out of memory"},
            {"setting": as_json(Setting("c", "stock", 3)), "total_ms": 2345.0, "reason": None},
        ],
        ["a", "b"],
    )
    assert found.rows == (("a", "3", "1.23 s", "chosen"), ("b", "-", "-", "out of memory"), ("c", "3", "2.35 s", ""))


def test_the_plot_is_an_svg_with_a_bar_for_each_value() -> None:
    svg = ElementTree.fromstring(as_svg(plot(REPORT)))
    texts = [item.text for item in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "stock <best>" in texts
    assert all(bucket_words(bucket) in texts for bucket in BUCKETS)
    bars = [item for item in svg.iter("{http://www.w3.org/2000/svg}rect") if item.get("fill") == "#d9822b"]
    # Two sessions, one bucket with a value, one entry of the legend.
    assert len(bars) == 4
    heights = {
        name: [float(item.get("height", 0)) for item in svg.iter() if item.get("fill") == name]
        for name in ("#1b6ca8", "#d9822b")
    }
    assert heights["#d9822b"][0] == 2 * heights["#1b6ca8"][0]


def test_the_image_shows_the_same_bars_and_words() -> None:
    drawing = plot(REPORT)
    image = Image.open(io.BytesIO(as_png(drawing))).convert("RGB")
    assert image.size == (2 * drawing.width, 2 * drawing.height)
    counts = {colour: count for count, colour in image.getcolors(1 << 24) or []}
    bars = {name: counts[tuple(bytes.fromhex(name[1:]))] for name in ("#1b6ca8", "#d9822b")}
    # Twice as high, but for the legend.
    legend = 24 * 24
    assert 1.9 < (bars["#d9822b"] - legend) / (bars["#1b6ca8"] - legend) < 2.1
    assert counts[0, 0, 0] > 1000
