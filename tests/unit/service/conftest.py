from __future__ import annotations

import os
from pathlib import Path

import pytest

from ostinatod.service.plan import ServicePlan
from tests.fakes.service_tools import ServiceTools, install_service_tools


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServiceTools:
    """Service tools that stand in for the machine's, and a home of their own."""
    tools = install_service_tools(tmp_path / "tools")
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tools.root}{os.pathsep}{os.environ['PATH']}")
    return tools


@pytest.fixture
def plan(tmp_path: Path) -> ServicePlan:
    return ServicePlan(Path("/opt/ost inato/bin/ostinato"), {"OSTINATO_HOME": "/data/100%"}, tmp_path / "logs")
