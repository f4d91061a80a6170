from __future__ import annotations

from typing import Any

import pytest

from ostinatod.sessions.conversation import Conversation, read_conversation
from ostinatod.sessions.prefix_break import Difference, PrefixBreak, break_detail, first_difference, judge_break

KEY = b"k"


def conversation(*texts: str, system: str = "s" * 78, **fields: Any) -> Conversation:
    messages = [{"role": "system", "content": system}, *({"role": "user", "content": text} for text in texts)]
    return read_conversation({"messages": messages, **fields}, KEY)


def test_a_continued_prompt_does_not_differ() -> None:
    assert first_difference(conversation("a"), conversation("a")) is None
    assert first_difference(conversation("a"), conversation("a", "b")) is None


def test_a_shortened_prompt_differs_where_it_ends() -> None:
    found = first_difference(conversation("a", "b"), conversation("a"))
    assert found is not None
    assert (found.reason, found.message) == ("message", 2)


def test_the_kept_share_is_measured_by_size() -> None:
    previous = conversation("a" * 100, "b" * 100, system="")
    found = first_difference(previous, conversation("a" * 100, "c" * 100, system=""))
    assert found is not None
    # Two messages of one length beside an empty system message.
    assert found.kept == pytest.approx(0.5, abs=0.1)


def test_the_first_difference_in_the_order_of_rendering_is_told() -> None:
    previous = conversation("a", tools=[{"name": "t"}])
    assert first_difference(previous, conversation("b", system="x", tools=[])) == Difference("system", None, 0.0)
    found = first_difference(previous, conversation("b", tools=[]))
    assert found is not None
    assert found.reason == "tools"


MESSAGE = Difference("message", 3, 0.25)


@pytest.mark.parametrize(
    ("difference", "previous", "reused", "expected"),
    [
        # Nothing differs, everything was reused: 5000 of 5000, or all but how the prompt's end is rendered.
        (None, 5000, 5000, None),
        (None, 5000, 4990, None),
        # What differs is not rendered.
        (MESSAGE, 5000, 5000, None),
        (MESSAGE, 5000, 1200, PrefixBreak("message", 3, 3800)),
        # Without the engine's numbers: three quarters come after the difference.
        (MESSAGE, 5000, None, PrefixBreak("message", 3, 3750)),
        (MESSAGE, None, 1200, PrefixBreak("message", 3, None)),
        (None, 5000, None, None),
        (None, None, 0, None),
        # The same messages, but not the same tokens, or no tokens any more.
        (None, 5000, 3000, PrefixBreak("rendering", None, 2000)),
        (None, 5000, 0, PrefixBreak("evicted", None, 5000)),
    ],
)
def test_a_break_is_judged_by_what_the_engine_reused(
    difference: Difference | None, previous: int | None, reused: int | None, expected: PrefixBreak | None
) -> None:
    assert judge_break(difference, previous, reused) == expected


def test_every_reason_has_a_sentence() -> None:
    for reason in ("template", "system", "tools", "message", "rendering", "evicted"):
        assert break_detail(reason, None)
    assert break_detail("message", 2) == "message 2 of the previous prompt changed"
    assert break_detail("unknown", None) == ""
