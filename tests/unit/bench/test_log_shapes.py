from __future__ import annotations

from typing import Any

from ostinatod.bench.log_shapes import shapes_of
from ostinatod.routing_log.records import LoggedRequest


def request(session: str | None, **values: Any) -> LoggedRequest:
    own: dict[str, Any] = dict.fromkeys(LoggedRequest.__dataclass_fields__)
    known = {"session": session, "kind": "after_tool", "status": "ok"}
    lengths = {"new_tokens": 30, "reused_tokens": 100, "output_tokens": 7}
    return LoggedRequest(**{**own, **known, **lengths, **values})


def test_a_session_is_its_turns_in_order_though_the_log_tells_the_newest_first() -> None:
    newest_first = [
        request("a", new_tokens=3, reused_tokens=140),
        request("b", kind="first", new_tokens=900, reused_tokens=0),
        request("a", kind="first", new_tokens=120, reused_tokens=0, output_tokens=20),
    ]
    assert shapes_of(newest_first) == [
        {"id": "a", "turns": [("first", 0, 120, 20), ("after_tool", 140, 3, 7)]},
        {"id": "b", "turns": [("first", 0, 900, 7)]},
    ]


def test_what_nobody_waited_for_or_is_not_known_is_left_out() -> None:
    left_out = [
        request(None),
        request("a", kind="side"),
        request("a", status="cancelled"),
        request("a", new_tokens=None),
        request("a", output_tokens=0),
    ]
    assert shapes_of(left_out) == []
