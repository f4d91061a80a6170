from __future__ import annotations

import os
import plistlib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ostinatod.errors import ConfigError, ServiceError
from ostinatod.service.launchd import Launchd
from ostinatod.service.launchd_agent import LABEL, agent_plist
from ostinatod.service.plan import STOP_TIMEOUT_S, ServicePlan
from tests.fakes.service_tools import ServiceTools


@pytest.fixture
def launchd(tools: ServiceTools) -> Launchd:
    return Launchd(Path(os.environ["HOME"]), poll_s=0.01)


# Of launchd.plist(5): the keys used here, and what they hold.
DOCUMENTED: dict[str, type] = {
    "Label": str,
    "ProgramArguments": list,
    "EnvironmentVariables": dict,
    "RunAtLoad": bool,
    "KeepAlive": dict,
    "ThrottleInterval": int,
    "ExitTimeOut": int,
    "ProcessType": str,
    "Umask": int,
    "SoftResourceLimits": dict,
    "StandardOutPath": str,
    "StandardErrorPath": str,
}
PLIST_ELEMENTS = {"plist", "dict", "array", "key", "string", "integer", "true", "false"}


def leaves(value: Any) -> list[Any]:
    """What lists and dictionaries hold at the bottom."""
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


def test_the_file_is_an_xml_property_list_of_documented_keys_only(plan: ServicePlan) -> None:
    content = agent_plist(plan)
    root = ElementTree.fromstring(content)
    assert (root.tag, root.attrib, len(root)) == ("plist", {"version": "1.0"}, 1)
    assert {element.tag for element in root.iter()} <= PLIST_ELEMENTS
    for dictionary in root.iter("dict"):
        assert [child.tag == "key" for child in dictionary] == [True, False] * (len(dictionary) // 2)
        names = [child.text for child in dictionary.iter("key")]
        assert len(names) == len(set(names))
    agent = plistlib.loads(content, fmt=plistlib.FMT_XML)
    assert {key: type(value) for key, value in agent.items()} == DOCUMENTED
    assert {type(leaf) for leaf in leaves(agent)} == {str, bool, int}
    assert plistlib.loads(plistlib.dumps(agent)) == agent
    assert agent["ProcessType"] in {"Background", "Standard", "Adaptive", "Interactive"}
    assert all(Path(agent[key]).is_absolute() for key in ("StandardOutPath", "StandardErrorPath"))
    assert Path(agent["ProgramArguments"][0]).is_absolute()


def test_letters_that_xml_reads_survive(tmp_path: Path) -> None:
    plan = ServicePlan(Path("/o&<t>/ostinato"), {"OSTINATO_HOME": "/d'\"&]]>/é"}, tmp_path)
    agent = plistlib.loads(agent_plist(plan))
    assert agent["ProgramArguments"][0] == "/o&<t>/ostinato"
    assert agent["EnvironmentVariables"] == {"OSTINATO_HOME": "/d'\"&]]>/é"}


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
    again = f"bootstrap {domain} {launchd.file}"
    begin = [again, f"kickstart {domain}/{LABEL}"]
    # The name of an agent that has ended is free only after a while.
    assert tools.asked() == [*begin, f"bootout {domain}/{LABEL}", again, *begin]
    assert launchd.uninstall() == [launchd.file]
    assert launchd.uninstall() == []
    assert not launchd.state().installed


@pytest.mark.parametrize("program", ["/a b/ostinato", "/a&b/ostinato", "/100%/$HOME/ostinato", '/"<q>\\/ostinato'])
def test_the_file_is_known_by_the_very_program_it_starts(
    launchd: Launchd, tools: ServiceTools, tmp_path: Path, program: str
) -> None:
    assert not launchd.starts(Path(program))
    launchd.install(ServicePlan(Path(program), {"OSTINATO_HOME": "/other/ostinato"}, tmp_path / "logs"))
    assert launchd.starts(Path(program))
    assert not any(launchd.starts(Path(other)) for other in (program[2:], program + "2", "/other/ostinato"))


def test_somebody_elses_agent_is_neither_replaced_nor_removed(launchd: Launchd, plan: ServicePlan) -> None:
    launchd.file.parent.mkdir(parents=True)
    launchd.file.write_bytes(plistlib.dumps({"Label": LABEL}))
    assert not launchd.starts(plan.program)
    for attempt in (lambda: launchd.install(plan), launchd.uninstall):
        with pytest.raises(ConfigError, match="not written by this program"):
            attempt()
    assert launchd.file.exists()


def test_a_restart_ends_the_daemon_in_order_before_it_starts_the_next(
    launchd: Launchd, tools: ServiceTools, plan: ServicePlan
) -> None:
    with pytest.raises(ServiceError, match="not installed"):
        launchd.restart()
    launchd.install(plan)
    launchd.restart()
    assert launchd.state().active
    assert not (tools.root / "killed").exists()


def test_uninstalling_waits_until_the_daemon_has_ended(
    launchd: Launchd, tools: ServiceTools, plan: ServicePlan
) -> None:
    launchd.install(plan)
    launchd.uninstall()
    assert not (tools.root / "active").exists()


def test_an_agent_that_ended_by_itself_is_started_by_the_next_install(
    launchd: Launchd, tools: ServiceTools, plan: ServicePlan
) -> None:
    launchd.install(plan)
    tools.set("idle")
    assert not launchd.state().active
    assert launchd.install(plan) is False
    assert launchd.state().active


def test_a_name_that_launchd_never_frees_is_an_error_with_its_words(
    launchd: Launchd, tools: ServiceTools, plan: ServicePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinatod.service.launchd._RELEASE_S", 0.05)
    tools.set("never-free")
    with pytest.raises(ServiceError, match="5: Input/output error"):
        launchd.install(plan)


def test_an_agent_that_does_not_end_is_an_error_and_keeps_its_file(
    launchd: Launchd, tools: ServiceTools, plan: ServicePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    launchd.install(plan)
    tools.set("stuck")
    monkeypatch.setattr("ostinatod.service.launchd._LEAVE_S", 0.05)
    with pytest.raises(ServiceError, match="did not end"):
        launchd.uninstall()
    assert launchd.file.exists()


def test_without_a_login_at_the_screen_the_error_says_how_to_go_without(
    launchd: Launchd, tools: ServiceTools, plan: ServicePlan
) -> None:
    tools.set("no-domain")
    with pytest.raises(ServiceError, match="125: Domain does not support") as caught:
        launchd.install(plan)
    assert caught.value.hint == "Run it yourself: ostinato serve"


def test_a_machine_without_launchctl_says_so(
    launchd: Launchd, plan: ServicePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ServiceError, match="launchctl bootstrap"):
        launchd.install(plan)
