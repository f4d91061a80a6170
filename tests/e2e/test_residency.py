"""A residency file written by Python reaches the experts of a running engine, or is refused with the model unharmed."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from ostinatod.config import Settings
from ostinatod.engine.arguments import engine_arguments, engine_environment
from ostinatod.installer.engine_build import EngineBuild
from ostinatod.profiles.gguf_model import fingerprint, read_model
from ostinatod.profiles.residency import ExpertLayout, Residency, encode_residency, write_residency
from ostinatod.store import ModelStore
from tests.conftest import wait_until_healthy
from tests.e2e.conftest import MODEL, RunWorker
from tests.e2e.workers.residency_file import N_MUTANTS

pytestmark = pytest.mark.engine

HEADER = read_model([MODEL])
LAYOUT = ExpertLayout(fingerprint(HEADER), tuple(range(HEADER.block_count)), HEADER.expert_count)
EVERY_EXPERT = tuple(range(LAYOUT.n_experts))
ALL_HOT = Residency(LAYOUT, 3, 1_750_000_000, {"method": "test"}, (EVERY_EXPERT,) * len(LAYOUT.layers))
HALF_HOT = replace(ALL_HOT, generation=4, hot=(EVERY_EXPERT[::2],) * len(LAYOUT.layers))
QUESTION = "The order W3792453 was delivered. The customer wants to"

PLAIN_WEIGHTS = ("--no-repack", "--gpu-layers", "0")


@dataclass
class RunningEngine:
    """An engine process that serves the bundled model."""

    http: httpx.Client
    log: Path

    def residency(self) -> dict[str, Any]:
        """What the status tells of it."""
        status: dict[str, Any] = self.http.get("/ostinato/status").json()["residency"]
        return status

    def answer(self) -> str:
        """Sixteen greedy tokens."""
        body = {"prompt": QUESTION, "n_predict": 16, "temperature": 0, "ignore_eos": True}
        answered = self.http.post("/completion", json=body).json()
        assert answered["tokens_predicted"] == 16
        return str(answered["content"])

    def post(self, path: Path) -> httpx.Response:
        """Ask about a file."""
        return self.http.post("/ostinato/residency", json={"path": str(path)})


@contextmanager
def running_engine(build: EngineBuild, directory: Path, *flags: str) -> Iterator[RunningEngine]:
    record = ModelStore(directory / "db", directory / "hub", "http://127.0.0.1:9").resolve("tiny")
    log = directory / "log"
    # A socket's path is limited to about a hundred characters, which pytest's folders may exceed.
    with tempfile.TemporaryDirectory() as short, log.open("wb") as output, ExitStack() as stack:
        socket = Path(short) / "engine.sock"
        # One thread: several would wait for each other, spinning, on a machine that is busy with something else.
        arguments = engine_arguments(Settings(threads=1, context_tokens=512, engine_args=flags), record, socket)
        environment = engine_environment(os.environ, build.library_directory)
        process = subprocess.Popen([build.server, *arguments], env=environment, stdout=output, stderr=output)
        stack.callback(process.wait, 20)
        stack.callback(process.terminate)
        transport = httpx.HTTPTransport(uds=str(socket))
        http = stack.enter_context(httpx.Client(transport=transport, base_url="http://engine", timeout=60))
        wait_until_healthy(process, http, log, "the engine", within_s=60, unix_socket=socket)
        yield RunningEngine(http, log)


StartEngine = Callable[..., RunningEngine]


@pytest.fixture
def start_engine(engine_build: EngineBuild, tmp_path: Path) -> Iterator[StartEngine]:
    with ExitStack() as stack:

        def start(*flags: str) -> RunningEngine:
            directory = Path(tempfile.mkdtemp(dir=tmp_path))
            return stack.enter_context(running_engine(engine_build, directory, *flags))

        yield start


def residency_flags(path: Path, model_fingerprint: str = LAYOUT.fingerprint) -> tuple[str, ...]:
    return ("--ostinato-fingerprint", model_fingerprint, "--ostinato-residency", str(path))


@pytest.fixture(scope="module")
def stock_answer(engine_build: EngineBuild, tmp_path_factory: pytest.TempPathFactory) -> str:
    with running_engine(engine_build, tmp_path_factory.mktemp("stock"), *PLAIN_WEIGHTS) as engine:
        assert engine.residency() == {
            "state": "none",
            "reason": "",
            "generation": 0,
            "hot_experts": 0,
            "pool_bytes": 0,
        }
        assert engine.http.get("/ostinato/residency").status_code == 404
        return engine.answer()


def test_a_file_is_applied_at_the_start_and_changes_no_answer(
    start_engine: StartEngine, stock_answer: str, tmp_path: Path
) -> None:
    path = tmp_path / "3.residency"
    write_residency(path, ALL_HOT)
    engine = start_engine(*PLAIN_WEIGHTS, *residency_flags(path))
    assert engine.answer() == stock_answer

    status = engine.residency()
    assert (status["state"], status["reason"], status["generation"]) == ("applied", "", 3)
    assert status["hot_experts"] == ALL_HOT.n_hot == 512
    # Every expert and a zero slot per selected one: more than the experts' bytes in the file.
    assert status["pool_bytes"] > sum(t.nbytes for t in HEADER.tensors() if "_exps" in t.name)

    told = engine.http.get("/ostinato/residency").json()
    assert told == {
        "generation": 3,
        "created_at": 1_750_000_000,
        "fingerprint": LAYOUT.fingerprint,
        "layers": list(LAYOUT.layers),
        "n_experts": LAYOUT.n_experts,
        "hot": [list(experts) for experts in ALL_HOT.hot],
        "provenance": '{"method":"test"}',
    }


def test_a_running_engine_swaps_its_experts_and_keeps_what_it_has_read(
    start_engine: StartEngine, stock_answer: str, tmp_path: Path
) -> None:
    in_use, valid = tmp_path / "in-use", tmp_path / "valid"
    write_residency(in_use, HALF_HOT)
    write_residency(valid, replace(ALL_HOT, generation=9))
    engine = start_engine(*PLAIN_WEIGHTS, *residency_flags(in_use))
    before = engine.residency()
    assert (before["generation"], before["hot_experts"]) == (4, 256)
    story = " ".join(["The order was delivered late."] * 20)
    first = engine.http.post("/completion", json={"prompt": story, "n_predict": 1}).json()["timings"]
    assert first["prompt_n"] > 100

    same = engine.post(in_use)
    unchanged = {"generation": [4, 4], "become_hot": 0, "become_cold": 0}
    assert (same.status_code, same.json()) == (
        200,
        {"generation": 4, "moved": 0, "swap_ms": 0.0, "changed": unchanged},
    )
    swapped = engine.post(valid)
    assert swapped.status_code == 200
    told = swapped.json()
    assert (told["generation"], told["moved"]) == (9, 256)
    assert told["changed"] == {"generation": [4, 9], "become_hot": 256, "become_cold": 0}
    assert told["swap_ms"] > 0
    after = engine.residency()
    assert (after["state"], after["generation"], after["hot_experts"]) == ("applied", 9, 512)

    second = engine.http.post("/completion", json={"prompt": story + " Why?", "n_predict": 1}).json()["timings"]
    assert second["prompt_n"] < 10
    assert engine.answer() == stock_answer
    assert engine.post(in_use).json()["changed"] == {"generation": [9, 4], "become_hot": 0, "become_cold": 256}
    assert engine.answer()


def test_a_running_engine_refuses_what_does_not_fit_and_keeps_its_set(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    in_use, cut, foreign = (tmp_path / name for name in ("in-use", "cut", "foreign"))
    write_residency(in_use, HALF_HOT)
    cut.write_bytes(encode_residency(ALL_HOT)[:-1])
    write_residency(foreign, replace(ALL_HOT, layout=replace(LAYOUT, fingerprint="00" * 32)))
    engine = start_engine(*PLAIN_WEIGHTS, *residency_flags(in_use))
    before = engine.residency()
    answer = engine.answer()
    for path, expected in (
        (cut, "file: expected "),
        (foreign, "fingerprint: expected "),
        (tmp_path / "missing", "No such file"),
    ):
        refused = engine.post(path)
        assert refused.status_code == 422
        assert expected in refused.json()["error"]["message"]
    for body in ("{", "[]", "{}", '{"path": 3}'):
        assert engine.http.post("/ostinato/residency", content=body).status_code == 400
    assert engine.residency() == before
    assert engine.answer() == answer


def test_an_engine_on_the_stock_nodes_says_what_a_file_would_change_and_asks_for_a_restart(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    valid = tmp_path / "valid"
    write_residency(valid, replace(ALL_HOT, generation=9))
    engine = start_engine(*PLAIN_WEIGHTS, "--ostinato-fingerprint", LAYOUT.fingerprint)
    new = engine.post(valid)
    assert new.status_code == 409
    assert "restart the engine" in new.json()["error"]["message"]
    assert new.json()["would_change"] == {"generation": [0, 9], "become_hot": 512, "become_cold": 0}
    assert engine.residency()["state"] == "none"


def test_an_engine_may_divide_its_experts_before_any_is_hot(
    start_engine: StartEngine, stock_answer: str, tmp_path: Path
) -> None:
    valid = tmp_path / "valid"
    write_residency(valid, ALL_HOT)
    flags = ("--ostinato-branches", "--ostinato-fingerprint", LAYOUT.fingerprint, "--no-warmup")
    engine = start_engine(*PLAIN_WEIGHTS, *flags)
    assert engine.residency()["state"] == "none"
    assert engine.answer()
    status = engine.http.get("/ostinato/status").json()
    assert [(device["gpu"], device["uploaded"]) for device in status["devices"]] == [(False, 0)]
    weights = status["memory"]["host"]["weights_bytes"]
    assert 0.9 * MODEL.stat().st_size < weights < 1.1 * MODEL.stat().st_size
    assert status["memory"]["devices"] == []
    assert engine.post(valid).json()["moved"] == 512
    assert engine.answer() == stock_answer


def other_layout(**change: Any) -> bytes:
    layout = replace(LAYOUT, **change)
    return encode_residency(replace(ALL_HOT, layout=layout, hot=((0,),) * len(layout.layers)))


WHOLE = encode_residency(ALL_HOT)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "No such file or directory"),
        (b"", "file: expected at least 92 bytes, found 0"),
        (b"GGUF" + WHOLE[4:], "magic: expected 4f53545245534944, found 4747554645534944"),
        (WHOLE[:8] + b"\x02" + WHOLE[9:], "version: expected 1, found 2"),
        (WHOLE[:-1], f"file: expected {len(WHOLE)} bytes, found {len(WHOLE) - 1}"),
        (WHOLE + b"\0", f"file: expected {len(WHOLE)} bytes, found {len(WHOLE) + 1}"),
        (WHOLE[:200] + b"\xff" + WHOLE[201:], "checksum: expected "),
        (other_layout(fingerprint="00" * 32), f"fingerprint: expected {LAYOUT.fingerprint}, found {'00' * 32}"),
        (other_layout(layers=tuple(range(7))), "layers: expected 8, found 7"),
        (other_layout(layers=(*range(7), 9)), "layer entry 7: expected layer 7, found layer 9"),
        (other_layout(n_experts=128), "experts: expected 64, found 128"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name_and_the_model_still_answers(
    start_engine: StartEngine, stock_answer: str, tmp_path: Path, data: bytes | None, reason: str
) -> None:
    path = tmp_path / "bad.residency"
    if data is not None:
        path.write_bytes(data)
    engine = start_engine(*PLAIN_WEIGHTS, *residency_flags(path))
    status = engine.residency()
    assert (status["state"], status["generation"], status["hot_experts"]) == ("refused", 0, 0)
    assert status["reason"].startswith(f"{path}: ")
    assert reason in status["reason"]
    assert f"residency file refused, the model keeps the stock nodes: {status['reason']}" in engine.log.read_text()
    assert engine.answer() == stock_answer


def test_repacked_weights_are_refused_with_the_flag_that_keeps_them_plain(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    path = tmp_path / "3.residency"
    write_residency(path, ALL_HOT)
    engine = start_engine("--gpu-layers", "0", *residency_flags(path))
    status = engine.residency()
    if status["state"] == "applied":
        pytest.skip("this CPU's kernels repack no weights of the bundled model")
    assert status["state"] == "refused"
    assert "layer 0: its expert weights are not in plain host memory" in status["reason"]
    assert "--no-repack" in status["reason"]
    assert engine.answer()


def test_a_draft_model_of_the_same_layout_does_not_take_the_file_of_its_target(
    start_engine: StartEngine, stock_answer: str, tmp_path: Path
) -> None:
    path = tmp_path / "3.residency"
    write_residency(path, ALL_HOT)
    engine = start_engine(*PLAIN_WEIGHTS, *residency_flags(path), "--model-draft", str(MODEL))
    assert engine.residency()["state"] == "applied"
    assert "the residency file belongs to a model loaded before this one" in engine.log.read_text()
    assert engine.answer() == stock_answer


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--ostinato-residency", "/nowhere"), "--ostinato-fingerprint: expected the model's"),
        (("--ostinato-fingerprint", "AB"), "--ostinato-fingerprint: expected 64 lowercase hex digits, found 'AB'"),
        (("--ostinato-residency",), "--ostinato-residency: expected a value after it"),
        (("--ostinato-pool-mib", "much"), "--ostinato-pool-mib: expected a number from 0 to 2147483647, found 'much'"),
        (("--ostinato-threads", "-1"), "--ostinato-threads: expected a number from 0 to 2147483647, found '-1'"),
    ],
)
def test_a_flag_that_cannot_be_meant_ends_the_engine_at_once(
    engine_build: EngineBuild, flags: tuple[str, ...], said: str
) -> None:
    environment = engine_environment(os.environ, engine_build.library_directory)
    done = subprocess.run([engine_build.server, *flags], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert said in done.stderr


def test_both_readers_agree_about_every_mutated_file(run_worker: RunWorker, engine_build: EngineBuild) -> None:
    found = run_worker("residency_file", engine_build.library_directory)
    assert found["n_differing"] == 0
    assert 100 < found["n_accepted"] < N_MUTANTS / 2


def test_a_refused_file_leaves_the_placement_of_a_loaded_model_as_it_was(
    run_worker: RunWorker, engine_build: EngineBuild
) -> None:
    found = run_worker("residency_file", engine_build.library_directory)
    n_hot = str(found["n_hot"])
    # After no file, a cut one, a good one, and another model's; then a model loaded with a file configured.
    assert found["states"].tolist() == [
        ["none", "0", "0", "0"],
        ["refused", "0", "0", "0"],
        ["applied", "5", n_hot, "1"],
        ["applied", "5", n_hot, "1"],
        ["applied", "5", n_hot, "1"],
    ]
    # The file alone made the engine count.
    assert found["counted"].tolist() == list(LAYOUT.layers)
    nothing, cut, good, foreign = found["reasons"].tolist()
    assert nothing == good == ["", ""]
    assert "file: expected" in cut[0]
    assert "fingerprint: expected" in foreign[0]
    assert (cut[0], foreign[0]) == (cut[1], foreign[1])
