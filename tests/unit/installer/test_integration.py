"""What reaches into the user's session: the service, completion, a daemon that runs on through an upgrade."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ostinatod import locations
from ostinatod.installer import integration
from ostinatod.installer.owned_paths import owned_paths
from ostinatod.service.plan import ServicePlan
from ostinatod.service.systemd import Systemd
from ostinatod.shell_files import install_script
from tests.conftest import eventually
from tests.fakes.service_tools import ServiceTools, install_service_tools

OWN_PROGRAM = Path(sys.prefix) / "bin" / "ostinato"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServiceTools:
    tools = install_service_tools(tmp_path / "tools")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("OSTINATO_HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "OSTINATO_ENGINE_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tools.root}{os.pathsep}{os.environ['PATH']}")
    return tools


@pytest.fixture
def systemd(tools: ServiceTools) -> Systemd:
    return Systemd(Path(os.environ["HOME"]) / ".config")


@pytest.fixture
def daemon(tools: ServiceTools) -> Iterator[psutil.Process]:
    """A program of this environment that the pid file names."""
    python = Path(sys.prefix) / "bin" / "python"
    with subprocess.Popen([python, "-c", "import time; time.sleep(60)"]) as process:
        locations.pid_file().parent.mkdir(parents=True)
        locations.pid_file().write_text(f"{process.pid}\n")
        found = psutil.Process(process.pid)
        eventually(found.cmdline, "the program has its arguments")
        yield found
        process.kill()


def test_the_service_and_completion_are_told_to_the_uninstaller(systemd: Systemd, tmp_path: Path) -> None:
    assert owned_paths()["integration"] == []
    systemd.install(ServicePlan(OWN_PROGRAM, {}, tmp_path))
    script, _ = install_script("bash", "x")
    assert owned_paths()["integration"] == sorted([str(systemd.file), str(script)])


def test_withdrawing_ends_and_removes_exactly_that(systemd: Systemd, tools: ServiceTools, tmp_path: Path) -> None:
    systemd.install(ServicePlan(OWN_PROGRAM, {}, tmp_path))
    install_script("fish", "x")
    (tmp_path / "user" / ".bashrc").write_text("mine")
    done = integration.withdraw()
    assert len(done) == 2
    assert "disable --now ostinato.service" in tools.asked()
    assert [path.name for path in (tmp_path / "user").rglob("*") if not path.is_dir()] == [".bashrc"]
    assert integration.withdraw() == []


def test_another_checkouts_service_stays(systemd: Systemd, tools: ServiceTools, tmp_path: Path) -> None:
    systemd.install(ServicePlan(Path("/other/.venv/bin/ostinato"), {}, tmp_path))
    assert integration.own_service() is None
    assert integration.withdraw() == []
    assert systemd.file.exists()


def test_a_running_daemon_is_ended_in_order(daemon: psutil.Process) -> None:
    assert integration.withdraw() == [f"stopped the daemon (pid {daemon.pid})"]
    assert not daemon.is_running() or daemon.status() == psutil.STATUS_ZOMBIE


def test_another_programs_pid_is_left_alone(tools: ServiceTools, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        locations.pid_file().parent.mkdir(parents=True)
        locations.pid_file().write_text(f"{process.pid}\n")
        assert integration.running_daemon() is None
        assert integration.withdraw() == []
        assert process.poll() is None
        process.kill()
    locations.pid_file().write_text("nonsense\n")
    assert integration.running_daemon() is None


def test_an_upgrade_under_a_running_daemon_says_how_to_restart_it(
    daemon: psutil.Process, systemd: Systemd, tools: ServiceTools, tmp_path: Path
) -> None:
    source = tmp_path / "module.py"
    source.touch()
    os.utime(source, (time.time() - 3600, time.time() - 3600))
    assert integration.restart_advice([source, tmp_path / "missing"]) is None
    os.utime(source, (time.time() + 5, time.time() + 5))
    advice = integration.restart_advice([source])
    assert advice is not None
    assert f"pid {daemon.pid}" in advice
    assert advice.endswith("ostinato stop --daemon")
    systemd.install(ServicePlan(OWN_PROGRAM, {}, tmp_path))
    assert (integration.restart_advice([source]) or "").endswith("ostinato service restart")


def test_without_a_daemon_an_upgrade_has_nothing_to_say(tools: ServiceTools, tmp_path: Path) -> None:
    (tmp_path / "module.py").touch()
    assert integration.restart_advice([tmp_path / "module.py"]) is None


def test_every_file_that_has_a_location_is_told_to_the_uninstaller(tools: ServiceTools) -> None:
    """In a folder that the user named, where only what is known may be removed."""
    files = [find() for name, find in vars(locations).items() if name.endswith("_file") and not name.startswith("_")]
    kept = locations.data_dir() / "thesis.txt"
    for file in [*files, kept]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    locations.residency_dir().mkdir()
    owned = owned_paths()
    told = {*owned["builds"], *owned["data"]}
    assert {str(file) for file in files} <= told
    assert str(locations.residency_dir()) in told
    assert not {str(kept), str(locations.data_dir())} & told
