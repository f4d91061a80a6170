"""What a client sees when the engine fails: an error in its dialect, then a new engine, and nothing that hangs.

Faults come from kernels_patch/tests/faults.cpp, a library that is loaded before the engine's own; the engine has no
switch for them. On a CPU both branches run on llama.cpp's threads, so a stall delays; waits in vain, uploads and
page-locking are tried on a GPU by workers/gpu_faults.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from ostinatod.config import Settings
from ostinatod.installer.engine_build import EngineBuild
from ostinatod.store import ModelStore
from tests.conftest import RunningApp, asking, eventually, running_app
from tests.e2e.programs import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

MESSAGES = [{"role": "user", "content": "The order W3792453 was delivered. What now?"}]
BRANCHES = ("--ostinato-branches", "--no-repack")
ENDLESS = ("--ignore-eos",)
"""Without the token that ends an answer: what a fault interrupts must not have ended by itself."""
STALL_MS = 2000
TOKENS = 8
MANY = 900
"""More than are written before a fault that is asked for takes effect, and no more than the context has."""
FAILED = "ended while it served this request"
"""What the daemon says of an engine that was there and is gone."""


@dataclass(frozen=True)
class Dialect:
    """One request in a dialect, and where its errors are."""

    path: str
    body: dict[str, Any]
    stream: dict[str, Any]
    """Changes to the body for a streamed answer."""

    def error(self, answer: dict[str, Any]) -> str:
        """The message of an error, as the dialect's clients look for it."""
        error = answer.get("error") or answer["response"]["error"]
        return str(error if isinstance(error, str) else error["message"])


CHAT = {"messages": MESSAGES, "temperature": 0, "max_tokens": TOKENS}
DIALECTS = {
    "openai": Dialect("/v1/chat/completions", CHAT, {"stream": True}),
    "completions": Dialect(
        "/v1/completions", {"prompt": "The order", "temperature": 0, "max_tokens": TOKENS}, {"stream": True}
    ),
    "anthropic": Dialect("/v1/messages", CHAT, {"stream": True}),
    "responses": Dialect(
        "/v1/responses", {"input": "The order", "temperature": 0, "max_output_tokens": 16}, {"stream": True}
    ),
    "ollama": Dialect(
        "/api/chat",
        {"messages": MESSAGES, "stream": False, "options": {"temperature": 0, "num_predict": TOKENS}},
        {"stream": True},
    ),
}


@dataclass(frozen=True)
class FaultyApp:
    """An application whose engines fail on request."""

    app: RunningApp
    faults: Path

    def fail(self, fault: str, content: object = "") -> None:
        """Ask for a fault."""
        (self.faults / fault).write_text(str(content))

    def has_failed(self, fault: str) -> bool:
        """Whether it has happened."""
        return not (self.faults / fault).exists()

    def post(self, dialect: Dialect, **changes: Any) -> httpx.Response:
        """The dialect's request."""
        return self.app.http.post(dialect.path, json={"model": "tiny", **dialect.body, **changes})

    def answer(self) -> str:
        """What the model says to MESSAGES."""
        answered = self.post(DIALECTS["openai"])
        assert answered.status_code == 200, answered.text
        return str(answered.json()["choices"][0]["message"]["content"])

    def engine(self) -> dict[str, Any]:
        """What the status tells of the model."""
        model: dict[str, Any] = self.app.status()["models"][0]
        return model


@contextmanager
def faulty_app(directory: Path, build: EngineBuild, library: Path, **faults: object) -> Iterator[FaultyApp]:
    asked = directory / "faults"
    asked.mkdir()
    for fault, content in faults.items():
        (asked / fault.replace("_", "-")).write_text(str(content))
    settings = Settings(context_tokens=1024, threads=1, engine_args=(*BRANCHES, *ENDLESS))
    store: Any = ModelStore(directory / "db", directory / "hub", "http://127.0.0.1:9")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LD_PRELOAD", str(library))
        environment.setenv("OSTINATO_TEST_FAULTS", str(asked))
        # Engines that die soon after their start make the next one wait; here every death is the first.
        environment.setattr("ostinatod.engine.process.HEALTHY_S", 0.0)
        with running_app(directory, build, settings, store) as app:
            yield FaultyApp(app, asked)


def exported(library: Path) -> set[str]:
    """The symbols that a shared library defines."""
    told = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    return {line.split()[-1].split("@")[0] for line in told.stdout.splitlines()}


def test_every_fault_stands_before_a_function_that_the_engine_has(
    engine_build: EngineBuild, faults_library: Path
) -> None:
    source = (ROOT / "kernels_patch" / "tests" / "faults.cpp").read_text(encoding="utf-8")
    names = set(re.findall(r'"(_Z\w+)"', source))
    library = next(engine_build.library_directory.glob("libllama.so*"))
    found = {path: exported(path) for path in (library, faults_library)}
    assert len(names) >= 3
    assert {path: names - symbols for path, symbols in found.items()} == {library: set(), faults_library: set()}


