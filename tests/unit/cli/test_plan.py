"""`ostinato plan` and `ostinato profile`: what they show, ask for and end with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from ostinatod import locations
from ostinatod.cli.app import cli
from ostinatod.learning.calibrations import Calibration, Calibrations, DeviceSpeeds, UploadCosts
from ostinatod.learning.database import LearningDatabase
from ostinatod.machine.profile import machine_fingerprint
from ostinatod.profiles.calibration import CpuBranch, DecodeOverlap
from tests.fakes.daemon import FakeDaemon
from tests.unit.cli.conftest import Invoke

GENERATION = {
    "generation": 1,
    "created_at": 1_790_000_000.0,
    "source": "day0",
    "state": "active",
    "sessions": 0,
    "hot_experts": 225,
    "moved": 225,
    "coverage_held_out": None,
    "coverage_measured": 0.441,
    "tpot_ms_measured": 30.25,
    "tpot_ms_predicted": 31.5,
    "sessions_measured": 4,
    "note": "",
}
PROPOSAL = {
    "generation": 2,
    "hot_experts": 225,
    "moved": 90,
    "coverage_now": 0.441,
    "coverage_held_out": 0.672,
    "coverage_uniform": 0.439,
    "coverage_hindsight": 0.701,
    "cold_routes_per_token_now": 35.8,
    "cold_routes_per_token": 21.0,
    "tpot_ms_now": 14.25,
    "tpot_ms_predicted": 12.5,
    "tpot_ms_margin": 0.5,
    "reasons": ["The most used 44% of the experts take 67% of the routes; keeping them hot helps."],
}
TOLD: dict[str, Any] = {
    "model": "tiny",
    "sessions": 7,
    "skew": {"gain": 0.23, "useful": True, "sentence": "Keeping them hot helps."},
    "proposal": PROPOSAL,
    "history": [GENERATION],
}
PATH = "/ostinato/plan?model=tiny"


@pytest.fixture(autouse=True)
def planned(daemon: FakeDaemon) -> None:
    daemon.errors[PATH] = (200, TOLD)


def test_the_plan_says_what_would_change(invoke: Invoke) -> None:
    result = invoke("plan", "tiny")
    assert result.exit_code == 0
    for words in (
        "7",
        "generation 1 (day0)",
        "225, 90 of them to be moved",
        "44.1% now, 67.2% expected of sessions to come",
        "43.9% of a random set and 70.1% of the best in hindsight",
        "35.8 per token now, 21.0 expected",
        "14.2 ms now, 12.5 ms expected",
        "ostinato plan tiny --apply",
    ):
        assert words in result.stdout


def test_explain_gives_the_reasons(invoke: Invoke) -> None:
    assert "take 67% of the routes" in invoke("plan", "tiny", "--explain").stdout


def test_nothing_to_propose_is_said(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.errors[PATH] = (200, {**TOLD, "proposal": None, "history": []})
    out = invoke("plan", "tiny").stdout
    assert "Nothing better to propose" in out
    assert "no set" in out


def test_what_is_in_use_is_explained_though_nothing_is_proposed(invoke: Invoke, daemon: FakeDaemon) -> None:
    reasons = ["Keeping them hot helps.", "It is the set that would be planned now."]
    daemon.errors[PATH] = (200, {**TOLD, "proposal": None, "in_use": 1, "reasons": reasons})
    out = invoke("plan", "tiny", "--explain").stdout
    assert [f"    - {reason}" in out for reason in reasons] == [True, True]
    assert "ostinato plan tiny --explain" in invoke("plan", "tiny").stdout


def test_what_the_set_in_use_has_done_is_told(invoke: Invoke) -> None:
    assert "44.1% of the routes in 4 sessions since, 30.2 ms per token" in invoke("plan", "tiny").stdout


def test_a_set_that_the_engine_does_not_run_with_is_not_called_in_use(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.errors[PATH] = (200, {**TOLD, "in_use": None})
    assert "no set; the last was generation 1" in invoke("plan", "tiny").stdout


def test_a_proposal_that_is_no_better_is_not_recommended(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.errors[PATH] = (200, {**TOLD, "proposal": {**PROPOSAL, "coverage_held_out": 0.44}})
    out = invoke("plan", "tiny").stdout
    assert "No better than the set in use" in out
    assert "--apply" not in out


def test_from_one_session_no_more_than_the_best_is_promised(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.errors[PATH] = (200, {**TOLD, "proposal": {**PROPOSAL, "coverage_held_out": None}})
    out = invoke("plan", "tiny").stdout
    assert "35.8 per token now, 21.0 at best" in out
    assert "14.2 ms now, 12.5 ms at best" in out


def test_history_lists_every_generation(invoke: Invoke) -> None:
    header, line, _, legend = invoke("plan", "tiny", "--history").stdout.splitlines()
    assert header.split()[:3] == ["GENERATION", "MADE", "FROM"]
    assert line.split()[0] == "1"
    assert "44.1%" in line
    assert "30.2 (31.5)" in line
    assert "expected" in legend


def test_why_a_generation_was_made_stands_below_it(invoke: Invoke, daemon: FakeDaemon) -> None:
    newer = {**GENERATION, "generation": 2, "coverage_held_out": 0.672, "note": "generation 1 covered 41.0%\n"}
    daemon.errors[PATH] = (200, {**TOLD, "history": [newer, GENERATION]})
    _, second, note, first, *_ = invoke("plan", "tiny", "--history").stdout.splitlines()
    assert (second.split()[0], note, first.split()[0]) == ("2", "  generation 1 covered 41.0%", "1")
    assert "44.1% (67.2%)" in second


@pytest.mark.parametrize(("option", "verb"), [("--apply", "changed"), ("--undo", "went back")])
def test_changes_are_asked_for_and_told(invoke: Invoke, daemon: FakeDaemon, option: str, verb: str) -> None:
    answer = {"status": "success", "generation": 2, "moved": 90, "swap_ms": 12.4}
    daemon.errors["/ostinato/plan"] = (200, answer)
    result = invoke("plan", "tiny", option)
    assert daemon.asked("/ostinato/plan") == [{"model": "tiny", "action": option[2:]}]
    assert f"tiny {verb}: generation 2, 90 experts moved (in 12 ms)" in result.stderr


def test_json_is_what_the_daemon_told(invoke: Invoke) -> None:
    assert json.loads(invoke("plan", "tiny", "--json").stdout) == TOLD


def test_no_plan_to_apply_ends_with_the_daemons_words(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.errors["/ostinato/plan"] = (409, {"error": "nothing", "kind": "plan_unavailable", "hint": "Wait"})
    result = invoke("plan", "tiny", "--apply")
    assert result.exit_code == 1
    assert "nothing" in result.stderr
    assert "Wait" in result.stderr


@pytest.mark.parametrize(
    "options", [("--apply", "--history"), ("--apply", "--undo"), ("--undo", "--apply"), ("--history", "--explain")]
)
def test_one_thing_at_a_time(invoke: Invoke, daemon: FakeDaemon, options: tuple[str, ...]) -> None:
    result = invoke("plan", "tiny", *options)
    assert result.exit_code == 2
    assert "Expected one of --apply, --undo, --history and --explain." in result.stderr
    assert daemon.asked("/ostinato/plan") == []


@pytest.mark.usefixtures("home")
def test_the_profile_needs_no_daemon() -> None:
    runner = CliRunner(env={"OSTINATO_HOST": "127.0.0.1:1"})
    found = json.loads(runner.invoke(cli, ["profile", "--json"]).stdout)
    assert found["memory"]["total_bytes"] > 0
    shown = runner.invoke(cli, ["profile"]).stdout
    assert found["cpus"]["name"] in shown
    # The second call reads what the first has measured.
    assert json.loads(runner.invoke(cli, ["profile", "--json"]).stdout) == found


@pytest.mark.usefixtures("home")
def test_the_profile_shows_what_engines_measured() -> None:
    calibration = Calibration(
        (CpuBranch(13_400_000, 0.02, 0.18, 5000, 0.004),),
        (DeviceSpeeds("CUDA0", 75.0, 30.0, 54.0, 28.0),),
        0.07,
        DecodeOverlap(5000, 0.375, 0.1, 0.12),
        0.9,
        -0.04,
        (UploadCosts("CUDA0", 256, 31.0, 0.5, 0.25, 1.2),),
    )
    database = LearningDatabase(locations.learning_file())
    Calibrations(database, machine_fingerprint).keep("ab" * 32, "cd" * 32, calibration)
    shown = CliRunner().invoke(cli, ["profile"]).stdout
    assert "Engine cdcdcdcdcdcd, model abababababab" in shown
    assert "0.020 + 0.180 r ms, within 0.004 ms" in shown
    assert "75.0 GB/s with one row, 30.0 GB/s with 16, 54.0 GB/s over the link, 28.0 GB/s read in place" in shown
    assert "+7% of what these speeds say" in shown
    assert "the GPU works meanwhile for 38% of it; a cold route adds 0.120 ms to a token" in shown
    assert "90% of the experts copied ahead were then chosen" in shown
    assert "31.0 GB/s beside the CPU branch, which takes 1.20 times its own time; then 0.25 ms of the GPU" in shown
    assert "-4% of what was expected of them" in shown
    (told,) = json.loads(CliRunner().invoke(cli, ["profile", "--json"]).stdout)["calibrations"]
    assert (told["overlap"]["hidden_share"], told["foreseen_share"]) == (0.375, 0.9)


@pytest.mark.usefixtures("home")
def test_the_profile_is_shown_though_what_was_learned_is_damaged() -> None:
    file = locations.learning_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"no database at all, but long enough to be looked at" * 20)
    shown = CliRunner().invoke(cli, ["profile"])
    assert shown.exit_code == 0
    assert "Memory" in shown.stdout
    assert "cannot be read or written" in shown.stderr
    told = json.loads(CliRunner().invoke(cli, ["profile", "--json"]).stdout)
    assert told["calibrations"] == []
    assert "cannot be read or written" in told["calibrations_reason"]
