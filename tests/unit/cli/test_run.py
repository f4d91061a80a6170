from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fakes.daemon import FakeDaemon, finish, reasoning, text
from tests.unit.cli.conftest import Invoke

ANSWER_KEYS = ["model", "text", "reasoning", "finish_reason", "usage", "timings"]
USAGE_KEYS = ["prompt_tokens", "completion_tokens", "cached_tokens"]
TIMINGS_KEYS = [
    "total_ms",
    "load_ms",
    "ttft_ms",
    "new_tokens",
    "reused_tokens",
    "prompt_tokens_per_s",
    "output_tokens",
    "tpot_ms",
]


def test_an_answer_goes_to_stdout_with_a_newline_and_nothing_else(invoke: Invoke) -> None:
    result = invoke("run", "tiny", "hi")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Hello there\n", "")


@pytest.mark.parametrize(
    ("arguments", "stdin", "asked"),
    [
        (("question",), "", "question"),
        ((), "document\n", "document"),
        (("question",), "document\n\n", "document\n\nquestion"),
        (("question",), "  \n", "question"),
    ],
)
def test_prompt_and_stdin_are_joined_with_stdin_first(
    invoke: Invoke, daemon: FakeDaemon, arguments: tuple[str, ...], stdin: str, asked: str
) -> None:
    assert invoke("run", "tiny", *arguments, stdin=stdin).exit_code == 0
    assert daemon.asked("/v1/chat/completions")[0]["messages"] == [{"role": "user", "content": asked}]


def test_no_prompt_at_all_is_wrong_usage_before_anything_is_loaded(invoke: Invoke, daemon: FakeDaemon) -> None:
    assert invoke("run", "tiny").exit_code == 2
    assert daemon.requests == []


def test_an_empty_prompt_only_loads(invoke: Invoke, daemon: FakeDaemon) -> None:
    result = invoke("run", "tiny", "", "--keepalive", "forever")
    assert (result.exit_code, result.stdout) == (0, "")
    assert daemon.asked("/ostinato/load") == [{"model": "tiny", "keep_alive": -1.0}]
    assert daemon.asked("/v1/chat/completions") == []


def test_options_reach_the_request(invoke: Invoke, daemon: FakeDaemon) -> None:
    options = ("--system", "Be brief.", "--temperature", "0", "--seed", "7", "--max-tokens", "5", "--format", "json")
    invoke("run", "tiny", "hi", *options)
    body = daemon.asked("/v1/chat/completions")[0]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["seed"], body["max_tokens"]) == (0.0, 7, 5)
    assert body["response_format"] == {"type": "json_object"}


def test_reasoning_is_shown_apart_from_the_answer(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.answer = (reasoning("let me "), reasoning("think"), text("42"), *finish())
    result = invoke("run", "tiny", "hi")
    assert (result.stdout, result.stderr) == ("42\n", "let me think\n\n")


def test_a_pipe_gets_the_text_of_the_model_unchanged(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.answer = (text("\x1b[31mred\x1b[0m\r\n"), *finish())
    assert invoke("run", "tiny", "hi").stdout_bytes == b"\x1b[31mred\x1b[0m\r\n\n"


def test_json_holds_the_text_the_usage_and_the_timings(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.answer = (reasoning("hm"), text("4"), text("2"), *finish())
    result = invoke("run", "tiny", "hi", "--json")
    answer = json.loads(result.stdout)
    assert result.stderr == ""
    assert list(answer) == ANSWER_KEYS
    assert list(answer["usage"]) == USAGE_KEYS
    assert list(answer["timings"]) == TIMINGS_KEYS
    assert (answer["model"], answer["text"], answer["reasoning"], answer["finish_reason"]) == (
        "tiny",
        "42",
        "hm",
        "stop",
    )
    assert answer["usage"] == {"prompt_tokens": 100, "completion_tokens": 20, "cached_tokens": 60}
    # 40 tokens in 200 ms are 200 a second; 20 tokens in 160 ms are 8 ms each.
    timings = answer["timings"]
    assert (timings["new_tokens"], timings["reused_tokens"]) == (40, 60)
    assert (timings["prompt_tokens_per_s"], timings["output_tokens"], timings["tpot_ms"]) == (200.0, 20, 8.0)
    assert 0 < timings["ttft_ms"] <= timings["total_ms"]


def test_timings_come_from_the_usage_where_the_engine_tells_none(invoke: Invoke, daemon: FakeDaemon) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    daemon.answer = (text("a"), finish()[0], {"choices": [], "usage": usage})
    timings = json.loads(invoke("run", "tiny", "hi", "--json").stdout)["timings"]
    assert (timings["new_tokens"], timings["reused_tokens"], timings["output_tokens"]) == (6, 4, 2)
    assert timings["prompt_tokens_per_s"] is None


def test_verbose_prints_the_timings_on_stderr(invoke: Invoke) -> None:
    result = invoke("run", "tiny", "hi", "--verbose")
    assert result.stdout == "Hello there\n"
    lines = dict(line.split("    ", 1) for line in result.stderr.splitlines())
    assert [key.strip() for key in lines] == [
        "total",
        "load",
        "prompt",
        "prompt rate",
        "time to first token",
        "output",
        "time per output token",
    ]
    assert "40 new tokens, 60 reused" in result.stderr
    assert "8.0 ms (125.0 tokens/s)" in result.stderr


def test_an_answer_cut_at_its_limit_is_told(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.answer = (text("a"), *finish("length"))
    assert "cut at the limit" in invoke("run", "tiny", "hi").stderr


def test_an_error_in_the_middle_keeps_what_came_and_fails(invoke: Invoke, daemon: FakeDaemon) -> None:
    overflow = {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}
    daemon.answer = (text("partial"), {"error": overflow})
    result = invoke("run", "tiny", "hi")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "partial\n", "Error: too long\n")


def test_a_reference_that_is_missing_is_pulled_first(invoke: Invoke, daemon: FakeDaemon) -> None:
    result = invoke("run", "org/repo:Q4", "hi")
    assert (result.exit_code, result.stdout) == (0, "Hello there\n")
    assert result.stderr.splitlines()[0] == "org/repo:Q4 is not on this machine; pulling it"
    assert [path for _, path, _ in daemon.requests] == [
        "/health",
        "/api/show",
        "/api/pull",
        "/ostinato/load",
        "/v1/chat/completions",
    ]


def test_a_plain_name_that_is_missing_is_not_found(invoke: Invoke, daemon: FakeDaemon) -> None:
    assert invoke("run", "missing", "hi").exit_code == 4
    assert daemon.asked("/api/pull") == []


def test_a_path_is_registered_and_run_by_its_name(invoke: Invoke, daemon: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    assert invoke("run", str(tmp_path / "m.gguf"), "hi").exit_code == 0
    assert daemon.asked("/v1/chat/completions")[0]["model"] == "local"


def test_a_present_model_is_not_pulled(invoke: Invoke, daemon: FakeDaemon) -> None:
    invoke("run", "tiny", "hi")
    assert daemon.asked("/api/pull") == []
