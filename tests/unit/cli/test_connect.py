from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ostinatod.keys import KeyFile, local_key
from tests.fakes.daemon import FakeDaemon, listing, running
from tests.unit.cli.conftest import Invoke


@pytest.fixture(autouse=True)
def user_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another home than the one of whoever runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OSTINATO_API_KEY", raising=False)
    return tmp_path


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Programs that were started: path, arguments and environment. Every known one is installed."""
    calls: list[Any] = []

    def execve(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        calls.append((path, arguments, environment))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execve)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("claude", "pi"):
        (programs / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(programs))
    return calls


def test_a_client_takes_our_place_with_variables_and_its_own_arguments(
    invoke: Invoke, daemon: FakeDaemon, started: list[Any]
) -> None:
    daemon.models = {"tiny": listing("tiny")}
    assert invoke("launch", "claude", "--", "-p", "hello").exit_code == 0
    ((path, arguments, environment),) = started
    assert path.endswith("/programs/claude")
    assert arguments == ["claude", "-p", "hello"]
    assert environment["ANTHROPIC_BASE_URL"] == daemon.url
    assert environment["ANTHROPIC_MODEL"] == "tiny"
    assert environment["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "262144"


def test_a_file_is_changed_before_the_start_and_back_on_demand(
    invoke: Invoke, daemon: FakeDaemon, started: list[Any], user_home: Path
) -> None:
    daemon.models = {"tiny": listing("tiny")}
    told = invoke("launch", "pi")
    file = user_home / ".pi" / "agent" / "models.json"
    assert "ostinato launch --undo pi" in told.stderr
    assert json.loads(file.read_text())["providers"]["ostinato"]["models"][0]["id"] == "tiny"
    assert started[0][1] == ["pi", "--provider", "ostinato", "--model", "tiny"]
    assert "Took back" in invoke("launch", "pi", "--undo").stderr
    assert not file.exists()
    assert "Nothing of ours" in invoke("launch", "pi", "--undo").stderr


def test_printing_writes_and_starts_nothing_and_can_be_read_by_a_shell(
    invoke: Invoke, daemon: FakeDaemon, started: list[Any], user_home: Path
) -> None:
    daemon.models = {"tiny": listing("tiny")}
    printed = invoke("launch", "--print", "claude").stdout
    assert f"export ANTHROPIC_BASE_URL={daemon.url}\n" in printed
    assert "export ANTHROPIC_API_KEY=''\n" in printed
    assert "models.json" in invoke("launch", "--print", "pi").stdout
    assert json.loads(invoke("launch", "pi", "--json").stdout)["arguments"][0] == "--provider"
    assert not (user_home / ".pi").exists()
    assert started == []


def test_a_client_that_is_not_installed_is_told_with_the_way_to_get_it(
    invoke: Invoke, daemon: FakeDaemon, started: list[Any]
) -> None:
    daemon.models = {"tiny": listing("tiny")}
    refused = invoke("launch", "codex")
    assert refused.exit_code == 2
    assert "npm install -g @openai/codex" in refused.stderr
    assert "Zed's settings" in invoke("launch", "zed").stdout


def test_the_model_in_memory_is_preferred_and_another_can_be_named(
    invoke: Invoke, daemon: FakeDaemon, started: list[Any]
) -> None:
    daemon.models = {name: listing(name) for name in ("one", "two")}
    daemon.running = [running("two")]
    assert "-m ollama/two" in invoke("launch", "--print", "llm").stdout
    assert "-m ollama/one" in invoke("launch", "--print", "llm", "--model", "one").stdout
    daemon.running = []
    assert "choose another with --model: two" in invoke("launch", "--print", "llm").stderr
    daemon.models = {}
    assert invoke("launch", "--print", "llm").exit_code == 4


def test_keys_reach_a_process_but_the_local_one_is_never_shown_or_stored(
    invoke: Invoke, daemon: FakeDaemon, started: list[Any], home: Path
) -> None:
    daemon.models = {"tiny": listing("tiny")}
    KeyFile(home / "keys.json").add("someone")
    (home / "run").mkdir(parents=True)
    with local_key(home / "run" / "local.key") as secret:
        invoke("launch", "claude")
        assert started[0][2]["ANTHROPIC_AUTH_TOKEN"] == secret
        for arguments in (("--print", "claude"), ("--json", "claude"), ("pi",)):
            refused = invoke("launch", *arguments)
            assert refused.exit_code == 2
            assert "OSTINATO_API_KEY" in refused.stderr
            assert secret not in refused.output
        assert "ost_mine" in invoke("launch", "--print", "claude", OSTINATO_API_KEY="ost_mine").stdout
