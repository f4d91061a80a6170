"""Conversations that share a system prompt, side requests and sub-agents: whose turn it is reads only what is new.

Asked of the engine itself, with prompts of numbered tokens, and through the daemon, where agents ask. Where memory
cannot be rolled back, a turn reads again what lies behind the last checkpoint of its prompt.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinatod.api.recorder import HistoryFiles
from ostinatod.config import Settings
from ostinatod.installer.engine_build import EngineBuild
from ostinatod.store import ModelStore
from tests.conftest import RunningApp, eventually, running_app
from tests.e2e.chat_models import make_chat_model
from tests.e2e.workers.engine_server import EngineServer
from tests.fakes.memory_store import MemoryStore

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]

BEHIND_CHECKPOINT = 8
"""At most so many tokens lie between the last checkpoint of a prompt and its end."""
WITHOUT_CHECKPOINTS = "qwen3moe"
CHECKPOINTED = ("gpt-oss", "qwen3next", "deepseek4")
"""A sliding window, recurrent layers, compressed attention."""
FAST = (WITHOUT_CHECKPOINTS, "gpt-oss", "qwen3next")
MICRO_BATCH = 512
"""Where messages cannot be told apart, the last checkpoint but one lies so far before the end of a prompt."""


class Engine:
    """An engine with the daemon's flags that concern prompts, and tokens to make prompts of."""

    def __init__(self, server: EngineServer) -> None:
        self.server = server
        self._random = np.random.default_rng(7)

    def tokens(self, n: int) -> list[int]:
        """Others each time."""
        return [int(token) for token in self._random.integers(5, 120, n)]

    def ask(self, prompt: Sequence[int], n_predict: int = 2, *, reuse: bool = True) -> tuple[int, list[int]]:
        """How many tokens of a prompt a request reads, and what it answers."""
        body = {"prompt": list(prompt), "n_predict": n_predict, "temperature": 0, "ignore_eos": True}
        answer = self.server.post("/completion", {**body, "cache_prompt": reuse, "return_tokens": True})
        assert answer.status == 200, answer.body
        return int(answer.body["timings"]["prompt_n"]), answer.body["tokens"]

    def read(self, prompt: Sequence[int], n_predict: int = 2) -> int:
        """How many tokens of a prompt a request reads."""
        return self.ask(prompt, n_predict)[0]

    @contextmanager
    def working(self, prompt: Sequence[int], n_predict: int) -> Iterator[None]:
        """While a request with this prompt, which has been read, is being answered."""
        asked = threading.Thread(target=self.read, args=(prompt, n_predict))
        asked.start()
        eventually(lambda: any(slot["is_processing"] and slot["n_decoded"] for slot in self.slots()), "it answers")
        yield
        asked.join()

    def slots(self) -> Any:
        """What is told of each slot."""
        return [
            {"n_decoded": 0, **slot, **(slot.get("next_token") or [{}])[0]} for slot in self.server.get("/slots").body
        ]

    def cached_mib(self) -> float:
        """The most that the host cache has held."""
        return max(map(float, re.findall(r"cache state: \d+ prompts, ([\d.]+) MiB", self.server.log)), default=0.0)

    def saved_tokens(self) -> list[int]:
        """The lengths of all prompts that were saved to the host cache."""
        return [int(length) for length in re.findall(r"saving prompt with length (\d+)", self.server.log)]


@contextmanager
def started(build: EngineBuild, directory: Path, architecture: str, *flags: str) -> Iterator[Engine]:
    model = directory / f"{architecture}.gguf"
    if not model.exists():
        make_chat_model(architecture, build.library_directory, model)
    common = ("--threads", "1", "--ctx-size", "8192", "--kv-unified", "--no-cache-idle-slots", "--slots", "-lv", "4")
    with EngineServer(build.library_directory, model, (*common, *flags)) as server:
        yield Engine(server)


@pytest.mark.parametrize(
    ("architecture", "slots"), [*((WITHOUT_CHECKPOINTS, slots) for slots in (1, 2, 4)), *((a, 2) for a in CHECKPOINTED)]
)
def test_conversations_that_share_a_system_prompt_read_only_what_is_new(
    engine_build: EngineBuild, tmp_path: Path, architecture: str, slots: int
) -> None:
    behind = BEHIND_CHECKPOINT if architecture in CHECKPOINTED else 0
    with started(engine_build, tmp_path, architecture, "--parallel", str(slots)) as engine:
        system = engine.tokens(600)
        talks = [system + engine.tokens(300) for _ in range(3)]
        assert engine.read(talks[0]) == 900
        newcomers = [engine.read(talk) for talk in talks[1:]]
        assert max(newcomers) <= 300 + (MICRO_BATCH + behind if behind else 0)
        for _ in range(2):
            for talk in talks:
                talk += engine.tokens(100)
                assert engine.read(talk) <= 100 + behind


