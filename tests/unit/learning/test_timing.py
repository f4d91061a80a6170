"""What the engine tells of its costs is kept per machine and build, and explains what tokens take."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ostinatod.errors import PlanUnavailable
from ostinatod.learning.calibrations import ENOUGH_STEPS, Calibration, Calibrations, UploadCosts, read_calibration
from ostinatod.learning.capacity import Capacity
from ostinatod.learning.database import LearningDatabase
from ostinatod.learning.generations import Generations
from ostinatod.learning.model_files import ModelFacts, ModelFiles
from ostinatod.learning.timing import Timings, step_samples
from ostinatod.profiles.calibration import CpuBranch
from ostinatod.profiles.cost_model import CostModel
from ostinatod.routing_log.records import LoggedRequest
from ostinatod.store.records import ModelRecord

DUMPS = sorted((Path(__file__).parents[2] / "data" / "learning").glob("v*.sql"))
ROUTES = 2 * 2
"""Of a token of the fake model: two layers, two experts each."""


def engine(steps: int = ENOUGH_STEPS, *, alpha: float = 0.1, beta: float = 0.2, gpu: float = 0.0) -> dict[str, Any]:
    """The status of an engine whose layer 0 had so many decode steps with one cold route, and as many with two."""
    return counted([steps, steps], alpha, beta, gpu)


def counted(steps: list[int], alpha: float, beta: float, gpu: float) -> dict[str, Any]:
    """The status of an engine with so many steps of a layer with 1, 2, … cold routes; its GPU branch takes `gpu` ms."""
    cpu_ms = [alpha + beta * r for r in range(1, len(steps) + 1)]
    decode = {
        "layer": 0,
        "expert_bytes": 8_000_000,
        "steps": steps,
        "cpu_ms": [n * ms for n, ms in zip(steps, cpu_ms, strict=True)],
    }
    waited_ms = sum(n * max(0.0, ms - gpu) for n, ms in zip(steps, cpu_ms, strict=True))
    prefill = {"steps": 3, "cpu_routes": 90, "cpu_ms": 11.0, "cpu_ms_predicted": 10.0}
    speeds = {"cpu_row_bytes_per_s": 70e9, "cpu_rows_bytes_per_s": 20e9, "link_bytes_per_s": 0.0}
    return {
        "devices": [
            {
                "name": "CUDA0",
                "gpu": True,
                "decode_waited_ms": waited_ms,
                "decode_busy_ms": sum(decode["cpu_ms"]),
                "prefetched": 400,
                "foreseen": 360,
                "speeds": speeds,
            }
        ],
        "cpu_branch": [{"name": "CUDA0", "decode": [decode], "prefill": prefill}],
    }


def logged(number: int, coverage: float, tpot_ms: float) -> LoggedRequest:
    """Of 100 prompt tokens and 40 output tokens, begun at second `number`."""
    fields: dict[str, Any] = dict.fromkeys(LoggedRequest.__dataclass_fields__)
    fields |= {"status": "ok", "started_at": float(number), "new_tokens": 40, "reused_tokens": 60, "output_tokens": 40}
    return LoggedRequest(**{**fields, "tpot_ms": tpot_ms, "coverage_decode": coverage})


def costing(n: int, *, route_ms: float, start: int = 0) -> list[LoggedRequest]:
    """The newest first: 10 ms and so much for each cold route, with coverage from 0.5 to 0.9."""
    shares = [0.5 + 0.4 * (i % 5) / 4 for i in range(n)]
    made = [logged(start + i, share, 10 + route_ms * ROUTES * (1 - share)) for i, share in enumerate(shares)]
    return made[::-1]


@pytest.fixture
def facts(model: ModelRecord) -> ModelFacts:
    found = ModelFiles().facts(model)
    assert found is not None
    return found


@pytest.fixture
def calibrations(tmp_path: Path) -> Callable[..., Calibrations]:
    """Of one database, on a machine and at a time."""
    database = LearningDatabase(tmp_path / "learning.db")
    return lambda machine="here", now=0.0: Calibrations(database, lambda: machine, clock=lambda: now)


def test_an_engine_s_costs_are_read() -> None:
    found = read_calibration(engine())
    assert found is not None
    (branch,) = found.cpu_branch
    assert (branch.alpha_ms, branch.beta_ms) == (pytest.approx(0.1), pytest.approx(0.2))
    assert found.prefill_error == pytest.approx(0.1)
    (speeds,) = found.speeds
    assert (speeds.cpu_row_gbps, speeds.cpu_rows_gbps, speeds.link_gbps) == (70.0, 20.0, None)
    assert found.foreseen_share == pytest.approx(0.9)


def test_speeds_are_read_for_every_kind_of_experts_that_was_measured() -> None:
    def kind(types: str, measured: int, gbps: float) -> dict[str, Any]:
        return {"types": types, "measured": measured, "speeds": {"cpu_row_bytes_per_s": gbps * 1e9}}

    status = engine()
    (gpu,) = status["devices"]
    gpu["kinds"] = [kind("down q4_K", 0, 70.0), kind("down q5_K", 0, 70.0)]
    found = read_calibration(status)
    assert found is not None
    assert [(speeds.name, speeds.cpu_row_gbps, speeds.cpu_rows_gbps) for speeds in found.speeds] == [
        ("CUDA0", 70.0, 20.0)
    ]
    gpu["kinds"].append(kind("down q6_K", 2, 40.0))
    found = read_calibration(status)
    assert found is not None
    # The second one has the first one's in place of its own.
    assert [(speeds.name, speeds.cpu_row_gbps) for speeds in found.speeds] == [
        ("CUDA0, down q4_K", 70.0),
        ("CUDA0, down q6_K", 40.0),
    ]


def test_how_much_of_the_cpu_branch_the_gpu_hides_is_read_and_kept(calibrations: Callable[..., Calibrations]) -> None:
    found = read_calibration(engine(gpu=0.2))
    assert found is not None
    assert found.overlap is not None
    # As many steps of 0.3 as of 0.5 ms, 0.2 ms of each hidden.
    assert found.overlap.hidden_share == pytest.approx(0.4 / 0.8)
    assert found.overlap.gpu_branch_ms == pytest.approx(0.2)
    calibrations().keep("f", "build", found)
    assert calibrations().latest("f")["f"].calibration == found


def sharing(status: dict[str, Any], *, linked: int) -> dict[str, Any]:
    """An engine whose GPU computes 350 of 1,000 columns of cold experts itself, 8 MB each at 28 GB/s: 0.1 ms."""
    (gpu,) = status["devices"]
    gpu |= {"linked": linked, "link_columns": 350, "hidden_columns": 1000}
    gpu["speeds"] |= {"in_place_bytes_per_s": 28e9}
    return status


def test_what_the_gpu_computes_of_cold_experts_is_read_and_kept(calibrations: Callable[..., Calibrations]) -> None:
    # The GPU waits for what the CPU branch takes beyond 0.2 ms and 0.1 ms for each cold route.
    status = sharing(engine(), linked=10**6)
    status["devices"][0]["decode_waited_ms"] = ENOUGH_STEPS * (0.3 - 0.3) + ENOUGH_STEPS * (0.5 - 0.4)
    found = read_calibration(status)
    assert found is not None
    assert found.overlap is not None
    assert found.cpu_branch[0].link_ms == pytest.approx(0.1)
    assert found.speeds[0].in_place_gbps == 28.0
    assert found.overlap.gpu_branch_ms == pytest.approx(0.2)
    cost = found.cold_cost(layers=2, k=2, cold_routes=3.0)
    assert cost is not None
    assert cost.layer_ms == pytest.approx((0.0, 0.1, 0.3))
    calibrations().keep("f", "build", found)
    assert calibrations().latest("f")["f"].calibration == found
    # Of a third of the cold routes the experts are where the GPU can read them.
    partly = read_calibration(sharing(engine(), linked=ENOUGH_STEPS))
    assert partly is not None
    assert partly.cpu_branch[0].link_ms == pytest.approx(0.1 / 3)


def test_what_uploads_cost_is_read_and_kept(calibrations: Callable[..., Calibrations]) -> None:
    status = engine()
    size = {"tokens": 256, "link_bytes_per_s": 31e9, "hot_ms": 0.5, "chain_ms": 0.25, "cpu": 1.2, "cpu_alone": 1.0}
    status["cpu_branch"][0]["uploads"] = {"steps": 40, "ms": 66.0, "ms_expected": 60.0, "costs": [size]}
    found = read_calibration(status)
    assert found is not None
    assert found.upload_error == pytest.approx(0.1)
    assert found.uploads == (UploadCosts("CUDA0", 256, 31.0, 0.5, 0.25, 1.2),)
    calibrations().keep("f", "build", found)
    assert calibrations().latest("f")["f"].calibration == found
    status["cpu_branch"][0]["uploads"] |= {"ms": 0.0, "ms_expected": 0.0, "costs": []}
    without = read_calibration(status)
    assert without is not None
    assert (without.upload_error, without.uploads) == (None, ())


def test_an_engine_without_such_counters_tells_no_overlap() -> None:
    status = engine()
    for name in ("decode_waited_ms", "decode_busy_ms", "prefetched", "foreseen"):
        del status["devices"][0][name]
    found = read_calibration(status)
    assert found is not None
    assert (found.overlap, found.foreseen_share) == (None, None)
    cost = found.cold_cost(layers=2, k=2, cold_routes=1.0)
    assert cost is not None
    assert cost.ms(1.0) == pytest.approx(0.2)


def test_what_was_kept_before_overlap_was_measured_is_read(
    tmp_path: Path, calibrations: Callable[..., Calibrations]
) -> None:
    calibrations().keep("f", "build", read_calibration(engine()))
    with closing(sqlite3.connect(tmp_path / "learning.db")) as connection, connection:
        removed = "'$.overlap', '$.foreseen_share', '$.cpu_branch[0].link_ms', '$.speeds[0].in_place_gbps'"
        connection.execute(f"update calibrations set measured = json_remove(measured, {removed})")
    kept = calibrations().latest("f")["f"].calibration
    assert (kept.overlap, kept.foreseen_share) == (None, None)
    assert kept.prefill_error == pytest.approx(0.1)


def equation_one(alpha: float, beta: float, gpu: float) -> Callable[[float], float]:
    """Time per token by coverage: 10 ms, and two layers where each of a token's experts is cold independently."""
    cost = CostModel.same_in_all_layers([gpu, gpu], gamma0_ms=0.0, alpha_ms=alpha, beta_ms=beta)
    return lambda coverage: 10 + cost.expected_step_ms([2 * (1 - coverage)] * 2, [1 - coverage**2] * 2)


