from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from ostinatod.sessions.tracker import SessionTracker, Turn

KEY = b"k" * 32
MODEL = "ab" * 32
SYSTEM = {"role": "system", "content": "You are an agent."}
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def call(number: int) -> dict[str, Any]:
    function = {"name": "read", "arguments": json.dumps({"line": number})}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": f"call-{number}", "function": function}]}


def output(number: int) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call-{number}", "content": f"line {number}"}


def chat(*messages: dict[str, Any], tools: Any = TOOLS, system: Any = SYSTEM, **fields: Any) -> dict[str, Any]:
    return {"messages": [system, *messages], "tools": tools, **fields}


FIRST = chat(user("Fix the bug"))
SECOND = chat(user("Fix the bug"), call(1), output(1))
THIRD = chat(user("Fix the bug"), call(1), output(1), {"role": "assistant", "content": "Done"}, user("Thanks, and?"))


@pytest.fixture
def tracker() -> SessionTracker:
    return SessionTracker(KEY, lambda model, session: 0)


def take(tracker: SessionTracker, request: dict[str, Any], session: str | None = None, model: str = MODEL) -> Turn:
    return tracker.identify(model, session, "header" if session else None, request)


# -- without an id ----------------------------------------------------------------------------------------------------


def test_a_conversation_that_grows_is_one_session_with_its_turns_counted(tracker: SessionTracker) -> None:
    turns = [take(tracker, request) for request in (FIRST, SECOND, THIRD)]
    assert len({turn.session for turn in turns}) == 1
    assert [turn.number for turn in turns] == [1, 2, 3]
    assert [turn.kind for turn in turns] == ["first", "after_tool", "after_user"]
    assert {turn.source for turn in turns} == {"prefix"}
    assert [turn.difference for turn in turns] == [None, None, None]


def test_a_greeting_that_all_conversations_begin_with_does_not_make_them_one(tracker: SessionTracker) -> None:
    greeting = {"role": "assistant", "content": "Hi! How can I help you today?"}
    one = chat(greeting, user("Where is my order?"))
    grown = chat(greeting, user("Where is my order?"), call(1), output(1))
    other = chat(greeting, user("I want my money back."))
    session = take(tracker, one).session
    assert session == take(tracker, grown).session != take(tracker, other).session
    # Gone back to the first question, after an answer that both share.
    edited = chat(greeting, user("Where is my order?"), call(1), user("Never mind."))
    assert take(tracker, edited).session == session


def test_conversations_that_begin_differently_are_different_sessions(tracker: SessionTracker) -> None:
    assert take(tracker, FIRST).session != take(tracker, chat(user("Write a test"))).session


def test_the_same_question_again_is_a_new_session_once_the_first_has_gone_on(tracker: SessionTracker) -> None:
    first = take(tracker, FIRST)
    take(tracker, SECOND)
    again = take(tracker, FIRST)
    assert again.session != first.session
    assert again.number == 1


def test_the_longest_shared_prefix_wins(tracker: SessionTracker) -> None:
    short = take(tracker, SECOND)
    fork = take(tracker, chat(user("Fix the bug"), call(1), output(1), user("Stop")))
    assert fork.session == short.session
    other = take(tracker, chat(user("Fix the bug"), call(2), output(2)))
    assert other.session != short.session
    long = take(tracker, chat(user("Fix the bug"), call(2), output(2), call(3), output(3)))
    assert long.session == other.session


def test_another_models_conversation_is_another_session(tracker: SessionTracker) -> None:
    assert take(tracker, FIRST).session != take(tracker, SECOND, model="cd" * 32).session


def test_another_agent_that_is_asked_the_same_is_another_session(tracker: SessionTracker) -> None:
    first = take(tracker, FIRST)
    other = take(tracker, chat(user("Fix the bug"), system={"role": "system", "content": "You review."}))
    assert first.session != other.session


def test_an_edited_conversation_stays_its_session_and_says_where_it_broke(tracker: SessionTracker) -> None:
    first = take(tracker, THIRD)
    edited = take(tracker, chat(user("Fix the bug"), call(1), output(7), user("Thanks, and?")))
    assert edited.session == first.session
    assert edited.difference is not None
    assert (edited.difference.reason, edited.difference.message) == ("message", 3)


