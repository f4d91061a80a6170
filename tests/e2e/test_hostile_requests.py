"""What requests can do to the real engine: nothing beyond themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from ostinatod import locations
from ostinatod.installer.engine_build import EngineBuild
from tests.conftest import RunningDaemon, StartDaemon, asking, eventually

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

IDLE_WITHIN_S = 25
"""The engine looks for closed connections after a second without any result; the rest is for slow machines."""
MAX_TOKENS = 4000
SMALL_BATCHES = "--batch-size 128 --ubatch-size 128"
"""A prompt is left off between two batches, of which a slow processor computes one in less than a second then."""
LONG = "word " * 6000
"""Some 6,000 tokens, which take longer to read than the bound."""


@pytest.fixture
def start(engine_build: EngineBuild, start_daemon: StartDaemon) -> Callable[..., RunningDaemon]:
    """Starts a daemon with the model loaded."""

    def started(**environment: str) -> RunningDaemon:
        daemon = start_daemon(locations.engine_cache_dir(), **environment)
        assert daemon.http.post("/ostinato/load", json={"model": "tiny"}).is_success
        return daemon

    return started


def turn(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def busy_slots(daemon: RunningDaemon) -> set[int]:
    """Slots that the engine itself reports as processing."""
    (path,) = (daemon.home / "run").glob("*.sock")
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=60) as engine:
        return {slot["id"] for slot in engine.get("http://engine/slots").json() if slot["is_processing"]}


def slots_at_work(daemon: RunningDaemon) -> int:
    """How many they are."""
    return len(busy_slots(daemon))


def in_flight(daemon: RunningDaemon) -> int:
    """Requests that the daemon has not finished with."""
    return int(daemon.http.get("/ostinato/status").json()["models"][0]["in_flight"])


def tokens_written(daemon: RunningDaemon) -> int:
    """Tokens that the engine has decoded: each selects as many experts as the next in every layer."""
    told = daemon.http.get("/ostinato/routes", params={"model": "tiny"}).json()
    (k,) = {layer["k"] for layer in daemon.http.get("/ostinato/residency", params={"model": "tiny"}).json()["layers"]}
    return max(sum(row) for row in told["decode"]) // int(k)


def engine_pid(daemon: RunningDaemon) -> int:
    return int(daemon.http.get("/ostinato/status").json()["models"][0]["pid"])


def is_idle(daemon: RunningDaemon) -> bool:
    return slots_at_work(daemon) == 0 and in_flight(daemon) == 0


def chat(text: str) -> dict[str, Any]:
    """What OpenAI's and Anthropic's dialects have in common."""
    messages = turn(text)
    return {"model": "tiny", "messages": messages, "stream": True, "ignore_eos": True, "max_tokens": MAX_TOKENS}


BODIES: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    "openai": ("/v1/chat/completions", chat),
    "anthropic": ("/v1/messages", chat),
    "responses": (
        "/v1/responses",
        lambda text: {
            "model": "tiny",
            "input": text,
            "stream": True,
            "ignore_eos": True,
            "max_output_tokens": MAX_TOKENS,
        },
    ),
    "ollama": ("/api/chat", lambda text: {"model": "tiny", "messages": turn(text)}),
}


@pytest.mark.parametrize("dialect", BODIES)
def test_a_client_that_leaves_during_prefill_or_decode_frees_its_slot(
    start: Callable[..., RunningDaemon], dialect: str
) -> None:
    # Not every dialect can ask for an answer that does not end by itself.
    daemon = start(OSTINATO_ENGINE_ARGS=f"{SMALL_BATCHES} --ignore-eos")
    path, body = BODIES[dialect]
    for text in (LONG, "Count."):
        with asking(daemon.url, path, body(text)):
            eventually(lambda: slots_at_work(daemon) == 1, "the engine works")
        # Asked seldom: the engine looks for closed connections only while it has nothing to answer, us included.
        eventually(lambda: is_idle(daemon), "the engine is idle", IDLE_WITHIN_S, every_s=1.5)
    assert tokens_written(daemon) < MAX_TOKENS


def test_a_client_that_leaves_frees_its_slot_while_another_is_answered(start: Callable[..., RunningDaemon]) -> None:
    daemon = start(OSTINATO_THREADS="1")
    path, body = BODIES["openai"]
    with asking(daemon.url, path, body("Tell me more.")):
        eventually(lambda: slots_at_work(daemon), "the engine works for one")
        staying = busy_slots(daemon)
        with asking(daemon.url, path, {**body("Count."), "stream": False}):
            eventually(lambda: slots_at_work(daemon) == 2, "the engine works for both")
        # Every token of the other answer wakes all who wait in the engine, so that it is never quiet for a second.
        eventually(lambda: busy_slots(daemon) == staying, "the engine works for one", IDLE_WITHIN_S, every_s=1.5)


def test_a_client_that_leaves_the_queue_is_gone_from_it_and_the_next_in_line_follows(
    start: Callable[..., RunningDaemon],
) -> None:
    daemon = start(OSTINATO_PARALLEL="1", OSTINATO_MAX_QUEUE="2", OSTINATO_THREADS="1")
    path, body = BODIES["openai"]
    with asking(daemon.url, path, body("Count.")) as running:
        eventually(lambda: slots_at_work(daemon) == 1, "the engine works")
        with asking(daemon.url, path, body("Count.")):
            eventually(lambda: in_flight(daemon) == 2, "one waits")
        eventually(lambda: in_flight(daemon) == 1, "nobody waits any more", 3)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(
                daemon.http.post, "/api/generate", json={"model": "tiny", "prompt": "Hi", "options": {"num_predict": 2}}
            )
            eventually(lambda: in_flight(daemon) == 2, "the next waits")
            running.close()
            assert waiting.result(30).status_code == 200


def test_a_full_queue_is_503_with_retry_after_in_every_dialect(start: Callable[..., RunningDaemon]) -> None:
    daemon = start(OSTINATO_PARALLEL="1", OSTINATO_MAX_QUEUE="0", OSTINATO_THREADS="1")
    with asking(daemon.url, *_body("openai", "Count.")):
        eventually(lambda: slots_at_work(daemon) == 1, "the engine works")
        for dialect in BODIES:
            path, body = _body(dialect, "Hi")
            refused = daemon.http.post(path, json=body)
            assert refused.status_code == 503, dialect
            assert int(refused.headers["retry-after"]) > 0
            error = refused.json()["error"]
            assert isinstance(error, str) == (dialect == "ollama")
            if dialect == "anthropic":
                assert error["type"] == "overloaded_error"


def _body(dialect: str, text: str) -> tuple[str, dict[str, Any]]:
    path, body = BODIES[dialect]
    return path, body(text)


def test_two_streams_are_written_at_once(start: Callable[..., RunningDaemon]) -> None:
    daemon = start(OSTINATO_PARALLEL="2", OSTINATO_THREADS="1", OSTINATO_ENGINE_ARGS="--ignore-eos")

    def begun(word: str, n_predict: int) -> Iterator[str]:
        body = {"model": "tiny", "prompt": word, "options": {"num_predict": n_predict}}
        answer = streams.enter_context(
            httpx.stream("POST", f"{daemon.url}/api/generate", json=body, timeout=100, trust_env=False)
        )
        lines = answer.iter_lines()
        assert any(json.loads(line)["response"] for line in lines)
        return lines

    with ExitStack() as streams:
        long, short = begun("Count", MAX_TOKENS), begun("Tell", 40)
        assert [json.loads(line)["done"] for line in short][-1]
        assert in_flight(daemon) == 1, "the first is still being written"
        assert not json.loads(next(long))["done"]


EXTREMES: tuple[Any, ...] = (-(2**31), 2**63, 1e308, "x", None, [])
NUMBERS = (
    *("max_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "n_keep", "n_discard", "n_probs"),
    *("repeat_last_n", "repeat_penalty", "presence_penalty", "frequency_penalty", "mirostat", "mirostat_tau"),
    *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "xtc_probability", "min_keep"),
    *("logprobs", "top_logprobs", "id_slot", "dynatemp_range", "t_max_predict_ms", "n_cache_reuse", "n_indent"),
)


def test_no_value_of_a_numeric_field_harms_the_engine(start: Callable[..., RunningDaemon]) -> None:
    daemon = start()
    pid = engine_pid(daemon)
    common = {"model": "tiny", "messages": turn("Hi"), "max_tokens": 1}

    def ask(field: tuple[str, Any]) -> int:
        name, value = field
        return daemon.http.post("/v1/chat/completions", json={**common, name: value, "n_predict": 1}).status_code

    with ThreadPoolExecutor(4) as pool:
        statuses = list(pool.map(ask, [(name, value) for name in NUMBERS for value in EXTREMES]))
    assert set(statuses) <= {200, 400}
    assert engine_pid(daemon) == pid


def test_nothing_of_a_conversation_is_written_down(start: Callable[..., RunningDaemon]) -> None:
    daemon = start(OSTINATO_LOG_LEVEL="debug")
    nonce, secret = "quixotic-nonce-7391", "ost_not-a-key-5527"
    headers = {"Authorization": f"Bearer {secret}", "X-Session-Id": "s"}
    for dialect in BODIES:
        path, body = _body(dialect, f"Repeat {nonce}.")
        short = {**body, "max_tokens": 4, "max_output_tokens": 4, "options": {"num_predict": 4}}
        assert daemon.http.post(path, json=short, headers=headers).status_code == 200
        # And every way to fail: a wrong model, a wrong field, an overflow, a body that is none.
        daemon.http.post(path, json={**short, "model": nonce}, headers=headers)
        daemon.http.post(path, json={**short, "messages": nonce, "input": {nonce: 1}}, headers=headers)
        daemon.http.post(path, json=_body(dialect, f"{nonce} " * 9000)[1], headers=headers)
        daemon.http.post(path, content=f"{{{nonce}".encode(), headers={**headers, "Content-Type": "application/json"})
    daemon.stop()
    written = [file for file in daemon.home.rglob("*") if file.is_file()]
    assert any(file.name == "ostinatod.log" for file in written)
    for file in written:
        content = file.read_bytes()
        assert secret.encode() not in content, file
        if file.suffix in (".log", ".1") or file.name == "output":
            # The name of a model that does not exist may be told; what was said to one may not.
            content = b"\n".join(line for line in content.splitlines() if b"not found" not in line)
        assert nonce.encode() not in content, file