def test_conversations_that_do_not_fit_the_context_together_take_turns(
    engine_build: EngineBuild, tmp_path: Path
) -> None:
    with started(engine_build, tmp_path, WITHOUT_CHECKPOINTS, "--ctx-size", "2048", "--parallel", "4") as engine:
        talks = [engine.tokens(1200) for _ in range(3)]
        assert [engine.read(talk) for talk in talks] == [1200, 1200, 1200]
        for _ in range(2):
            for talk in talks:
                talk += engine.tokens(100)
                assert engine.read(talk) == 100


def test_requests_that_do_not_fit_the_context_together_are_answered_one_after_the_other(
    engine_build: EngineBuild, tmp_path: Path
) -> None:
    flags = ("--ctx-size", "2048", "--parallel", "4")
    with started(engine_build, tmp_path, WITHOUT_CHECKPOINTS, *flags) as engine:
        prompts = [engine.tokens(length) for length in (1200, 1100, 300, 1000, 900)]
        alone = [engine.ask(prompt, 200)[1] for prompt in prompts]
        with ThreadPoolExecutor(len(prompts)) as clients:
            together = list(clients.map(lambda prompt: engine.ask(prompt, 200)[1], prompts))
        assert [len(answer) for answer in together] == [200] * len(prompts)
        assert together == alone
        assert "waits: no room in the context" in engine.server.log


def test_a_request_that_never_fits_is_refused_at_once_beside_one_that_is_answered(
    engine_build: EngineBuild, tmp_path: Path
) -> None:
    flags = ("--ctx-size", "2048", "--parallel", "2")
    with (
        started(engine_build, tmp_path, WITHOUT_CHECKPOINTS, *flags) as engine,
        engine.working(engine.tokens(100), 1900),
    ):
        answer = engine.server.post("/completion", {"prompt": engine.tokens(2100), "n_predict": 1})
        assert (answer.status, answer.body["error"]["type"]) == (400, "exceed_context_size_error")
        assert any(slot["is_processing"] for slot in engine.slots())


@pytest.mark.parametrize(("architecture", "slots"), [(WITHOUT_CHECKPOINTS, 1), *((a, 4) for a in FAST)])
def test_a_title_request_costs_a_long_conversation_nothing(
    engine_build: EngineBuild, tmp_path: Path, architecture: str, slots: int
) -> None:
    behind = BEHIND_CHECKPOINT if architecture in CHECKPOINTED else 0
    with started(engine_build, tmp_path, architecture, "--parallel", str(slots)) as engine:
        talk, template = engine.tokens(2000), engine.tokens(6)
        engine.read(template + talk)
        for _ in range(3):
            # It shares no more than the first tokens of the template.
            assert engine.read(template + engine.tokens(100)) >= 100
            talk += engine.tokens(50)
            assert engine.read(template + talk) <= 50 + behind
        # Where there is another slot, the conversation need not leave its own.
        assert (max(engine.saved_tokens(), default=0) > 1000) == (slots == 1)


def test_a_sub_agent_reuses_the_system_prompt_of_a_parent_that_is_much_longer(
    engine_build: EngineBuild, tmp_path: Path
) -> None:
    with started(engine_build, tmp_path, WITHOUT_CHECKPOINTS, "--parallel", "4") as engine:
        system = engine.tokens(500)
        parent = system + engine.tokens(3000)
        other = engine.tokens(600)
        engine.read(parent)
        engine.read(other)  # the parent moves to the host cache
        assert engine.read(system + engine.tokens(100)) == 100
        assert engine.read(system + engine.tokens(150)) == 150
        assert engine.read(parent + engine.tokens(20)) == 20
        assert engine.read(other + engine.tokens(30)) == 30


@pytest.mark.parametrize("architecture", FAST)
def test_prompts_that_were_moved_and_copied_are_answered_like_those_that_are_read(
    engine_build: EngineBuild, tmp_path: Path, architecture: str
) -> None:
    with started(engine_build, tmp_path, architecture, "--parallel", "4") as engine:
        system = engine.tokens(600)
        parent = system + engine.tokens(400)
        engine.read(parent)
        engine.read(engine.tokens(300))
        for prompt in (system + engine.tokens(50), parent + engine.tokens(20), system + engine.tokens(80)):
            n_read, answer = engine.ask(prompt, 6)
            assert n_read < len(prompt)
            assert engine.ask(prompt, 6, reuse=False) == (len(prompt), answer)


@pytest.mark.parametrize("architecture", FAST)
def test_a_sub_agent_reuses_the_prompt_of_a_parent_that_is_being_answered(
    engine_build: EngineBuild, tmp_path: Path, architecture: str
) -> None:
    behind = BEHIND_CHECKPOINT if architecture in CHECKPOINTED else 0
    with started(engine_build, tmp_path, architecture, "--parallel", "4") as engine:
        system = engine.tokens(1000)
        parent = system + engine.tokens(100)
        engine.read(parent)
        with engine.working(parent, n_predict=1500):
            read = [engine.read(system + engine.tokens(100)) for _ in range(2)]
            assert any(slot["is_processing"] for slot in engine.slots())
        assert max(read) <= 100 + (MICRO_BATCH + behind if behind else 0)
        assert engine.read(parent + engine.tokens(40)) <= 40 + behind


