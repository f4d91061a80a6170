"""Files of the engine's slots: with the checkpoints of a prompt, without them, and damaged."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ostinatod.installer.engine_build import EngineBuild
from tests.e2e.chat_models import make_chat_model
from tests.e2e.conftest import MODEL
from tests.e2e.workers.engine_server import Answer, EngineServer
from tests.e2e.workers.saved_prompts import observe
from tests.e2e.workers.served import Placements

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]

PROMPT = "Tell me about the order W3792453 and everything that is known about it. " * 60
TURN = PROMPT + "And now?"
MAGIC_BYTES, COUNT_BYTES = 8, 8

IGNORING = "import os, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
WITHOUT_SIGNAL = (sys.executable, "-c", IGNORING)
"""Starts an engine to which a file that may not grow is an error, not the end."""


class Slots:
    """An engine of a model with a sliding window that has read PROMPT, and the file it saved of it."""

    def __init__(self, engine: EngineServer, folder: Path) -> None:
        self.engine = engine
        self.file = folder / "whole.state"
        engine.complete(PROMPT)
        self.n_state_bytes: int = self.act("save").body["n_written"]

    def act(self, action: str, file: str = "whole.state") -> Answer:
        """On the only slot."""
        return self.engine.post(f"/slots/0?action={action}", {"filename": file})

    def restore(self, content: bytes) -> Answer:
        """In place of what the slot holds."""
        (self.file.parent / "other.state").write_bytes(content)
        return self.act("restore", "other.state")

    def turn(self) -> Any:
        """How many tokens a turn reads that repeats the prompt, but not what was sampled behind it."""
        answer = self.engine.post("/completion", {"prompt": TURN, "n_predict": 1, "temperature": 0})
        return answer.body["timings"]["prompt_n"]


@pytest.fixture(scope="module")
def slots(engine_build: EngineBuild, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slots]:
    """The same engine for all tests, which each begin by restoring a file."""
    folder = tmp_path_factory.mktemp("slots")
    libraries = engine_build.library_directory
    model = make_chat_model("gpt-oss", libraries, folder / "m.gguf")
    flags = ("--threads", "1", "--ctx-size", "8192", "--parallel", "1", "--slot-save-path", str(folder))
    with EngineServer(libraries, model, flags, launcher=WITHOUT_SIGNAL) as engine:
        yield Slots(engine, folder)


def test_a_file_holds_the_state_and_its_checkpoints(slots: Slots) -> None:
    content = slots.file.read_bytes()
    behind = content[slots.n_state_bytes :]
    assert behind[:MAGIC_BYTES] == b"ostckpt1"
    assert int.from_bytes(behind[MAGIC_BYTES : MAGIC_BYTES + COUNT_BYTES], "little") > 0
    assert slots.restore(content).status == 200
    assert slots.turn() < 30


def test_a_file_that_ends_with_the_state_is_restored_without_checkpoints(slots: Slots) -> None:
    answer = slots.restore(slots.file.read_bytes()[: slots.n_state_bytes])
    assert (answer.status, answer.body["n_restored"] > 1000) == (200, True)
    assert slots.turn() > 1000


def test_a_file_that_does_not_hold_checkpoints_behind_its_state_is_refused_whole(slots: Slots) -> None:
    content = slots.file.read_bytes()
    state, behind = content[: slots.n_state_bytes], content[slots.n_state_bytes :]
    first = MAGIC_BYTES + COUNT_BYTES
    damaged = {
        "cut off": [
            *(behind[:1], behind[:first], behind[: first + 8], behind[:-1]),
            behind[: first + 16] + (1 << 60).to_bytes(8, "little") + behind[first + 24 :],  # bytes
        ],
        "something else": [b"x" * len(behind)],
        "does not end": [behind + b"x"],
        "outside of its prompt": [
            behind[:first] + (1 << 40).to_bytes(8, "little") + behind[first + 8 :],  # tokens
            behind[: first + 8] + b"\xff" * 4 + behind[first + 12 :],  # the first position
        ],
    }
    for reason, files in damaged.items():
        for file in files:
            answer = slots.restore(state + file)
            assert answer.status == 400
            assert reason in answer.body["error"]["message"]
            assert slots.engine.get("/slots").body[0].get("n_prompt_tokens", 0) == 0
    assert slots.turn() > 1000


def test_a_disk_that_has_no_room_for_checkpoints_keeps_the_state(slots: Slots) -> None:
    content = slots.file.read_bytes()
    assert slots.restore(content).status == 200
    unlimited = resource.prlimit(slots.engine.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(slots.engine.process.pid, resource.RLIMIT_FSIZE, (slots.n_state_bytes + 100, unlimited[1]))
    try:
        assert slots.act("save", "small.state").body["n_written"] == slots.n_state_bytes
    finally:
        resource.prlimit(slots.engine.process.pid, resource.RLIMIT_FSIZE, unlimited)
    assert (slots.file.parent / "small.state").read_bytes() == content[: slots.n_state_bytes]


def test_another_engine_goes_on_where_one_with_hot_experts_stopped(engine_build: EngineBuild, tmp_path: Path) -> None:
    flags = Placements("cpu", MODEL, tmp_path).flags["half"]
    observed = observe(engine_build.library_directory, MODEL, flags, tmp_path)
    assert observed["restored"] == observed["goes_on"]
    assert observed["restored"]["read"] < 30
    assert observed["checkpoint_bytes"] == 0
