from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinatod.errors import ConfigError, ServiceError
from ostinatod.service.host import find_host
from ostinatod.service.plan import ServicePlan
from ostinatod.service.systemd import Systemd
from ostinatod.service.systemd_unit import UNIT_NAME, quoted, quoted_argument, unit_text
from tests.fakes.service_tools import ServiceTools


@pytest.fixture
def systemd(tools: ServiceTools) -> Systemd:
    return Systemd(Path(os.environ["HOME"]) / ".config")


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not on this machine")
    program = tmp_path / "o s" / "ostinato"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    plan = ServicePlan(program, {"OSTINATO_ENGINE_ARGS": '--flag "a b" 50% $HOME \\n'}, tmp_path)
    unit = tmp_path / UNIT_NAME
    unit.write_text(unit_text(plan))
    done = subprocess.run(
        [analyze, "verify", "--user", "--man=no", "--recursive-errors=no", unit], capture_output=True, text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_does_find_what_is_wrong_with_a_unit(tmp_path: Path) -> None:
    """The check above can fail: a missing program and an unknown setting are told."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not on this machine")
    unit = tmp_path / UNIT_NAME
    text = unit_text(ServicePlan(tmp_path / "missing", {}, tmp_path))
    unit.write_text(text.replace("KillMode=mixed", "KillMode=mixed\nNoSuchSetting=1"))
    command = [analyze, "verify", "--user", "--man=no", "--recursive-errors=no", unit]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)})
    assert "NoSuchSetting" in done.stderr
    assert "missing" in done.stderr


def test_the_unit_lets_memory_be_locked_and_gpus_be_opened(plan: ServicePlan) -> None:
    lines = unit_text(plan).splitlines()
    assert "LimitMEMLOCK=infinity" in lines
    assert "NoNewPrivileges=yes" in lines
    # Each of these hides devices or drops the groups that may open them, or forbids code that CUDA compiles.
    for hostile in ("PrivateDevices", "PrivateUsers", "DevicePolicy", "ProtectSystem", "MemoryDenyWriteExecute"):
        assert not any(line.startswith(hostile) for line in lines)
    refused = next(line for line in lines if line.startswith("SystemCallFilter="))
    assert not {"@memlock", "@resources", "@system-service", "@default"} & set(refused.split())


def test_stopping_leaves_time_to_drain(plan: ServicePlan) -> None:
    from ostinatod.serve import DRAIN_S

    lines = dict(line.split("=", 1) for line in unit_text(plan).splitlines() if "=" in line)
    assert int(lines["TimeoutStopSec"]) > DRAIN_S
    assert lines["KillMode"] == "mixed"  # SIGTERM to the daemon only, which ends its engines itself


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1))
def test_a_quoted_word_reads_back_as_it_was(text: str) -> None:
    def read_back(word: str) -> str:
        """systemd's reading of a word in double quotes: C escapes, then specifiers, each of which is one per cent."""
        inner = word[1:-1]
        out, at = [], 0
        while at < len(inner):
            if inner[at] == "\\":
                at += 1
            else:
                assert inner[at] != '"'
            out.append(inner[at])
            at += 1
        return "".join(out).replace("%%", "%")

    assert read_back(quoted(text)) == text
    assert read_back(quoted_argument(text)).replace("$$", "$") == text


def test_installing_writes_enables_and_starts(systemd: Systemd, tools: ServiceTools, plan: ServicePlan) -> None:
    assert systemd.install(plan) is True
    assert systemd.file.read_text() == unit_text(plan)
    assert tools.asked() == [
        "daemon-reload",
        f"enable {UNIT_NAME}",
        f"reset-failed {UNIT_NAME}",
        f"restart {UNIT_NAME}",
    ]
    state = systemd.state()
    assert (state.installed, state.enabled, state.active, state.survives_logout) == (True, True, True, False)
    tools.set("linger")
    assert systemd.state().survives_logout is True


def test_installing_again_changes_nothing_and_restarts_nothing(
    systemd: Systemd, tools: ServiceTools, plan: ServicePlan
) -> None:
    systemd.install(plan)
    before = systemd.file.stat().st_mtime_ns
    assert systemd.install(plan) is False
    assert systemd.file.stat().st_mtime_ns == before
    assert tools.asked()[-1] == f"start {UNIT_NAME}"


def test_uninstalling_leaves_nothing_that_installing_made(
    systemd: Systemd, tools: ServiceTools, plan: ServicePlan
) -> None:
    other = systemd.file.with_name("other.service")
    other.parent.mkdir(parents=True)
    other.write_text("mine")
    systemd.install(plan)
    assert systemd.uninstall() == [systemd.file]
    assert [path for path in systemd.file.parent.rglob("*") if not path.is_dir()] == [other]
    assert systemd.state().installed is False
    assert systemd.uninstall() == []


def test_uninstalling_works_when_systemd_no_longer_runs(
    systemd: Systemd, tools: ServiceTools, plan: ServicePlan
) -> None:
    systemd.install(plan)
    link = systemd.file.parent / "default.target.wants" / UNIT_NAME
    tools.set("no-bus")
    assert systemd.uninstall() == [link, systemd.file]
    assert not link.is_symlink()


@pytest.mark.parametrize("program", ["/a b/ostinato", "/a&b/ostinato", "/100%/$HOME/ostinato", '/"<q>\\/ostinato'])
def test_the_file_is_known_by_the_very_program_it_starts(
    systemd: Systemd, tools: ServiceTools, tmp_path: Path, program: str
) -> None:
    assert not systemd.starts(Path(program))
    systemd.install(ServicePlan(Path(program), {"OSTINATO_HOME": "/other/ostinato"}, tmp_path / "logs"))
    assert systemd.starts(Path(program))
    assert not any(systemd.starts(Path(other)) for other in (program[2:], program + "2", "/other/ostinato"))


def test_somebody_elses_unit_is_neither_replaced_nor_removed(systemd: Systemd, plan: ServicePlan) -> None:
    systemd.file.parent.mkdir(parents=True)
    systemd.file.write_text("[Service]\nExecStart=/mine\n")
    for attempt in (lambda: systemd.install(plan), systemd.uninstall):
        with pytest.raises(ConfigError, match="not written by this program"):
            attempt()
    assert systemd.file.read_text() == "[Service]\nExecStart=/mine\n"
    assert systemd.state().installed is False


def test_a_machine_without_systemd_is_told_so_and_nothing_is_written(
    systemd: Systemd, tools: ServiceTools, plan: ServicePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools.set("no-bus")
    with pytest.raises(ServiceError, match="does not run for this user") as caught:
        systemd.install(plan)
    assert "ostinato serve" in (caught.value.hint or "")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ServiceError, match="no systemd"):
        systemd.install(plan)
    assert systemd.state().detail == "this machine has no systemd"
    assert not systemd.file.parent.exists()


def test_a_refused_start_says_where_the_reason_is(systemd: Systemd, tools: ServiceTools, plan: ServicePlan) -> None:
    tools.set("refuse")
    with pytest.raises(ServiceError, match=r"Job for ostinato\.service failed") as caught:
        systemd.install(plan)
    assert "journalctl" in (caught.value.hint or "")


def test_restart_needs_an_installed_service(systemd: Systemd, tools: ServiceTools, plan: ServicePlan) -> None:
    with pytest.raises(ServiceError, match="not installed"):
        systemd.restart()
    systemd.install(plan)
    systemd.restart()
    assert tools.asked()[-1] == f"restart {UNIT_NAME}"


def test_the_host_is_chosen_by_the_platform(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path)}
    assert find_host(environment, "linux").file == tmp_path / ".config/systemd/user/ostinato.service"
    assert find_host({**environment, "XDG_CONFIG_HOME": "/c"}, "linux").file == Path("/c/systemd/user/ostinato.service")
    assert find_host(environment, "darwin").file == tmp_path / "Library/LaunchAgents/ostinato.daemon.plist"
    with pytest.raises(ServiceError, match="freebsd"):
        find_host(environment, "freebsd14")