@pytest.mark.parametrize(("alpha", "beta", "gpu"), [(1.4, 1.84, 1.37), (0.2, 2.0, 2.0), (0.2, 2.0, 0.5)])
def test_eight_requests_under_one_set_predict_another_where_the_overlap_is_known(
    facts: ModelFacts, calibrations: Callable[..., Calibrations], alpha: float, beta: float, gpu: float
) -> None:
    tpot_ms, now, then = equation_one(alpha, beta, gpu), 0.7, 0.85
    requests = [logged(i, now + 0.002 * (i % 4), tpot_ms(now + 0.002 * (i % 4)) + 0.02 * (i % 3)) for i in range(8)]
    timings = Timings(lambda _: requests[::-1], calibrations())
    # Of 10,000 layer steps, those with one and with two cold routes.
    status = counted([round(20_000 * now * (1 - now)), round(10_000 * (1 - now) ** 2)], alpha, beta, gpu)
    known = timings.of(facts, status, "build").step_time
    del status["devices"][0]["decode_waited_ms"]
    unknown = timings.of(facts, status, "other build").step_time
    assert known is not None
    assert unknown is not None
    assert known.tpot_ms(ROUTES * (1 - then)) == pytest.approx(tpot_ms(then), rel=0.01)
    saved, fewer = tpot_ms(now) - tpot_ms(then), ROUTES * (then - now)
    assert known.route_ms * fewer == pytest.approx(saved, rel=0.25)
    # beta alone promises no better, and much too much where the GPU's work is longer than alpha.
    assert abs(unknown.route_ms * fewer / saved - 1) > abs(known.route_ms * fewer / saved - 1) - 0.02