def test_what_is_sent_anew_without_meaning_changes_nothing(tracker: SessionTracker) -> None:
    first = take(tracker, SECOND)
    resent = copy.deepcopy(THIRD)
    resent["messages"][0] = {"role": "system", "content": [{"type": "text", "text": SYSTEM["content"]}]}
    resent["messages"][1] = {"content": [{"type": "text", "text": "Fix the bug", "cache_control": {}}], "role": "user"}
    resent["messages"][2]["content"] = ""
    resent["messages"][2]["tool_calls"][0] = {
        "id": "other",
        "function": {"arguments": '{ "line" : 1 }', "name": "read"},
    }
    resent["messages"][3]["tool_call_id"] = "other"
    resent["tools"][0]["cache_control"] = {"type": "ephemeral"}
    second = take(tracker, resent)
    assert (second.session, second.number, second.difference) == (first.session, 2, None)


def test_the_billing_line_of_claude_code_changes_nothing(tracker: SessionTracker) -> None:
    def billed(request: dict[str, Any], number: int) -> dict[str, Any]:
        line = f"x-anthropic-billing-header: cc_version=2.1; cch={number};\nYou are an agent."
        return {**request, "messages": [{"role": "system", "content": line}, *request["messages"][1:]]}

    take(tracker, billed(FIRST, 1))
    assert take(tracker, billed(SECOND, 2)).difference is None


def test_completions_of_one_model_share_a_session_and_are_no_turns(tracker: SessionTracker) -> None:
    one, two = take(tracker, {"prompt": "def f("}), take(tracker, {"prompt": "class A"})
    assert one.session == two.session is not None
    assert (one.kind, one.number) == ("other", None)
    assert take(tracker, {"prompt": "def f("}, model="cd" * 32).session != one.session


def test_embeddings_belong_to_no_session(tracker: SessionTracker) -> None:
    turn = take(tracker, {"input": "text"})
    assert (turn.session, turn.kind) == (None, "other")


# -- with an id -------------------------------------------------------------------------------------------------------


def test_an_id_decides_whatever_the_messages(tracker: SessionTracker) -> None:
    assert take(tracker, FIRST, "s1").session == "s1"
    assert take(tracker, FIRST, "s2").session == "s2"
    turn = take(tracker, chat(user("Something else")), "s1")
    assert (turn.session, turn.number, turn.source) == ("s1", 2, "header")


def test_turns_go_on_where_an_earlier_run_ended() -> None:
    tracker = SessionTracker(KEY, lambda model, session: {"s1": 41}.get(session, 0))
    assert take(tracker, THIRD, "s1").number == 42
    assert take(tracker, chat(*THIRD["messages"][1:], user("More")), "s1").number == 43
    assert take(tracker, THIRD, "s2").number == 1


def test_a_retry_is_the_same_turn(tracker: SessionTracker) -> None:
    numbers = [take(tracker, request, "s").number for request in (FIRST, SECOND, SECOND, THIRD)]
    assert numbers == [1, 2, 2, 3]


def test_sub_agents_under_their_parents_id_break_nothing(tracker: SessionTracker) -> None:
    scout = {"role": "system", "content": "You search."}
    take(tracker, SECOND, "s")
    sub = take(tracker, chat(user("Find it"), system=scout), "s")
    sub_next = take(tracker, chat(user("Find it"), call(9), output(9), system=scout), "s")
    parent = take(tracker, THIRD, "s")
    assert [turn.difference for turn in (sub, sub_next, parent)] == [None, None, None]
    assert [turn.kind for turn in (sub, sub_next, parent)] == ["first", "after_tool", "after_user"]


def test_a_conversation_whose_beginning_was_rewritten_says_so(tracker: SessionTracker) -> None:
    take(tracker, THIRD, "s")
    compacted = take(tracker, chat(user("Summary of what was done"), call(5), output(5)), "s")
    assert compacted.difference is not None
    assert (compacted.difference.reason, compacted.difference.message) == ("message", 1)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (chat(*SECOND["messages"][1:], system={"role": "system", "content": "It is 12:01."}), "system"),
        (chat(*SECOND["messages"][1:], tools=[*TOOLS, *TOOLS]), "tools"),
        (chat(*SECOND["messages"][1:], reasoning_effort="low"), "template"),
        (chat(*SECOND["messages"][1:], tool_choice="none"), "template"),
    ],
)
def test_what_changed_before_the_messages_is_named(
    tracker: SessionTracker, request_: dict[str, Any], reason: str
) -> None:
    take(tracker, FIRST, "s")
    turn = take(tracker, request_, "s")
    assert turn.difference is not None
    assert (turn.difference.reason, turn.difference.message) == (reason, None)


