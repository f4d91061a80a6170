"""What the child process times, over an engine that remembers what it was asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.peers.gpu_memory import used_bytes
from benchmarks.peers.measure import measure, peer_named
from benchmarks.peers.protocol import WARM_UP, Options, Tokens, Work
from benchmarks.peers.run import PEERS

WORK = Work(model="m.gguf", depth=40, lengths=(8, 16), decode_tokens=5, repeats=2, threads=1, vocabulary=100)


class Remembering:
    """Takes as many milliseconds as it was asked tokens; the first timing of each length takes ten times as long."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Tokens]] = []

    def read_context(self, tokens: Tokens) -> int:
        self.asked.append(("context", tokens))
        return 7

    def prefill(self, tokens: Tokens) -> float:
        first = all(len(asked) != len(tokens) for what, asked in self.asked if what == "prefill")
        self.asked.append(("prefill", tokens))
        return len(tokens) * (10.0 if first else 1.0)

    def decode(self, tokens: Tokens) -> list[float]:
        self.asked.append(("decode", tokens))
        return [100.0] * WARM_UP + [2.0] * (len(tokens) - WARM_UP)

    def turn(self, reused: int, new: Tokens, output: Tokens) -> tuple[float, float]:
        raise AssertionError("no session was asked for")

    def facts(self) -> dict[str, Any]:
        return {"asked": len(self.asked)}


def run() -> tuple[Remembering, dict[str, Any]]:
    engine = Remembering()
    readings = iter([1000, 5000])
    kept: list[dict[str, Any]] = []
    measure(lambda work, options: engine, WORK, {}, kept.append, lambda: next(readings))
    (figures,) = kept
    return engine, figures


def test_warm_up_does_not_count() -> None:
    _, figures = run()

    assert figures["decode_ms"] == figures["decode_ms_mean"] == 2.0
    assert figures["prefill_ms"] == {"8": 8.0, "16": 16.0}
    assert figures["prefill_ms_all"] == {"8": [8.0, 8.0], "16": [16.0, 16.0]}


def test_gpu_memory_is_what_the_run_added() -> None:
    _, figures = run()

    assert figures["gpu_bytes"] == 4000


def test_the_token_after_the_context_is_told_for_comparison() -> None:
    _, figures = run()

    assert figures["next_token"] == 7


def test_every_engine_gets_the_same_tokens_and_no_prefill_repeats_one() -> None:
    (first, _), (second, _) = run(), run()

    assert [what for what, _ in first.asked] == ["context", "decode", *["prefill"] * 6]
    for (_, one), (_, other) in zip(first.asked, second.asked, strict=True):
        np.testing.assert_array_equal(one, other)
    prefills = [tuple(tokens.tolist()) for what, tokens in first.asked if what == "prefill"]
    assert len(set(prefills)) == len(prefills)
    assert all(0 <= token < WORK.vocabulary for _, tokens in first.asked for token in tokens)


def test_work_survives_json() -> None:
    assert Work.from_json({**WORK.as_json(), "lengths": [8, 16]}) == WORK
    assert WORK.n_ctx >= WORK.depth + max(WORK.lengths)


def test_without_nvml_gpu_memory_is_unknown() -> None:
    assert used_bytes("libno-such-nvml.so") is None


@pytest.mark.parametrize("module", PEERS)
def test_every_peer_can_be_named_without_its_engine(module: str) -> None:
    peer = peer_named(module)

    assert peer.name
    assert all(values for values in peer.choices.values())


def test_freetoken_gets_the_memory_knob_only_where_its_strategy_has_one() -> None:
    from benchmarks.peers.freetoken import scheduler_options

    options: Options = {"moe-strategy": "hybrid", "moe-cache-mem": 123}
    assert scheduler_options(WORK, options)["moe_cache_mem"] == 123
    assert "moe_cache_mem" not in scheduler_options(WORK, {"moe-strategy": "cpu"})
    assert scheduler_options(WORK, options)["num_token_override"] >= WORK.n_ctx
