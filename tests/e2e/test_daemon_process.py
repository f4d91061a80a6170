"""The daemon as a process, with a scripted engine: binding, signals, and what is left behind."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from ostinatod.config import Settings
from ostinatod.errors import ConfigError
from ostinatod.serve import serve
from tests.conftest import RunningDaemon, StartDaemon, eventually, free_port, processes_in_group


@pytest.fixture
def daemon(start_daemon: StartDaemon, scripted_engine_cache: Path) -> RunningDaemon:
    return start_daemon(scripted_engine_cache)


def chat(daemon: RunningDaemon, text: str) -> httpx.Response:
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "stream": True}
    return daemon.http.post("/v1/chat/completions", json=body)


def engine_pid(daemon: RunningDaemon) -> int:
    return int(daemon.http.get("/ostinato/status").json()["models"][0]["pid"])


def test_where_it_listens_and_whether_it_asks_for_keys_is_told_at_the_start(daemon: RunningDaemon) -> None:
    assert f"url={daemon.url} keys=none" in (daemon.home / "output").read_text()


def test_being_told_to_stop_finishes_answers_and_leaves_nothing(daemon: RunningDaemon) -> None:
    assert (daemon.home / "run" / "ostinatod.pid").read_text() == f"{daemon.process.pid}\n"
    assert (daemon.home / "run").stat().st_mode & 0o777 == 0o700
    chat(daemon, "warm")
    group = engine_pid(daemon)
    with ThreadPoolExecutor(1) as pool:
        answering = pool.submit(chat, daemon, "!count 30")
        eventually(lambda: daemon.http.get("/ostinato/status").json()["models"][0]["in_flight"], "an answer is written")
        daemon.process.send_signal(signal.SIGTERM)
        assert answering.result().text.endswith("data: [DONE]\n\n")
    assert daemon.process.wait(20) == 0
    assert processes_in_group(group) == []
    assert list((daemon.home / "run").iterdir()) == []
    assert "daemon_stopped" in (daemon.home / "logs" / "ostinatod.log").read_text()


def test_a_shutdown_request_stops_the_daemon(daemon: RunningDaemon) -> None:
    assert daemon.http.post("/ostinato/shutdown", json={}).is_success
    assert daemon.process.wait(20) == 0


def test_a_killed_daemon_leaves_no_engine_even_while_it_loads(
    start_daemon: StartDaemon, scripted_engine_cache: Path
) -> None:
    script = json.dumps({"load_s": 60, "stubborn": True})
    daemon = start_daemon(scripted_engine_cache, OSTINATO_SCRIPTED_ENGINE=script)
    with daemon.http.stream("POST", "/ostinato/load", json={"model": "tiny"}) as loading:
        next(loading.iter_lines())
        # What is told first may be that nothing is known yet.
        group = eventually(lambda: daemon.http.get("/ostinato/status").json()["models"][0]["pid"], "the engine runs")
        assert processes_in_group(group)
        daemon.process.kill()
    daemon.process.wait()
    eventually(lambda: processes_in_group(group) == [], "no engine is left", 5)


def test_a_port_in_use_names_its_owner_and_the_next_command(
    daemon: RunningDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSTINATO_HOME", str(tmp_path / "second"))
    port = httpx.URL(daemon.url).port or 0
    with pytest.raises(ConfigError, match=rf"port {port} is in use by .*\(pid {daemon.process.pid}") as refused:
        serve(Settings(port=port))
    assert f"OSTINATO_PORT={port + 1}" in str(refused.value.hint)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "box.example"])
def test_other_machines_are_kept_out(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="no API key") as refused:
        serve(Settings(host=host, port=free_port()))
    assert "ostinato keys add" in str(refused.value.hint)
    assert list(tmp_path.iterdir()) == []


def test_a_home_too_deep_for_sockets_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_HOME", str(tmp_path / ("d" * 100)))
    with pytest.raises(ConfigError, match="too long"):
        serve(Settings(port=free_port()))
    assert list(tmp_path.iterdir()) == []
