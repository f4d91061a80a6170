"""Prompts that were read before a model left memory are not read again after it has come back."""

from __future__ import annotations

import stat
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from ostinatod.config import Settings
from ostinatod.installer.engine_build import EngineBuild
from ostinatod.store import ModelStore
from tests.conftest import RunningApp, running_app
from tests.e2e.chat_models import make_chat_model
from tests.fakes.memory_store import MemoryStore

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

MIB = 1024**2
QUESTION = "Tell me about the order W3792453 and everything that is known about it. " * 20
LONG_QUESTION = QUESTION * 3
"""Longer than what the window of a tiny model keeps beside its batch."""
WITH_CHECKPOINTS = ("gpt-oss", "qwen3next")
"""A sliding window, and recurrent layers."""
NONCE = "quixotic-nonce-7391 "

Start = Callable[..., AbstractContextManager[RunningApp]]


@pytest.fixture
def start(engine_build: EngineBuild, tmp_path: Path) -> Start:
    """Starts the application with the bundled model, each time in the same folder."""
    record = ModelStore(tmp_path / "db", tmp_path / "hub", "http://127.0.0.1:9").resolve("tiny")

    def started(prompt_state_bytes: int = 64 * MIB, context_tokens: int = 8192) -> AbstractContextManager[RunningApp]:
        settings = Settings(threads=1, prompt_state_bytes=prompt_state_bytes, context_tokens=context_tokens)
        return running_app(tmp_path, engine_build, settings, MemoryStore(record))

    return started


def ask(app: RunningApp, *turns: str, model: str = "tiny") -> tuple[str, int, int]:
    """The answer, the tokens of the prompt, and how many of them were not read again."""
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": turn} for number, turn in enumerate(turns)]
    body = {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0}
    answer = app.http.post("/v1/chat/completions", json=body).raise_for_status().json()
    usage = answer["usage"]
    text = answer["choices"][0]["message"]["content"]
    return text, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def saved(folder: Path, suffix: str = "") -> list[Path]:
    return [path for path in (folder / "prompts").rglob(f"*{suffix}") if path.is_file()]


def test_the_turn_after_a_restart_reads_only_what_is_new_in_each_session(start: Start, tmp_path: Path) -> None:
    with start() as app:
        answers = {name: ask(app, name + QUESTION) for name in ("A: ", "B: ", f"{NONCE}: ")}
        assert not saved(tmp_path)
    assert len(saved(tmp_path, ".state")) == len(answers)
    assert {stat.S_IMODE(path.stat().st_mode) for path in saved(tmp_path)} == {0o600}
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.suffix != ".state":
            assert NONCE.strip().encode() not in path.read_bytes(), path

    with start() as app:
        for name, (text, n_prompt, _) in answers.items():
            # What was sampled is kept too: all of the first turn, and the answer but for its last token.
            assert ask(app, name + QUESTION, text, "And now?")[2] > n_prompt, name
        # What is in memory is not on disk.
        assert not saved(tmp_path)


def test_a_model_that_is_unloaded_finds_its_prompts_again(start: Start) -> None:
    with start() as app:
        text, n_prompt, _ = ask(app, QUESTION)
        for _ in range(2):  # the second time, what was restored has not been used
            assert app.http.post("/ostinato/unload", json={"model": "tiny"}).json()["was_loaded"]
            app.http.post("/ostinato/load", json={"model": "tiny"})
        assert ask(app, QUESTION, text, "And now?")[2] > n_prompt


@pytest.mark.parametrize("architecture", WITH_CHECKPOINTS)
def test_memory_that_cannot_be_rolled_back_goes_back_to_its_checkpoints_after_a_restart(
    architecture: str, engine_build: EngineBuild, tmp_path: Path
) -> None:
    model = make_chat_model(architecture, engine_build.library_directory, tmp_path / "m.gguf")
    record = ModelStore(tmp_path / "db", tmp_path / "hub", "http://127.0.0.1:9").add_file(model, "other")
    settings = Settings(threads=1, prompt_state_bytes=64 * MIB, context_tokens=8192)

    def second_turns(folder: Path, restarts: bool) -> list[tuple[str, int, int]]:
        """Turns that do not repeat what was sampled, of a prompt in the host cache and of one in a slot."""
        folder.mkdir()
        with ExitStack() as stack:
            app = stack.enter_context(running_app(folder, engine_build, settings, MemoryStore(record)))
            firsts = [ask(app, name + LONG_QUESTION, model="other") for name in "AB"]
            if restarts:
                stack.close()
                app = stack.enter_context(running_app(folder, engine_build, settings, MemoryStore(record)))
            turns = [ask(app, name + LONG_QUESTION, "I cannot say.", "And now?", model="other") for name in "AB"]
        for (_, n_first, _), (_, _, n_reused) in zip(firsts, turns, strict=True):
            assert n_first - 8 < n_reused < n_first
        return turns

    assert second_turns(tmp_path / "a", restarts=True) == second_turns(tmp_path / "b", restarts=False)


def test_what_cannot_be_used_is_ignored_out_loud(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start() as app:
        text, _, _ = ask(app, QUESTION)
    (state,) = saved(tmp_path, ".state")
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(content)
    with start() as app:
        assert ask(app, QUESTION, text, "And now?")[2] == 0
    assert "the file is damaged" in caplog.text
    with start(context_tokens=4096) as app:
        assert ask(app, QUESTION, text, "And now?")[2] == 0
    assert "its settings have changed since" in caplog.text


def test_no_more_is_kept_than_the_setting_allows_and_nothing_without_it(start: Start, tmp_path: Path) -> None:
    with start(prompt_state_bytes=3 * MIB) as app:  # some 1.7 MB each
        for name in ("A: ", "B: "):
            ask(app, name + QUESTION)
    assert len(saved(tmp_path, ".state")) == 1
    assert sum(path.stat().st_size for path in saved(tmp_path)) <= 3 * MIB
    with start(prompt_state_bytes=0) as app:
        assert not saved(tmp_path)
        ask(app, QUESTION)
    assert not saved(tmp_path)


def test_forgetting_deletes_what_is_saved_and_what_is_in_memory_is_not_saved(start: Start, tmp_path: Path) -> None:
    with start() as app:
        ask(app, QUESTION)
    assert saved(tmp_path)
    with start() as app:
        assert app.http.post("/ostinato/forget", json={"model": "tiny"}).is_success
        assert not saved(tmp_path)
        ask(app, QUESTION)
        assert app.http.post("/ostinato/forget", json={"session": "some-session"}).is_success
    assert not saved(tmp_path)
