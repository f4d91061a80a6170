from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ostinatod.cli.conversation import Conversation
from ostinatod.cli.repl import Repl, terminal_reader
from ostinatod.client import DaemonClient
from tests.fakes.daemon import FakeDaemon, finish, listing, text

CTRL_C = KeyboardInterrupt


class Keyboard:
    """Types lines, then Ctrl-D."""

    def __init__(self, *lines: str | type[BaseException]) -> None:
        self._lines = iter(lines)
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        line = next(self._lines, EOFError)
        if isinstance(line, str):
            return line
        raise line


@pytest.fixture
def client(daemon: FakeDaemon) -> Iterator[DaemonClient]:
    with DaemonClient(daemon.url) as opened:
        yield opened


def talk(client: DaemonClient, *lines: str | type[BaseException]) -> tuple[Conversation, Keyboard]:
    conversation, keyboard = Conversation("tiny"), Keyboard(*lines)
    Repl(client, conversation, keyboard).talk()
    return conversation, keyboard


def test_each_turn_is_asked_after_the_ones_before_in_one_session(client: DaemonClient, daemon: FakeDaemon) -> None:
    talk(client, "one", "", "two", "/bye", "never")
    first, second = daemon.asked("/v1/chat/completions")
    assert [message["content"] for message in first["messages"]] == ["one"]
    assert [message["content"] for message in second["messages"]] == ["one", "Hello there", "two"]
    assert len({headers["x-session-id"] for headers in daemon.headers if "x-session-id" in headers}) == 1


def test_settings_hold_for_the_answers_that_follow(client: DaemonClient, daemon: FakeDaemon) -> None:
    talk(
        client,
        "/set system Be brief.",
        "/set parameter temperature 0.2",
        "/set parameter num_predict 9",
        "/set parameter seed 3",
        "hi",
    )
    body = daemon.asked("/v1/chat/completions")[0]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0.2, 9, 3)


def test_an_empty_system_prompt_removes_it(client: DaemonClient, daemon: FakeDaemon) -> None:
    talk(client, "/set system Be brief.", "/set system", "hi")
    assert [message["role"] for message in daemon.asked("/v1/chat/completions")[0]["messages"]] == ["user"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("/set parameter top_p 2", "expected top_p between 0 and 1, found '2'"),
        ("/set parameter seed x", "expected seed between"),
        ("/set parameter mood good", "unknown parameter 'mood'"),
        ("/set parameter temperature nan", "expected temperature between"),
        ("/set nonsense", "expected /set system TEXT"),
        ("/load", "expected /load MODEL"),
        ("/nonsense", "unknown command /nonsense"),
        ("/load missing", "not found"),
    ],
)
def test_a_wrong_command_is_told_and_the_conversation_goes_on(
    client: DaemonClient, daemon: FakeDaemon, capsys: pytest.CaptureFixture[str], line: str, complaint: str
) -> None:
    if "missing" in line:
        daemon.errors["/ostinato/load"] = (404, {"error": "model 'missing' not found", "kind": "model_not_found"})
    conversation, _ = talk(client, line, "hi")
    assert complaint in capsys.readouterr().err
    assert len(conversation.turns) == 2


def test_quotes_hold_a_prompt_of_several_lines(client: DaemonClient, daemon: FakeDaemon) -> None:
    _, keyboard = talk(client, '"""one', "", "  two", 'three"""', '"""same line"""', '/set system """a', 'b"""', "hi")
    prompts = [body["messages"][-1]["content"] for body in daemon.asked("/v1/chat/completions")]
    assert prompts == ["one\n\n  two\nthree", "same line", "hi"]
    assert keyboard.prompts == [">>> ", *["... "] * 3, ">>> ", ">>> ", "... ", ">>> ", ">>> "]
    assert daemon.asked("/v1/chat/completions")[-1]["messages"][0]["content"] == "a\nb"


def test_a_failed_turn_is_forgotten(
    client: DaemonClient, daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.answer = (text("part"), {"error": {"message": "gone", "type": "x", "code": "engine_died"}})
    conversation, _ = talk(client, "hi")
    assert conversation.turns == []
    assert "Error: gone" in capsys.readouterr().err


def test_an_interrupt_at_the_prompt_says_how_to_leave(client: DaemonClient, capsys: pytest.CaptureFixture[str]) -> None:
    talk(client, CTRL_C)
    assert "Ctrl-D or /bye" in capsys.readouterr().err


def test_clear_and_load_begin_a_new_session(client: DaemonClient, daemon: FakeDaemon) -> None:
    conversation, _ = talk(client, "one", "/clear", "two", "/load other", "three")
    assert [len(body["messages"]) for body in daemon.asked("/v1/chat/completions")] == [1, 1, 1]
    assert daemon.asked("/v1/chat/completions")[-1]["model"] == conversation.model == "other"
    assert len({headers["x-session-id"] for headers in daemon.headers if "x-session-id" in headers}) == 3


def test_show_list_help_and_verbose_print_what_they_say(
    client: DaemonClient, daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.models["evil\x1b[31m"] = listing("evil\x1b[31m")
    talk(client, "/set parameter seed 3", "/show", "/list", "/?", "/verbose", "hi")
    shown = capsys.readouterr()
    assert "  Conversation" in shown.out
    assert "seed          3" in shown.out
    assert "NAME" in shown.out
    assert "/set parameter NAME VALUE" in shown.out
    assert "\x1b" not in shown.out
    assert "time to first token" in shown.err


def test_a_history_that_cannot_be_kept_is_told_and_does_without(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.touch()
    terminal_reader()
    assert "not kept for the next time" in capsys.readouterr().err


def test_reasoning_is_no_part_of_the_conversation(client: DaemonClient, daemon: FakeDaemon) -> None:
    daemon.answer = (
        {"choices": [{"delta": {"reasoning_content": "hm"}}]},
        text("a"),
        *finish(),
    )
    conversation, _ = talk(client, "hi")
    assert conversation.turns[1] == {"role": "assistant", "content": "a"}