@pytest.fixture(scope="module")
def shared_app(
    engine_build: EngineBuild, faults_library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FaultyApp]:
    with faulty_app(tmp_path_factory.mktemp("faulty"), engine_build, faults_library) as running:
        yield running


@pytest.fixture
def faulty(shared_app: FaultyApp) -> Iterator[FaultyApp]:
    """An application that no fault is left to by the test before."""
    yield shared_app
    for fault in shared_app.faults.iterdir():
        fault.unlink()


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream, of server-sent events or of lines."""
    for line in response.iter_lines():
        data = line.removeprefix("data: ")
        if data.startswith("{"):
            yield json.loads(data)


@pytest.mark.parametrize("name", DIALECTS)
def test_a_failed_pass_is_an_error_of_the_dialect_and_the_next_request_has_a_new_engine(
    faulty: FaultyApp, name: str
) -> None:
    before, pid = faulty.answer(), faulty.engine()["pid"]
    faulty.fail("fail-pass")
    refused = faulty.post(DIALECTS[name])
    assert faulty.has_failed("fail-pass")
    assert refused.status_code == 502
    assert FAILED in DIALECTS[name].error(refused.json())
    assert faulty.answer() == before
    assert faulty.engine()["pid"] != pid
    assert faulty.engine()["in_flight"] == 0


@pytest.mark.parametrize("name", DIALECTS)
def test_a_stream_that_fails_half_way_ends_with_an_error_of_the_dialect(faulty: FaultyApp, name: str) -> None:
    before = faulty.answer()
    dialect = DIALECTS[name]
    longer = {"options": {**dialect.body["options"], "num_predict": MANY}} if name == "ollama" else {}
    many = {"max_output_tokens": MANY} if name == "responses" else {} if longer else {"max_tokens": MANY}
    body = {"model": "tiny", **dialect.body, **dialect.stream, **longer, **many}
    received: list[dict[str, Any]] = []
    with faulty.app.http.stream("POST", dialect.path, json=body) as response:
        assert response.status_code == 200
        for event in events(response):
            received.append(event)
            if len(received) == 6:
                faulty.fail("fail-pass")
    assert faulty.has_failed("fail-pass")
    assert FAILED in dialect.error(received[-1])
    assert 6 < len(received) < MANY
    assert faulty.answer() == before


def test_a_stalled_cpu_branch_delays_answers_and_the_daemon_keeps_answering(faulty: FaultyApp) -> None:
    before = faulty.answer()
    faulty.fail("stall", STALL_MS)
    begin = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        delayed = [pool.submit(faulty.answer) for _ in range(2)]
        eventually(lambda: faulty.has_failed("stall"), "the branch stalls")
        assert faulty.app.http.get("/health").is_success
        assert not any(answer.done() for answer in delayed)
        assert [answer.result() for answer in delayed] == [before, before]
    assert time.monotonic() - begin >= STALL_MS / 1000


def test_a_client_that_leaves_a_stalled_engine_leaves_nothing_behind(faulty: FaultyApp) -> None:
    before = faulty.answer()
    faulty.fail("stall", STALL_MS)
    with asking(faulty.app.url, DIALECTS["openai"].path, {"model": "tiny", **CHAT, "max_tokens": MANY}):
        eventually(lambda: faulty.has_failed("stall"), "the branch stalls")
    eventually(lambda: faulty.engine()["in_flight"] == 0, "the request has ended", within_s=STALL_MS / 1000 + 10)
    assert faulty.answer() == before


def test_several_requests_in_a_failed_pass_all_end(faulty: FaultyApp) -> None:
    before = faulty.answer()
    faulty.fail("stall", STALL_MS)  # so that no answer is over before all have been asked for

    def ask(_: int) -> int:
        return faulty.post(DIALECTS["openai"], max_tokens=60).status_code

    with ThreadPoolExecutor(3) as pool:
        answers = pool.map(ask, range(3))
        eventually(lambda: faulty.has_failed("stall") and faulty.engine()["in_flight"] == 3, "all are in flight")
        faulty.fail("fail-pass")
        assert set(answers) == {502}
    assert faulty.has_failed("fail-pass")
    assert faulty.answer() == before


def test_without_memory_for_the_pool_a_model_runs_on_the_stock_nodes_and_says_why(
    engine_build: EngineBuild, faults_library: Path, tmp_path: Path
) -> None:
    with faulty_app(tmp_path, engine_build, faults_library, no_pool=0) as faulty:
        assert faulty.answer()
        told = faulty.engine()["engine"]
    assert told["devices"] == []
    assert told["residency"]["reason"] == "no memory for the expert pool"
