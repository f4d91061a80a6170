from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ostinatod import locations
from ostinatod.cli.launch import ensure_daemon
from ostinatod.client import DaemonClient
from ostinatod.config import Settings
from ostinatod.errors import ConfigError, DaemonUnreachable
from tests.conftest import PATIENCE_S, free_port
from tests.fakes import daemon as fake
from tests.fakes.daemon import FakeDaemon


@pytest.mark.usefixtures("home")
def test_a_missing_daemon_is_started_and_outlives_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(port=free_port())
    with DaemonClient(settings.base_url) as client:
        process = ensure_daemon(client, settings, (sys.executable, str(fake.__file__), str(settings.port)))
        assert process is not None
        assert process.poll() is None
        assert client.is_up()
        client.shutdown()
    assert process.wait(PATIENCE_S) == 0
    assert str(locations.log_dir() / "daemon.log") in capsys.readouterr().err


@pytest.mark.usefixtures("home")
def test_a_running_daemon_is_used(daemon: FakeDaemon) -> None:
    settings = Settings(port=daemon.port)
    with DaemonClient(settings.base_url) as client:
        assert ensure_daemon(client, settings, ("/nonexistent",)) is None
    assert not locations.log_dir().exists()


@pytest.mark.usefixtures("home")
def test_a_daemon_that_ends_is_reported_with_the_end_of_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinatod.cli.launch._RIVAL_WAIT_S", 0.2)
    settings = Settings(port=free_port())
    told = "print(os.getcwd(), os.environ['OSTINATO_HOME'], flush=True)"
    program = f"import os; {told}; raise SystemExit('no \\x1b[31mmemory')"
    home = locations.data_dir()
    monkeypatch.chdir(home.parent)
    monkeypatch.setenv("OSTINATO_HOME", home.name)
    with DaemonClient(settings.base_url) as client, pytest.raises(DaemonUnreachable) as caught:
        ensure_daemon(client, settings, (sys.executable, "-c", program))
    # The daemon stands in its log directory, and a relative path in the environment still means the same place.
    assert caught.value.message.splitlines()[-2:] == [f"  {home / 'logs'} {home}", "  no \x1b[31mmemory"]
    assert caught.value.hint == f"See its log: {home / 'logs' / 'daemon.log'}"
    assert (home / "logs" / "daemon.log").stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_written_is_a_setting_error(home: Path) -> None:
    home.touch()
    settings = Settings(port=free_port())
    with DaemonClient(settings.base_url) as client, pytest.raises(ConfigError, match="cannot write the daemon's log"):
        ensure_daemon(client, settings, ("/nonexistent",))


def test_no_daemon_is_started_for_another_machine(home: Path) -> None:
    settings = Settings(host="192.0.2.1", port=1)
    with DaemonClient("http://127.0.0.1:1") as client, pytest.raises(DaemonUnreachable, match="no daemon answers"):
        ensure_daemon(client, settings, ("/nonexistent",))
    assert not home.exists()
