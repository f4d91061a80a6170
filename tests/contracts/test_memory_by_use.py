"""The engine's account of its memory and the dashboard's reader use the same names, field by field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ostinatod import locations
from ostinatod.client_dashboard import DashboardClient, Wanted
from ostinatod.client_dashboard_values import HOST_USES, USES
from ostinatod.installer.engine_build import EngineBuild
from tests.conftest import StartDaemon
from tests.fakes import dashboard_states as states

SOURCE = Path(__file__).parents[2] / "kernels_patch" / "overlay" / "ostinato" / "server-routes.cpp"
NOT_TOLD = {"margin"}
"""A use of the memory plan that no engine tells yet; a daemon that does is understood."""


def names_in(function: str, list_name: str) -> set[str]:
    """The keys that the C++ source puts into a list of objects in one of its functions."""
    body = SOURCE.read_text(encoding="utf-8").split(f"static json {function}(")[1].split("\n}\n")[0]
    entry = body.split(f"{list_name}.push_back({{")[1].split("});")[0]
    return set(re.findall(r'\{ "(\w+)",', entry))


def test_every_figure_of_a_gpu_that_the_engine_tells_is_read() -> None:
    told = names_in("describe_memory", "gpus")
    assert told == {"name", "total_bytes", "free_bytes"} | {f"{use}_bytes" for use in USES if use not in NOT_TOLD}


def test_the_canned_gpus_of_the_tests_tell_only_what_engines_tell() -> None:
    (big, _) = states.gpu()["/ostinato/status"]["models"]
    allowed = names_in("describe_memory", "gpus") | {f"{use}_bytes" for use in NOT_TOLD}
    assert {name for device in big["engine"]["memory"]["devices"] for name in device} <= allowed
    assert {name for device in big["engine"]["devices"] for name in device} <= names_in("describe_devices", "out")


@pytest.mark.engine
def test_a_real_engine_tells_its_host_memory_under_the_names_that_are_read(
    engine_build: EngineBuild, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon(locations.engine_cache_dir())
    daemon.http.post("/ostinato/load", json={"model": "tiny"}).raise_for_status()
    memory = daemon.http.get("/ostinato/status").json()["models"][0]["engine"]["memory"]
    assert set(memory["host"]) == {f"{use}_bytes" for use in HOST_USES}
    with DashboardClient(daemon.url) as client:
        (model,) = client.read(Wanted(frozenset())).daemon.models
    assert dict(model.host_bytes) == {use: memory["host"][f"{use}_bytes"] for use in HOST_USES}
    assert dict(model.host_bytes)["weights"] > 30_000_000
    assert len(model.devices) == len(memory["devices"])
