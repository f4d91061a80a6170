from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ostinatod.client_streams import SseParser, ndjson_lines, sse_data

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """`data` in pieces, at positions taken modulo its length."""
    positions = sorted({position % (len(data) + 1) for position in at} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(positions)]


@given(
    st.lists(TEXTS),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from(["", ": keepalive{0}{0}", "event: x{0}id: 7{0}retry: 1{0}{0}"]),
    st.lists(st.integers(0, 2000)),
)
def test_events_are_the_same_wherever_the_stream_is_cut(texts: list[str], end: str, noise: str, at: list[int]) -> None:
    payloads = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    stream = "".join(noise.format(end) + f"data: {payload}{end}{end}" for payload in payloads).encode()
    parser = SseParser()
    assert [data for chunk in cut(stream, at) for data in parser.feed(chunk)] == payloads


@given(st.lists(TEXTS), st.lists(st.integers(0, 2000)))
def test_lines_of_json_are_the_same_wherever_the_stream_is_cut(texts: list[str], at: list[int]) -> None:
    lines = [json.dumps(text, ensure_ascii=False) for text in texts]
    assert list(ndjson_lines(cut("\n".join(lines).encode(), at))) == lines


def test_a_line_separator_inside_a_string_ends_no_line() -> None:
    assert list(ndjson_lines(['{"a": "x\u2028y"}\n'.encode()])) == ['{"a": "x\u2028y"}']
    assert list(sse_data(["data: x\u2028y\x0bz\n\n".encode()])) == ["x\u2028y\x0bz"]


def test_data_of_several_lines_is_one_event() -> None:
    assert list(sse_data([b"data: a\ndata:b\ndata:  c\n\n"])) == ["a\nb\n c"]


def test_a_byte_order_mark_before_the_first_event_is_ignored() -> None:
    assert list(sse_data([b"\xef\xbb\xbfdata: a\n\n"])) == ["a"]


def test_nothing_after_done_is_read() -> None:
    assert list(sse_data([b"data: a\n\ndata: [DONE]\n\ndata: b\n\n"])) == ["a", "[DONE]"]


def test_an_event_that_the_stream_does_not_complete_is_dropped() -> None:
    assert list(sse_data([b"data: a\n\ndata: b\n"])) == ["a"]
