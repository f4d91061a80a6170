"""`ostinato service` on a real systemd, from the first install to the last trace of it.

With OSTINATO_SYSTEMD=1, as root, in a minute and a half. Skipped, with the reason, where no manager can be started: see
`tests/optional/user_systemd.py`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ostinatod import locations
from ostinatod.installer.engine_build import EngineBuild
from tests.conftest import eventually, free_port
from tests.optional.user_systemd import HOME, USER_ID, UserSystemd

PROGRAM = Path(sys.executable).parent / "ostinato"
CHECKOUT = Path(__file__).parents[2]
UNIT = ".config/systemd/user/ostinato.service"
LINK = ".config/systemd/user/default.target.wants/ostinato.service"

LOCAL = (".local/share/ostinato/", ".local/state/ostinato/")
"""Where the daemon keeps data and logs, which stay."""

Ostinato = Callable[..., Any]


@pytest.fixture(scope="module")
def systemd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserSystemd]:
    if os.environ.get("OSTINATO_SYSTEMD") != "1":
        pytest.skip("a real systemd is started with OSTINATO_SYSTEMD=1")
    needs = [Path(sys.base_prefix), Path(sys.prefix), CHECKOUT]
    engines = locations.engine_cache_dir()
    with UserSystemd(tmp_path_factory.mktemp("systemd"), [*needs, *([engines] if engines.is_dir() else [])]) as manager:
        yield manager


@pytest.fixture
def port() -> str:
    return str(free_port())


@pytest.fixture
def ostinato(systemd: UserSystemd, port: str) -> Iterator[Ostinato]:
    """Runs `ostinato ... --json` as the user and reads what it prints; the service is gone afterwards."""

    def run(*words: str, **environment: str) -> Any:
        cache = str(locations.engine_cache_dir())
        done = systemd.run(PROGRAM, *words, "--json", OSTINATO_PORT=port, OSTINATO_ENGINE_CACHE=cache, **environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    yield run
    if UNIT in systemd.files():
        run("service", "uninstall")


def show(systemd: UserSystemd, name: str) -> str:
    return systemd.systemctl("show", "--property", name, "--value", "ostinato.service")


def setting(systemd: UserSystemd, name: str) -> str | None:
    """A variable of the running daemon."""
    told = systemd.run("cat", f"/proc/{show(systemd, 'MainPID')}/environ").stdout.split("\0")
    return next((value for key, _, value in (entry.partition("=") for entry in told) if key == name), None)


def is_answering(port: str) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").is_success
    except httpx.HTTPError:
        return False


def test_uninstall_leaves_nothing_of_what_install_made(systemd: UserSystemd, ostinato: Ostinato) -> None:
    before = systemd.files()
    installed = ostinato("service", "install")
    assert (installed["changed"], installed["answers"], installed["active"], installed["enabled"]) == (True,) * 4
    assert installed["detail"] == "active, enabled"
    assert {path for path in systemd.files() - before if not path.startswith(LOCAL)} == {UNIT, LINK}

    removed = ostinato("service", "uninstall")["removed"]
    assert {Path(path).relative_to(HOME).as_posix() for path in removed} <= {UNIT, LINK}
    assert {path for path in systemd.files() - before if not path.startswith(LOCAL)} == set()
    assert show(systemd, "LoadState") == "not-found"
    assert systemd.systemctl("list-units", "--failed", "--no-legend") == ""
    assert systemd.processes("ostinato serve") == []
    state = ostinato("service", "status")
    assert (state["installed"], state["enabled"], state["active"]) == (False, False, False)


def test_installing_again_restarts_the_daemon_only_for_a_change(systemd: UserSystemd, ostinato: Ostinato) -> None:
    ostinato("service", "install")
    first = show(systemd, "MainPID")
    assert ostinato("service", "install")["changed"] is False
    assert show(systemd, "MainPID") == first
    assert ostinato("service", "install", OSTINATO_KEEP_ALIVE="7m")["changed"] is True
    second = show(systemd, "MainPID")
    assert second != first
    assert setting(systemd, "OSTINATO_KEEP_ALIVE") == "7m"


def test_a_killed_daemon_comes_back_and_one_with_a_wrong_setting_stays_down(
    systemd: UserSystemd, ostinato: Ostinato, port: str
) -> None:
    ostinato("service", "install")
    first = show(systemd, "MainPID")
    systemd.run("kill", f"-{signal.SIGKILL.value}", first)
    eventually(lambda: show(systemd, "NRestarts") == "1", "another start", every_s=0.5)
    eventually(lambda: is_answering(port), "an answer", every_s=0.2)

    systemd.run("sh", "-c", "mkdir -p .config/ostinato && echo 'port = \"no port\"' > .config/ostinato/config.toml")
    systemd.systemctl("restart", "ostinato.service")
    eventually(lambda: show(systemd, "ActiveState") == "failed", "the end", every_s=0.5)
    assert show(systemd, "ExecMainStatus") == "2"
    assert show(systemd, "NRestarts") == "0"
    systemd.run("rm", "-r", ".config/ostinato")


@pytest.mark.engine
def test_an_engine_answers_with_the_privileges_that_the_unit_leaves(
    systemd: UserSystemd, ostinato: Ostinato, engine_build: EngineBuild
) -> None:
    ostinato("service", "install")
    answer = ostinato("run", "tiny", "Hello", "--max-tokens", "4")
    assert answer["usage"]["completion_tokens"] > 0
    (engine,) = [model["pid"] for model in ostinato("status")["models"]]
    for pid in (show(systemd, "MainPID"), str(engine)):
        lines = systemd.run("cat", f"/proc/{pid}/status").stdout.splitlines()
        told = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        assert (told["NoNewPrivs"], told["Seccomp"]) == ("1", "2")
        assert told["Uid"].split()[0] == str(USER_ID)
