"""What is said about the last answer, about how uneven routing is, and about memory; and that it can be read."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import pytest
from rich.color import Color

from ostinatod.client_dashboard_reading import daemon_state, requests_of, residency_of
from ostinatod.client_dashboard_values import Reading, Routes, Unavailable
from ostinatod.tui.host import HostMeter
from ostinatod.tui.palette import Palette, palettes
from ostinatod.tui.view.answer import answer_lines, parts_of_answer
from ostinatod.tui.view.experts import Experts, join
from ostinatod.tui.view.keys import PRESETS, key_bar
from ostinatod.tui.view.lines import Line, width_of
from ostinatod.tui.view.memory import memory_lines, parts_of
from ostinatod.tui.view.skew import LEAST, skew_lines
from ostinatod.tui.view.state import Link, View
from ostinatod.tui.view.symbols import ASCII, UNICODE, USES
from tests.fakes import dashboard_states as states

GIB = 1024**3


def texts(lines: list[Line]) -> list[str]:
    return ["".join(part.text for part in entry).rstrip() for entry in lines]


def view_of(*models: dict[str, Any], requests: tuple[dict[str, Any], ...] = ()) -> View:
    daemon = daemon_state(states.status(*models))
    read = requests_of({"requests": list(requests)})
    link = Link("http://127.0.0.1:11435", "up")
    focus = daemon.models[0].name if daemon.models else None
    return View(link, ASCII, states.NOW, Reading(states.NOW, daemon, requests=read), focus=focus)


def told(**request: Any) -> list[str]:
    times = {"queue_ms": 2.0, "ttft_ms": 1_002.0, "total_ms": 3_002.0, "new_tokens": 640, "output_tokens": 100}
    newest = states.request(1, **{**times, "tpot_ms": 20.0, "cold_routes": 10, "routes": 80, **request})
    view = view_of(states.model(states.MODEL), requests=(newest, states.request(2)))
    return texts(answer_lines(view, 78, 3))


def test_an_answer_is_explained_by_what_took_most_of_it() -> None:
    # 2 ms of waiting cannot be felt; 1 s to the first token, 2 s for 100 tokens; 10 of 80 routes are cold.
    assert told() == [
        f"last answer {'r' * 20}{'#' * 40} 3.0 s",
        "57 s ago    r read 1.0 s  # wrote 2.0 s  640 new, 27.5k reused tokens",
        "            mostly writing 100 tokens, 20 ms each; 12.5 % of routes cold",
    ]


def test_a_prefix_that_broke_is_named_as_the_cause() -> None:
    broke = {"reason": "tools", "detail": "", "lost_tokens": 26_400}
    assert told(ttft_ms=2_500.0, prefix_break=broke)[2].strip() == "tools changed: 26.4k tokens read again"
    assert told(ttft_ms=2_500.0)[2].strip() == "mostly reading 640 new tokens"
    assert told(ttft_ms=2_500.0, new_tokens=1)[2].strip() == "mostly reading 1 new token"
    # Where most of the time went elsewhere, the break is not the cause.
    assert "mostly writing" in told(prefix_break=broke)[2]


def test_waiting_for_others_is_named_as_the_cause() -> None:
    lines = told(queue_ms=900.0)
    assert ". waited 900 ms" in lines[1]
    assert lines[2].strip() == "waited for the requests before it"


def test_where_there_is_little_room_fewer_words_say_the_same() -> None:
    view = view_of(states.model(states.MODEL), requests=(states.request(1, output_tokens=211, tpot_ms=26.4),))
    assert texts(answer_lines(view, 36, 2))[1].strip() == "211 tokens, 26 ms each"
    assert all(width_of(entry) <= 36 for entry in answer_lines(view, 36, 3))


@pytest.mark.parametrize("unknown", [{"total_ms": None}, {"ttft_ms": None}, {"total_ms": 0.0}, {"total_ms": 5.0}])
def test_an_answer_whose_times_are_unknown_or_contradict_is_not_explained(unknown: dict[str, Any]) -> None:
    (request,) = requests_of({"requests": [states.request(1, **unknown)]})
    assert parts_of_answer(request) is None
    assert told(**unknown) == []


def experts(hot: list[int] | None) -> Experts:
    counts = np.array([[60, 20, 10, 10]])
    routes = Routes((3,), counts, np.zeros_like(counts))
    answer = {"generation": 1, "layers": [{"layer": 3, "experts": 4, "hot": hot or []}]}
    joined = join(routes, residency_of(answer) if hot is not None else Unavailable("none"))
    assert isinstance(joined, Experts)
    return joined


def test_the_curve_tells_what_as_many_hot_experts_could_take_at_most() -> None:
    # Experts 1 and 2 are hot and take 30 of 100 routes; the two busiest take 80.
    lines = texts(skew_lines(experts([1, 2]), "all", 100, 14, UNICODE))
    assert lines[1].strip() == (
        "50.0 % of the experts are hot and take 30.0 % of the routes; as many could take at most 80.0 %"
    )
    assert len(lines) <= 14
    assert lines[2].endswith("100 %")
    assert "busier half" in texts(skew_lines(experts(None), "all", 100, 14, UNICODE))[1]


def test_no_curve_is_drawn_without_room_or_routes() -> None:
    assert skew_lines(experts([1]), "all", 100, LEAST - 1, UNICODE) == []
    assert skew_lines(experts([1]), "decode", 100, 20, UNICODE) == []


def test_every_use_of_memory_that_the_engine_tells_has_a_place_and_a_sign_of_its_own() -> None:
    sizes = {"dense": 2, "kv": 1, "pool": 10, "borrowed": 3, "staging": 4, "compute": 1}
    device = states.device("CUDA0", 24, 2, **sizes)
    engine = {"memory": {"devices": [device], "host": {"weights_bytes": 70 * GIB}}}
    view = view_of(states.model("m", engine=engine))
    shown = "\n".join(texts(memory_lines(view, 60, 8)))
    for words in ("dense 2.0", "KV 1.0", "pool 10.0", "borrowed 3.0", "staging 4.0", "compute 1.0", "free 2.0"):
        assert words in shown
    assert len(set(ASCII.uses.values())) == len(USES)
    assert view.reading is not None
    assert view.reading.daemon.models[0].host_bytes == (("weights", 70 * GIB),)


@pytest.mark.parametrize("height", [4, 8])
def test_memory_of_a_few_mebibytes_is_not_shown_as_nothing(height: int) -> None:
    device = {**states.device("CUDA0", 140, 139), "pool_bytes": 14 * 1024**2, "staging_bytes": 2 * 1024**2}
    view = view_of(states.model("m", engine={"memory": {"devices": [device]}}))
    shown = "\n".join(texts(memory_lines(view, 60, height)))
    assert "0.014" in shown  # 14 / 1024
    assert "0.002" in shown


def test_an_engine_without_a_gpu_tells_its_host_memory_by_use() -> None:
    host = {"weights_bytes": 36 * 1024**2, "kv_bytes": 34 * 1024**2, "compute_bytes": 21 * 1024**2}
    view = view_of(states.model("m", engine={"memory": {"devices": [], "host": host}}))
    assert "  weights 36 MiB  KV 34 MiB  compute 21 MiB" in texts(memory_lines(view, 60, 8))


@pytest.mark.parametrize(("served_after_s", "is_here"), [(40.0, True), (3600.0, False)])
def test_a_daemon_that_took_long_to_serve_is_still_this_machines(served_after_s: float, is_here: bool) -> None:
    own = psutil.Process()
    now = own.create_time() + 4_000.0
    daemon = daemon_state({"pid": own.pid, "version": "1", "uptime_s": 4_000.0 - served_after_s})
    assert HostMeter().measure(daemon, now).is_daemons is is_here


def test_uses_of_which_there_is_nothing_are_left_out() -> None:
    device = states.device("CUDA0", 24, 10, dense=2, kv=1, pool=10, staging=0, compute=1)
    state = daemon_state(states.status(states.model("m", engine={"memory": {"devices": [device]}})))
    assert [use for use, _ in parts_of(state.models[0].devices[0])] == ["dense", "kv", "pool", "compute", "free"]


def test_with_little_room_the_largest_uses_are_named() -> None:
    devices = [states.device(f"CUDA{at}", 24, 2, dense=2, kv=1, pool=17, compute=1) for at in range(2)]
    shown = texts(memory_lines(view_of(states.model("m", engine={"memory": {"devices": devices}})), 35, 3))
    assert shown[2] == "all   P pool 34.0  D dense 4.0"


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_lowest_line_fits_and_always_names_the_help(preset: str, width: int) -> None:
    keys = (("arrows", "read a cell"), ("o", "order"), ("c", "phase"))
    entry = key_bar(preset, keys, width, UNICODE)
    text = "".join(part.text for part in entry)
    assert width_of(entry) == width
    assert "help" in text
    assert "read a cell" in text
    assert all(name in text for name in PRESETS)


@pytest.mark.parametrize("name", ["dark", "light"])
def test_text_can_be_told_from_its_background(name: str) -> None:
    # 4.5 to 1 is what WCAG 2.1 asks of text, 3 to 1 of what only accompanies it.
    palette = palettes()[name]
    for under in (palette.theme.background, palette.theme.surface):
        for role in ("text", "dim", "strong", "head", "accent", "brand", "good", "warn", "bad", "hot6"):
            assert contrast(palette, role, str(under)) >= 4.5, (role, under)
        assert contrast(palette, "faint", str(under)) >= 3, under
    key = palette.styles["key"]
    assert key.bgcolor is not None
    assert contrast(palette, "key", key.bgcolor.name) >= 4.5


def contrast(palette: Palette, role: str, under: str) -> float:
    """The ratio of WCAG 2.1."""
    colour = palette.styles[role].color
    assert colour is not None
    light, dark = sorted((luminance(colour), luminance(Color.parse(under))), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: Color) -> float:
    parts = (part / 255 for part in colour.get_truecolor())
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