def test_a_calibration_survives_until_a_fresh_engine_has_seen_enough(calibrations: Callable[..., Calibrations]) -> None:
    kept = calibrations().keep("f", "build", read_calibration(engine(beta=0.2)))
    assert calibrations().latest("f")["f"].calibration == kept.calibration
    early = calibrations().keep("f", "build", read_calibration(engine(3, beta=0.9)))
    assert early.calibration == kept.calibration
    later = calibrations().keep("f", "build", read_calibration(engine(beta=0.3)))
    assert later.calibration.cpu_branch[0].beta_ms == pytest.approx(0.3)


def test_another_build_or_machine_begins_anew(calibrations: Callable[..., Calibrations]) -> None:
    first = calibrations(now=5.0).keep("f", "one", read_calibration(engine()))
    assert first.since == 0
    other_build = calibrations(now=7.0).keep("f", "two", None)
    assert (other_build.since, other_build.calibration) == (7.0, Calibration())
    other_machine = calibrations("there", now=9.0).keep("f", "two", None)
    assert other_machine.since == 9.0
    assert calibrations(now=11.0).keep("f", "one", None).calibration == first.calibration
    assert set(calibrations("nowhere").latest()) == set()


def test_requests_tell_what_a_cold_route_costs(
    facts: ModelFacts, model: ModelRecord, calibrations: Callable[..., Calibrations]
) -> None:
    timing = Timings(lambda _: costing(40, route_ms=0.5), calibrations()).of(facts, None, "build")
    assert timing.step_time is not None
    assert timing.step_time.route_ms == pytest.approx(0.5)
    assert timing.check is not None
    assert timing.check.median_error == pytest.approx(0, abs=1e-6)
    told = timing.as_json()
    assert (told["requests"], told["checked_requests"], told["calibration"]) == (40, 10, None)