# -- side requests ----------------------------------------------------------------------------------------------------


def title(**fields: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    return {
        "messages": [{"role": "system", "content": "Name it."}, user("Fix the bug")],
        "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
        **fields,
    }


@pytest.mark.parametrize("session", [None, "s"])
def test_a_side_request_does_not_touch_the_session_it_interrupts(tracker: SessionTracker, session: str | None) -> None:
    first = take(tracker, FIRST, session)
    side = take(tracker, title(), session)
    second = take(tracker, SECOND, session)
    assert (side.kind, side.session, side.number) == ("side", session, None)
    assert (second.session, second.number, second.difference) == (first.session, 2, None)


def test_a_request_without_tools_beside_a_session_with_them_is_a_side_request(tracker: SessionTracker) -> None:
    take(tracker, FIRST, "s")
    aside = {"messages": [{"role": "system", "content": "Is this a topic?"}, user("Fix the bug, please")]}
    assert take(tracker, aside, "s").kind == "side"
    assert take(tracker, aside, "unknown").kind == "first"
    assert take(tracker, chat(*SECOND["messages"][1:], tools=None), "s").kind == "after_tool"


# -- what it cost -----------------------------------------------------------------------------------------------------


def test_a_break_is_told_with_the_tokens_that_were_read_again(tracker: SessionTracker) -> None:
    assert tracker.settle(take(tracker, FIRST, "s"), 5000, 0) is None
    assert tracker.settle(take(tracker, SECOND, "s"), 5100, 5000) is None
    broken = take(tracker, chat(*THIRD["messages"][1:], tools=[]), "s")
    found = tracker.settle(broken, 5200, 40)
    assert found is not None
    assert (found.reason, found.lost_tokens, found.detail) == ("tools", 5060, "the tools changed")


def test_the_tokens_of_a_prompt_may_become_known_after_the_next_has_arrived(tracker: SessionTracker) -> None:
    first = take(tracker, FIRST, "s")
    broken = take(tracker, chat(*SECOND["messages"][1:], tools=[]), "s")
    tracker.settle(first, 5000, 0)
    found = tracker.settle(broken, 5200, 40)
    assert found is not None
    assert found.lost_tokens == 4960


def test_after_a_request_that_told_nothing_a_break_has_no_cost(tracker: SessionTracker) -> None:
    tracker.settle(take(tracker, FIRST, "s"), 5000, 0)
    tracker.settle(take(tracker, SECOND, "s"), None, None)
    found = tracker.settle(take(tracker, chat(*THIRD["messages"][1:], tools=[]), "s"), 5200, 40)
    assert found is not None
    assert (found.reason, found.lost_tokens) == ("tools", None)


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_the_least_recently_used_sessions_are_forgotten() -> None:
    tracker = SessionTracker(KEY, lambda model, session: 0, max_sessions=2)
    for session in ("a", "b", "a", "c"):
        take(tracker, FIRST, session)
    assert len(tracker) == 2
    assert take(tracker, SECOND, "a").number == 2
    assert take(tracker, SECOND, "b").number == 1


def test_long_conversations_push_out_others() -> None:
    tracker = SessionTracker(KEY, lambda model, session: 0, max_parts=10)
    take(tracker, FIRST, "a")
    take(tracker, chat(*(user(str(number)) for number in range(10))), "b")
    assert len(tracker) == 1


def test_of_many_threads_in_one_session_the_latest_eight_are_remembered(tracker: SessionTracker) -> None:
    for number in range(10):
        take(tracker, chat(user(str(number))), "s")
    assert take(tracker, chat(user("2"), call(1), output(1)), "s").difference is None
    # Not known any more, so taken for a rewritten conversation.
    assert take(tracker, chat(user("1"), call(1), output(1)), "s").difference is not None


@pytest.mark.parametrize(
    "messages",
    [[], [None], ["text"], [{}], [{"role": 3}], [{"role": "user", "content": [{"type": "text"}, 1]}], [[1, 2]]],
)
def test_messages_of_any_shape_are_survived(tracker: SessionTracker, messages: list[Any]) -> None:
    assert take(tracker, {"messages": messages}, "s").session == "s"
