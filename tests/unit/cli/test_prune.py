from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.daemon import DIGEST, FakeDaemon
from tests.unit.cli.conftest import Invoke

ENTRIES: list[dict[str, Any]] = [
    {"kind": "unfinished", "model": "org/repo:q4", "path": "/hub/x.incomplete", "size_bytes": 9_000_000_000},
    {"kind": "prompts", "model": DIGEST, "path": f"/data/prompts/{DIGEST}", "size_bytes": 600_000_000},
]
PATHS = [entry["path"] for entry in ENTRIES]
LISTED = {"paths": None, "dry_run": True}


@pytest.fixture
def daemon_with_leftovers(daemon: FakeDaemon) -> FakeDaemon:
    daemon.leftovers = list(ENTRIES)
    return daemon


def test_prune_shows_each_item_and_the_total_asks_and_deletes(
    invoke: Invoke, daemon_with_leftovers: FakeDaemon
) -> None:
    done = invoke("prune", stdin="y\n")
    assert done.exit_code == 0
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["WHAT", "MODEL", "SIZE", "PATH"],
        ["unfinished", "download", "org/repo:q4", "9.0", "GB", "/hub/x.incomplete"],
        ["saved", "prompts", "0123456789ab", "600", "MB", f"/data/prompts/{DIGEST}"],
    ]
    assert "Delete 2 items, 9.6 GB? [y/N]" in done.stderr
    assert done.stderr.splitlines()[-1] == "deleted 2 items, 9.6 GB"
    assert daemon_with_leftovers.asked("/ostinato/prune") == [LISTED, {"paths": PATHS, "dry_run": False}]


@pytest.mark.parametrize("answer", ["", "n\n"])
def test_prune_without_a_yes_deletes_nothing(invoke: Invoke, daemon_with_leftovers: FakeDaemon, answer: str) -> None:
    assert invoke("prune", stdin=answer).exit_code == 130
    assert daemon_with_leftovers.asked("/ostinato/prune") == [LISTED]


def test_prune_with_yes_does_not_ask(invoke: Invoke, daemon_with_leftovers: FakeDaemon) -> None:
    done = invoke("prune", "--yes")
    assert (done.exit_code, done.stderr) == (0, "deleted 2 items, 9.6 GB\n")
    assert daemon_with_leftovers.leftovers == []


def test_a_dry_run_only_shows_even_with_yes(invoke: Invoke, daemon_with_leftovers: FakeDaemon) -> None:
    done = invoke("prune", "--dry-run", "--yes")
    assert "/hub/x.incomplete" in done.stdout
    assert done.stderr == "2 items, 9.6 GB can be deleted: ostinato prune\n"
    assert daemon_with_leftovers.leftovers == ENTRIES


@pytest.mark.parametrize(("option", "deleted"), [("--dry-run", False), ("--yes", True)])
def test_prune_tells_programs_what_it_did(
    invoke: Invoke, daemon_with_leftovers: FakeDaemon, option: str, deleted: bool
) -> None:
    done = invoke("prune", option, "--json")
    told = {"deleted": deleted, "entries": ENTRIES, "total_bytes": 9_600_000_000, "in_progress": []}
    assert (done.exit_code, json.loads(done.stdout), done.stderr) == (0, told, "")


def test_nothing_to_delete_is_said_without_a_question(invoke: Invoke, daemon: FakeDaemon) -> None:
    done = invoke("prune")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "There is nothing to delete.\n")


def test_models_that_are_being_pulled_are_named(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.in_progress = ["org/repo:q8"]
    assert invoke("prune", "--yes").stderr.splitlines() == [
        "There is nothing to delete.",
        "Left alone while being pulled: org/repo:q8",
    ]


def test_what_was_begun_again_since_it_was_shown_stays(invoke: Invoke, daemon_with_leftovers: FakeDaemon) -> None:
    from ostinatod.client import DaemonClient

    with DaemonClient(daemon_with_leftovers.url) as client:
        assert [entry.path for entry in client.prune(PATHS[:1]).entries] == PATHS[:1]
        assert [entry.path for entry in client.prune(PATHS).entries] == PATHS[1:]


def test_prune_without_a_daemon_ends_in_three(invoke: Invoke) -> None:
    assert invoke("prune", "--yes", OSTINATO_HOST="127.0.0.1:1").exit_code == 3


def test_a_file_that_cannot_be_deleted_ends_in_one(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.errors["/ostinato/prune"] = (400, {"error": "cannot delete x", "kind": "model_error", "hint": "do"})
    done = invoke("prune", "--yes")
    assert (done.exit_code, done.stderr) == (1, "Error: cannot delete x\ndo\n")
