from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ostinatod.bench.traces import SAMPLE, choose, choose_timed, read_traces, render_plainly, task_of, text_turns
from ostinatod.errors import RequestError


def session(task: str, run: int = 0, domain: str = "swe") -> dict[str, Any]:
    messages = [
        {"role": "system", "content": "You help."},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Fix it."},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "run", "arguments": "{}"}}]},
        {"role": "tool", "content": "42 lines"},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Thanks."},
        {"role": "assistant", "content": "Bye."},
    ]
    return {"id": f"{task}-{run}", "task_domain": domain, "messages": messages, "meta": {"task_id": task}}


def test_a_fixed_greeting_is_no_turn_and_kinds_follow_who_spoke_last() -> None:
    turns = list(text_turns(session("a"), render_plainly))
    assert [turn.kind for turn in turns] == ["first", "after_tool", "after_user"]
    assert turns[1].answer == "Done.<|im_end|>"


def test_each_prompt_continues_what_was_said() -> None:
    first, second, third = text_turns(session("a"), render_plainly)
    assert second.prompt.startswith(first.prompt + first.answer)
    assert third.prompt.startswith(second.prompt + second.answer)
    assert "run" in first.answer


def test_an_answer_that_a_template_rewrites_is_its_own_words() -> None:
    def forgetful(recorded: Any, messages: Any, is_open: bool) -> str:
        return f"{len(messages)} messages, open: {is_open}"

    assert [turn.answer for turn in text_turns(session("a"), forgetful)][1:] == ["Done.", "Bye."]


def test_no_task_stands_on_both_sides_however_often_it_was_recorded() -> None:
    recorded = [session(task, run) for task in "abcdef" for run in range(3)]
    chosen = choose(recorded, 4, 2)
    parts = {part: {task_of(item) for of, item in chosen if of == part} for part in ("development", "held-out")}
    assert (len(parts["development"]), len(parts["held-out"])) == (4, 2)
    assert not parts["development"] & parts["held-out"]
    assert chosen == choose(recorded[::-1], 4, 2)


def test_domains_take_turns_in_both_parts() -> None:
    recorded = [session(f"{domain}{n}", domain=domain) for domain in ("swe", "retail") for n in range(4)]
    for part in ("development", "held-out"):
        domains = [item["task_domain"] for of, item in choose(recorded, 2, 2) if of == part]
        assert sorted(domains) == ["retail", "swe"]


def test_one_session_is_left_to_learn_from() -> None:
    chosen = choose([session("a"), session("b")], 5, 5)
    assert [part for part, _ in chosen] == ["development", "held-out"]


def test_sessions_in_which_no_model_answers_are_left_out_and_refused_where_there_are_no_others(tmp_path: Path) -> None:
    greeted = {"id": "g", "messages": [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Hi."}]}
    file = tmp_path / "trace.jsonl"
    file.write_text(json.dumps(greeted) + "\n" + json.dumps(session("a")) + "\n")
    assert [item["id"] for item in read_traces(file)] == ["a-0"]
    file.write_text(json.dumps(greeted) + "\n")
    with pytest.raises(RequestError, match="no session in which a model answers a user"):
        read_traces(file)


def test_servers_are_timed_on_as_many_sessions_as_there_are() -> None:
    assert len(choose_timed([session("a")], 3)) == 1
    parts = [{**session(task), "part": part} for task, part in (("a", "development"), ("b", "held-out"))]
    assert [item["id"] for item in choose_timed(parts, 3)] == ["b-0"]
    recorded = [session(task, run) for task in "abcdef" for run in range(3)]
    # The same ones as in this process.
    assert choose_timed(recorded, 2) == [item for part, item in choose(recorded, 4, 2) if part == "held-out"]


def test_one_task_is_not_enough() -> None:
    with pytest.raises(RequestError, match="at least two tasks, found 1"):
        choose([session("a"), session("a", 1)], 1, 1)


def test_sessions_that_name_their_part_must_name_both() -> None:
    with pytest.raises(RequestError, match="no held-out one"):
        choose([{**session("a"), "part": "development"}, {**session("b"), "part": "development"}], 1, 1)


@pytest.mark.parametrize("packed", [False, True])
def test_lines_and_single_sessions_are_read_packed_or_not(tmp_path: Path, packed: bool) -> None:
    lines = "".join(json.dumps(session(task)) + "\n" for task in "ab").encode()
    single = json.dumps(session("a"), indent=1).encode()
    for raw, count in ((lines, 2), (single, 1)):
        (tmp_path / "trace").write_bytes(gzip.compress(raw) if packed else raw)
        assert len(read_traces(tmp_path / "trace")) == count


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"{", "not a trace"), (b"\x1f\x8bx", "not a trace"), (b'{"id": 1}', "'messages'"), (b"", "no session")],
)
def test_what_is_no_trace_is_refused_with_its_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "trace").write_bytes(content)
    with pytest.raises(RequestError, match=reason):
        read_traces(tmp_path / "trace")


def test_the_bundled_sessions_divide_into_two_parts_of_different_tasks() -> None:
    sample = read_traces(SAMPLE)
    chosen = choose(sample, 6, 6)
    tasks = {part: {(item["task_domain"], task_of(item)) for of, item in chosen if of == part} for part, _ in chosen}
    assert {part: len(found) for part, found in tasks.items()} == {"development": 6, "held-out": 6}
    assert not tasks["development"] & tasks["held-out"]
    assert {item["license"] for item in sample} == {"MIT"}
    assert choose(sample, 1, 3)[1:] == [item for item in chosen if item[0] == "held-out"][:3]
