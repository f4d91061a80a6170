from __future__ import annotations

import os
import plistlib
from pathlib import Path

import pytest

from ostinatod.errors import ConfigError, ServiceError
from ostinatod.service.launchd import Launchd
from ostinatod.service.launchd_agent import LABEL, agent_plist
from ostinatod.service.plan import STOP_TIMEOUT_S, ServicePlan
from tests.fakes.service_tools import ServiceTools


@pytest.fixture
def launchd(tools: ServiceTools) -> Launchd:
    return Launchd(Path(os.environ["HOME"]))


def test_the_agent_says_what_the_plan_says(plan: ServicePlan) -> None:
    agent = plistlib.loads(agent_plist(plan))
    assert agent["Label"] == LABEL
    assert agent["ProgramArguments"] == ["/opt/ost inato/bin/ostinato", "serve"]
    assert agent["EnvironmentVariables"] == {"OSTINATO_HOME": "/data/100%"}
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    assert agent["ExitTimeOut"] == STOP_TIMEOUT_S
    assert agent["StandardErrorPath"] == str(plan.log_dir / "daemon.log")


def test_installing_is_idempotent_and_uninstalling_complete(
    launchd: Launchd, tools: ServiceTools, plan: ServicePlan
) -> None:
    domain = f"gui/{os.getuid()}"
    assert launchd.install(plan) is True
    assert plan.log_dir.is_dir()
    assert launchd.install(plan) is False
    changed = ServicePlan(plan.program, {}, plan.log_dir)
    assert launchd.install(changed) is True
    assert launchd.state().active
    assert tools.asked() == [
        f"bootstrap {domain} {launchd.file}",
        f"kickstart {domain}/{LABEL}",
        f"bootout {domain}/{LABEL}",
        f"bootstrap {domain} {launchd.file}",
    ]
    assert launchd.uninstall() == [launchd.file]
    assert launchd.uninstall() == []
    assert not launchd.state().installed


def test_somebody_elses_agent_is_neither_replaced_nor_removed(launchd: Launchd, plan: ServicePlan) -> None:
    launchd.file.parent.mkdir(parents=True)
    launchd.file.write_bytes(plistlib.dumps({"Label": LABEL}))
    for attempt in (lambda: launchd.install(plan), launchd.uninstall):
        with pytest.raises(ConfigError, match="not written by this program"):
            attempt()
    assert launchd.file.exists()


def test_restart_replaces_the_running_daemon(launchd: Launchd, tools: ServiceTools, plan: ServicePlan) -> None:
    with pytest.raises(ServiceError, match="not installed"):
        launchd.restart()
    launchd.install(plan)
    launchd.restart()
    assert tools.asked()[-1] == f"kickstart -k gui/{os.getuid()}/{LABEL}"


def test_a_machine_without_launchctl_says_so(
    launchd: Launchd, plan: ServicePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ServiceError, match="launchctl bootstrap"):
        launchd.install(plan)