def test_requests_of_another_build_do_not_count(facts: ModelFacts, calibrations: Callable[..., Calibrations]) -> None:
    fingerprint = facts.layout.fingerprint
    calibrations(now=0.0).keep(fingerprint, "old", None)
    requests = [*costing(20, route_ms=0.9, start=100), *costing(20, route_ms=0.1)]
    timing = Timings(lambda _: requests, calibrations(now=100.0)).of(facts, None, "new")
    assert timing.step_time is not None
    assert timing.step_time.samples == 20
    assert timing.step_time.route_ms == pytest.approx(0.9)


def test_the_engine_s_cost_stands_in_where_requests_are_alike(
    facts: ModelFacts, calibrations: Callable[..., Calibrations]
) -> None:
    alike = [logged(i, 0.8, 12.0 + 0.01 * (i % 3)) for i in range(20)][::-1]
    timings = Timings(lambda _: alike, calibrations())
    assert timings.of(facts, None, None).step_time is None
    timing = timings.of(facts, engine(beta=0.2, gpu=0.1), "build")
    assert timing.step_time is not None
    assert timing.step_time.route_ms == pytest.approx(0.2, rel=0.05)
    # 4 routes of a token, of which 0.2 are cold now and none would be.
    assert timing.step_time.tpot_ms(0.0) == pytest.approx(12.0 - 0.2 * 0.8, abs=0.1)
    reasons = " ".join(timing.reasons())
    assert "0.100 + 0.200 r ms" in reasons
    assert "works meanwhile for 25% of that time, so a cold route adds 0.2000 ms" in reasons
    assert "off by" in reasons
    assert "+10%" in reasons
    assert "share of each cold expert" not in reasons
    assert "lent memory" not in reasons


