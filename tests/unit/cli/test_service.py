from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ostinatod.cli import service as commands
from tests.conftest import free_port
from tests.fakes.daemon import FakeDaemon
from tests.fakes.service_tools import ServiceTools, install_service_tools
from tests.unit.cli.conftest import Invoke


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServiceTools:
    tools = install_service_tools(tmp_path / "tools")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tools.root}{os.pathsep}{os.environ['PATH']}")
    return tools


def test_a_daemon_of_somebody_elses_is_not_pushed_aside(invoke: Invoke, tools: ServiceTools) -> None:
    result = invoke("service", "install")
    assert result.exit_code == 2
    assert "ostinato stop --daemon" in result.stderr
    assert tools.asked() == []


def test_the_service_is_installed_told_of_and_removed(
    invoke: Invoke, tools: ServiceTools, daemon: FakeDaemon, tmp_path: Path
) -> None:
    tools.set("active")  # the daemon that answers is the service's own
    told = json.loads(invoke("service", "install", "--json", OSTINATO_CONTEXT="4096").stdout)
    assert (told["kind"], told["installed"], told["changed"], told["answers"]) == ("systemd", True, True, True)
    unit = Path(told["file"])
    assert 'Environment="OSTINATO_CONTEXT=4096"' in unit.read_text()
    again = invoke("service", "install", OSTINATO_CONTEXT="4096")
    assert (again.exit_code, again.stdout) == (0, "")
    assert "already installed" in again.stderr
    assert "loginctl enable-linger" in again.stderr
    status = json.loads(invoke("service", "status", "--json").stdout)
    assert (status["active"], status["enabled"], status["survives_logout"]) == (True, True, False)
    assert json.loads(invoke("service", "restart", "--json").stdout)["answers"] is True
    assert json.loads(invoke("service", "uninstall", "--json").stdout) == {"removed": [str(unit)]}
    assert invoke("service", "uninstall").stderr == "The service is not installed.\n"


def test_a_service_that_does_not_come_up_is_an_error_that_says_where_to_look(
    invoke: Invoke, tools: ServiceTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_START_TIMEOUT_S", 0.1)
    result = invoke("service", "install", OSTINATO_HOST=f"127.0.0.1:{free_port()}")
    assert (result.exit_code, "ostinato logs daemon" in result.stderr) == (3, True)


def test_a_machine_without_systemd_is_told_so(invoke: Invoke, tools: ServiceTools) -> None:
    tools.set("no-bus")
    nobody = {"OSTINATO_HOST": f"127.0.0.1:{free_port()}"}
    result = invoke("service", "install", **nobody)
    assert (result.exit_code, "does not run for this user" in result.stderr) == (1, True)
    status = json.loads(invoke("service", "status", "--json").stdout)
    assert (status["installed"], status["active"]) == (False, False)
    assert invoke("service", "uninstall").exit_code == 0
    assert invoke("service", "restart").exit_code == 1
