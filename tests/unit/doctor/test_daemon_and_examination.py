from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ostinatod.client import DaemonClient
from ostinatod.config import Settings
from ostinatod.doctor import daemon_checks, examination, machine_checks
from ostinatod.doctor.examination import examine
from ostinatod.doctor.findings import Finding
from ostinatod.errors import ConfigError
from ostinatod.listeners import Listener, listener_on
from tests.conftest import free_port
from tests.fakes.daemon import FakeDaemon
from tests.unit.cli.conftest import Invoke, daemon, home, invoke

__all__ = ["daemon", "home", "invoke"]

PAGE = Path(__file__).parents[3] / "docs" / "troubleshooting.md"


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_taken_port_says_by_whom(taken_port: int) -> None:
    settings = Settings(port=taken_port)
    found = daemon_checks.check_port(settings, listener_on, daemon_answers=False)
    assert found.level == "problem"
    assert "(pid " in found.found
    assert f"OSTINATO_PORT={taken_port + 1}" in (found.hint or "")
    unseen = daemon_checks.check_port(settings, lambda port: None, daemon_answers=False)
    assert "in use" in unseen.found
    assert daemon_checks.check_port(settings, listener_on, daemon_answers=True).level == "ok"
    assert daemon_checks.check_port(Settings(port=free_port()), listener_on, daemon_answers=False).level == "ok"


def test_the_listener_on_a_port_is_named(taken_port: int) -> None:
    found = listener_on(taken_port)
    assert isinstance(found, Listener)
    assert str(found).startswith(f"{found.name} (pid {found.pid}, ")
    assert listener_on(free_port()) is None


def test_an_address_that_is_not_this_machines_is_a_problem() -> None:
    found = daemon_checks.check_port(Settings(host="192.0.2.1", port=free_port()), listener_on, daemon_answers=False)
    assert (found.level, "assign requested address" in found.found) == ("problem", True)


def test_settings_that_cannot_be_read_are_a_problem_and_the_defaults_stand_in() -> None:
    def load() -> Settings:
        raise ConfigError("the environment: OSTINATO_PORT: 'x' is out of range")

    settings, found = daemon_checks.read_settings(load)
    assert settings == Settings()
    assert (found.level, "OSTINATO_PORT" in found.found) == ("problem", True)


def test_a_daemon_of_another_version_is_a_problem(daemon: FakeDaemon) -> None:
    with DaemonClient(daemon.url) as client:
        assert daemon_checks.check_daemon(client, "0.1.0")[0].level == "ok"
        found, answers = daemon_checks.check_daemon(client, "0.2.0")
        assert (found.level, answers) == ("problem", True)
        assert "ostinato service restart" in (found.hint or "")
        daemon.errors["/api/version"] = (500, {"error": "broken"})
        assert daemon_checks.check_daemon(client, "0.1.0")[0].found == "broken"


def test_no_daemon_is_no_fault_and_a_stranger_is(daemon: FakeDaemon) -> None:
    with DaemonClient(f"http://127.0.0.1:{free_port()}") as client:
        found, answers = daemon_checks.check_daemon(client, "0.1.0")
        assert (found.level, answers) == ("skipped", False)
    daemon.errors["/health"] = (404, {"error": "what?"})
    with DaemonClient(daemon.url) as client:
        found, answers = daemon_checks.check_daemon(client, "0.1.0")
        assert (found.level, answers) == ("problem", False)


def test_every_finding_that_is_not_in_order_says_the_next_command(home: Path) -> None:
    findings = list(examine(Settings))
    assert len({finding.check for finding in findings}) == len(findings)
    for finding in findings:
        assert bool(finding.hint) == (finding.level in ("warning", "problem")), finding


def test_a_check_that_fails_itself_is_a_finding_and_all_others_are_made(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [finding.check for finding in examine(Settings)]

    def explode(*arguments: object, **named: object) -> Finding:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(machine_checks, "check_memory_lock", explode)
    monkeypatch.setattr(examination, "find_engine", explode)
    findings = {finding.check: finding for finding in examine(Settings)}
    assert list(findings) == names
    failed = [check for check, finding in findings.items() if "RuntimeError: no such luck" in finding.found]
    assert failed == ["engine", "compiler", "gpu", "memory-lock"]
    assert all(findings[check].level == "problem" for check in failed)


def test_every_check_is_a_heading_of_the_page_and_every_heading_a_check(home: Path) -> None:
    checks = [finding.check for finding in examine(Settings)]
    assert re.findall(r"^### `([a-z-]+)`$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE) == checks


def test_doctor_ends_with_one_for_a_problem_and_tells_programs_all(invoke: Invoke, home: Path) -> None:
    result = invoke("doctor", "--json", OSTINATO_ENGINE_CACHE=str(home / "no-engine"))
    told = json.loads(result.stdout)
    assert result.exit_code == 1
    assert list(told) == ["ok", "problems", "warnings", "findings"]
    assert (told["ok"], result.stderr) == (False, "")
    engine = next(finding for finding in told["findings"] if finding["check"] == "engine")
    assert list(engine) == ["check", "level", "found", "hint"]
    assert engine["hint"] == "Build it: ostinato engine build"


def test_doctor_ends_with_zero_where_nothing_will_fail(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [
        Finding("a", "ok", "fine \x1b[2J"),
        Finding("b", "warning", "so so", "Do it"),
        Finding("c", "skipped", "-"),
    ]
    monkeypatch.setattr(examination, "examine", lambda load: iter(findings))
    result = invoke("doctor")
    assert (result.exit_code, result.stderr) == (
        0,
        "1 warning, explained in docs/troubleshooting.md\n",
    )
    assert result.stdout.splitlines() == [
        "ok    a             fine [2J",
        "!     b             so so",
        "                    Do it",
    ]
    assert len(invoke("doctor", "--all").stdout.splitlines()) == 4
    monkeypatch.setattr(examination, "examine", lambda load: iter(findings[:1]))
    assert invoke("doctor").stderr == "Everything is in order.\n"


def test_doctor_survives_settings_that_cannot_be_read(invoke: Invoke) -> None:
    result = invoke("doctor", "--json", OSTINATO_THREADS="many")
    settings = next(finding for finding in json.loads(result.stdout)["findings"] if finding["check"] == "settings")
    assert (result.exit_code, settings["level"]) == (1, "problem")


def test_doctor_says_how_to_mend_an_installation_that_it_cannot_even_load(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ostinatod.doctor.examination", None)
    result = invoke("doctor")
    assert result.exit_code == 2
    assert "a package is missing" in result.stderr
    assert "python3 installer" in result.stderr