def test_lent_memory_and_the_gpu_s_share_are_told(facts: ModelFacts, calibrations: Callable[..., Calibrations]) -> None:
    # Half of a layer's routes are cold by the set; as few steps with both cold as an eighth of them would give.
    q, n = 0.375, 10 * ENOUGH_STEPS
    status = sharing(counted([round(2 * n * q * (1 - q)), round(n * q**2)], 0.1, 0.2, 0.2), linked=10**6)
    alike = [logged(i, 0.5, 12.0 + 0.01 * (i % 3)) for i in range(20)][::-1]
    reasons = " ".join(Timings(lambda _: alike, calibrations()).of(facts, status, "build").reasons())
    assert "and takes 0.1000 ms for its own share of each cold expert" in reasons
    assert "with those 25% that lent memory served" in reasons


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "cancelled"},
        {"tpot_ms": None},
        {"coverage_decode": None},
        {"output_tokens": 3},
        {"started_at": 1.0},
    ],
)
def test_requests_that_tell_nothing_of_decode_are_left_out(changes: dict[str, Any]) -> None:
    told = logged(10, 0.75, 12.0)
    (sample,) = step_samples([told, dataclasses.replace(told, **changes)], 5.0, ROUTES)
    assert (sample.cold_routes, sample.context_tokens) == (1.0, 120.0)


def test_samples_know_what_is_usual_under_their_set() -> None:
    shares = [(1, 0.5), (1, 0.75), (2, 1.0), (None, 0.25)]
    requests = [dataclasses.replace(logged(n, c, 12.0), generation=g) for n, (g, c) in enumerate(shares)][::-1]
    usual = [sample.usual_cold_routes for sample in step_samples(requests, 0.0, ROUTES)]
    assert usual == [1.5, 1.5, 0.0, None]


@pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: dump.stem)
def test_what_an_earlier_version_learned_is_kept(dump: Path, tmp_path: Path, model: ModelRecord) -> None:
    file = tmp_path / "learning.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(dump.read_text(encoding="utf-8"))
    generations = Generations(file, tmp_path / "residency")
    newest, first = generations.history("ab" * 32)
    assert (newest.source, newest.state, newest.coverage_held_out) == ("learned", "active", 0.75)
    assert (first.source, first.state, first.tpot_ms_measured) == ("day0", "superseded", 12.5)
    assert generations.capacity("ab" * 32) == Capacity((800,), (0, 0), "capacity test")
    assert generations.residency("ab" * 32, 2).mask().tolist() == [[False, False, True, True]] * 2
    assert Calibrations(LearningDatabase(file), lambda: "here").keep("ab" * 32, "build", None).since == 0


def test_what_a_newer_version_learned_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "learning.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.executescript(DUMPS[-1].read_text(encoding="utf-8"))
        connection.execute(
            "insert into _sqlite_migrations (migration_set, name, applied_at) values ('learning', 'm999_new', '')"
        )
    before = file.read_bytes()
    for _ in range(2):
        with pytest.raises(PlanUnavailable, match="written by a newer version of ostinato: it has m999_new"):
            Generations(file, tmp_path / "residency").history("ab" * 32)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["learning.db"]


def test_there_is_a_dump_of_every_released_schema(tmp_path: Path) -> None:
    file = tmp_path / "learning.db"
    with LearningDatabase(file).open() as db:
        steps = list(db.query("select name from _sqlite_migrations where migration_set = 'learning'"))
    assert [dump.stem for dump in DUMPS] == [f"v{number}" for number in range(1, len(steps) + 1)]


def test_branches_are_told_with_their_speed() -> None:
    assert CpuBranch(8_000_000, 0.1, 0.2, 10, 0.0).route_gbps == pytest.approx(40.0)
