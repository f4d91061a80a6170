"""The search for an engine's best setting, over an engine whose speed is a formula."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.layers import fitted_layers, least_layers
from benchmarks.peers.protocol import Engine, ModelShape, Options, Peer, Work
from benchmarks.peers.search import Outcome, Request, best, search

GIB = 2**30
SHAPE = ModelShape(layers=8, layer_expert_bytes=2 * GIB, experts=64, other_bytes=GIB)
REQUEST = Request(new_tokens=511, output_tokens=11)


def _unopened(work: Work, options: Options) -> Engine:
    raise AssertionError("the search must only run settings")


PEER = Peer(
    name="formula",
    open=_unopened,
    least=least_layers,
    fitted=fitted_layers,
    choices={"locked": (True, False), "batch": (2048, 512, 64)},
)


def formula(options: Options) -> Outcome:
    """3 GiB plus layers on the GPU and a compute buffer; faster with layers there, small batches and locked memory."""
    on_gpu = SHAPE.layers - options["n-cpu-moe"]
    used = 3 * GIB + on_gpu * SHAPE.layer_expert_bytes + options["batch"] * 2**20
    prefill = 100.0 + 10 * options["n-cpu-moe"] + options["batch"] / 100 + (0 if options["locked"] else 500)
    figures: dict[str, Any] = {
        "prefill_ms": {"511": prefill},
        "decode_ms": 1.0 + options["n-cpu-moe"],
        "gpu_bytes": used,
    }
    return Outcome("formula", options, figures)


def test_the_memory_left_by_the_first_run_is_filled_with_layers() -> None:
    outcomes = list(search(PEER, SHAPE, 12 * GIB, REQUEST, formula, max_runs=2))

    assert [o.options["n-cpu-moe"] for o in outcomes] == [8, 5]


def test_each_option_is_changed_alone_and_kept_when_the_request_got_faster() -> None:
    outcomes = list(search(PEER, SHAPE, 12 * GIB, REQUEST, formula, max_runs=30))

    found = best(outcomes, REQUEST, 12 * GIB)
    assert found is not None
    # the smaller batch leaves room for one more layer
    assert found.options == {"locked": True, "batch": 64, "n-cpu-moe": 4}
    assert len(outcomes) == len({str(sorted(o.options.items())) for o in outcomes})


def test_a_setting_known_to_be_good_is_run_first_and_fitted_from_there() -> None:
    outcomes = list(search(PEER, SHAPE, 12 * GIB, REQUEST, formula, max_runs=2, start={"n-cpu-moe": 4, "batch": 64}))

    assert [o.options for o in outcomes] == [
        {"locked": True, "batch": 64, "n-cpu-moe": 4},
        {"locked": False, "batch": 64, "n-cpu-moe": 4},
    ]


def test_a_setting_above_the_memory_is_never_the_best() -> None:
    def misjudged(options: Options) -> Outcome:
        outcome = formula(options)
        assert outcome.figures is not None
        extra = 4 * GIB if options["n-cpu-moe"] < 8 else 0
        return Outcome("formula", options, {**outcome.figures, "gpu_bytes": outcome.figures["gpu_bytes"] + extra})

    outcomes = list(search(PEER, SHAPE, 12 * GIB, REQUEST, misjudged, max_runs=30))

    found = best(outcomes, REQUEST, 12 * GIB)
    assert found is not None
    assert (found.used() or 0) <= 12 * GIB
    assert any((o.used() or 0) > 12 * GIB for o in outcomes)
    assert found.options["n-cpu-moe"] < 8


def test_an_engine_that_fails_at_first_is_not_asked_again() -> None:
    outcomes = list(
        search(PEER, SHAPE, GIB, REQUEST, lambda options: Outcome("formula", options, None, "no GPU"), max_runs=30)
    )

    assert [o.error for o in outcomes] == ["no GPU"]
    assert best(outcomes, REQUEST, GIB) is None


def test_where_a_setting_that_should_be_good_fails_the_least_memory_is_run_after_all() -> None:
    def run(options: Options) -> Outcome:
        return Outcome("formula", options, None, "too little memory") if options["n-cpu-moe"] < 5 else formula(options)

    outcomes = list(search(PEER, SHAPE, 12 * GIB, REQUEST, run, max_runs=3, start={"n-cpu-moe": 4}))

    assert [o.options["n-cpu-moe"] for o in outcomes] == [4, 8, 5]


def test_memory_that_cannot_be_measured_is_within_and_fits_nothing_more() -> None:
    def unmeasured(options: Options) -> Outcome:
        outcome = formula(options)
        return Outcome("formula", options, {**(outcome.figures or {}), "gpu_bytes": None})

    outcomes = list(search(PEER, SHAPE, GIB, REQUEST, unmeasured, max_runs=30))

    assert {o.options["n-cpu-moe"] for o in outcomes} == {8}
    assert len(outcomes) == 4


def test_a_request_is_its_prefill_and_the_output_tokens_after_the_first() -> None:
    assert Request(511, 101).milliseconds({"prefill_ms": {"511": 250.0}, "decode_ms": 9.5}) == 250.0 + 100 * 9.5