def test_a_long_conversation_in_its_slot_gives_way_to_a_prompt_that_is_brought_back(
    engine_build: EngineBuild, tmp_path: Path
) -> None:
    with started(engine_build, tmp_path, WITHOUT_CHECKPOINTS, "--ctx-size", "2048", "--parallel", "4") as engine:
        system = engine.tokens(150)
        parent, long = system + engine.tokens(450), engine.tokens(1600)
        engine.read(parent)
        engine.read(long)
        assert engine.read(system + engine.tokens(40)) == 40
        assert engine.read(long + engine.tokens(10)) == 10
        assert engine.read(parent + engine.tokens(20)) == 20


def test_what_gives_way_to_a_long_answer_is_saved_first(engine_build: EngineBuild, tmp_path: Path) -> None:
    with started(engine_build, tmp_path, WITHOUT_CHECKPOINTS, "--ctx-size", "1024", "--parallel", "2") as engine:
        long, short = engine.tokens(300), engine.tokens(450)
        with engine.working(long, n_predict=600):
            assert engine.read(short) == 450
        assert "purging slot" in engine.server.log
        assert engine.read(short + engine.tokens(10)) == 10


def test_what_the_host_cache_cannot_hold_stays_in_its_slot(engine_build: EngineBuild, tmp_path: Path) -> None:
    flags = ("--parallel", "2", "--cache-ram", "1")
    with started(engine_build, tmp_path, WITHOUT_CHECKPOINTS, *flags) as engine:
        system = engine.tokens(600)
        parent = system + engine.tokens(3000)
        engine.read(parent)
        engine.read(system + engine.tokens(500))
        assert "exceeds cache size limit" in engine.server.log
        assert engine.read(parent + engine.tokens(20)) == 20


def test_the_host_cache_keeps_its_limit_and_gives_up_what_was_used_longest_ago(
    engine_build: EngineBuild, tmp_path: Path
) -> None:
    with started(engine_build, tmp_path, WITHOUT_CHECKPOINTS, "--parallel", "2", "--cache-ram", "2") as engine:
        talks = [engine.tokens(1000) for _ in range(6)]
        for talk in talks:
            engine.read(talk)
        assert engine.read(talks[-2] + engine.tokens(10)) == 10
        assert engine.read(talks[0] + engine.tokens(10)) == 1010
        assert 0 < engine.cached_mib() <= 2


def test_an_answer_that_is_sampled_anew_leaves_no_copy_of_its_predecessor(
    engine_build: EngineBuild, tmp_path: Path
) -> None:
    with started(engine_build, tmp_path, WITHOUT_CHECKPOINTS, "--parallel", "2") as engine:
        talk = engine.tokens(1000)
        for _ in range(3):
            engine.read(talk, n_predict=100)
        assert engine.read(talk + engine.tokens(10)) == 10
        assert engine.saved_tokens() == []


# -- through the daemon -----------------------------------------------------------------------------------------------

SYSTEM = "You are a customer service agent that helps the user. " * 40
NAMED: tuple[str | None, ...] = ("first", "second", "third")


def ask(app: RunningApp, session: str | None, said: Sequence[str]) -> tuple[int, int]:
    """The tokens of a prompt, and how many of them were reused."""
    roles = ("user", "assistant")
    history = [{"role": roles[number % 2], "content": text} for number, text in enumerate(said)]
    messages = [{"role": "system", "content": SYSTEM}, *history]
    body = {"model": "tiny", "messages": messages, "max_tokens": 1, "temperature": 0}
    headers = {} if session is None else {"x-session-id": session}
    usage = app.http.post("/v1/chat/completions", json=body, headers=headers).raise_for_status().json()["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(("sessions", "slots"), [(NAMED[:2], 4), (NAMED, 2), ((None, None), 2)])
def test_agents_that_take_turns_reuse_everything_each_time(
    engine_build: EngineBuild, tmp_path: Path, sessions: Sequence[str | None], slots: int
) -> None:
    record = ModelStore(tmp_path / "db", tmp_path / "hub", "http://127.0.0.1:9").resolve("tiny")
    settings = Settings(threads=1, parallel=slots, context_tokens=8192)
    files = HistoryFiles(tmp_path / "history.db", tmp_path / "key")
    with running_app(tmp_path, engine_build, settings, MemoryStore(record), history_files=files) as app:
        talks = [[f"Agent {number} asks about the order W379{number}453. " * 20] for number in range(len(sessions))]
        told: list[tuple[int, int]] = []
        for turn in range(2):
            for session, said in zip(sessions, talks, strict=True):
                told.append(ask(app, session, said))
                said += ["It is on its way.", f"And what about order {turn}? " * 30]

        def logged() -> list[tuple[int, int]]:
            requests = app.http.get("/ostinato/requests").json()["requests"]
            return [(one["new_tokens"] + one["reused_tokens"], one["reused_tokens"]) for one in reversed(requests)]

        eventually(lambda: logged() == told, "the log says the same")
    n = len(sessions)
    assert min(n_reused for _, n_reused in told[1:n]) > 400, "it is the system prompt"
    # The next turn of each reuses all that its last one had, but for what begins the answer.
    assert all(now[1] >= before[0] - 1 for before, now in zip(told, told[n:], strict=False))
