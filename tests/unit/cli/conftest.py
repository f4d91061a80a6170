from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from click.testing import CliRunner, Result

from tests.fakes.daemon import FakeDaemon


class Invoke(Protocol):
    def __call__(self, *args: str, stdin: str = "", **environment: str) -> Result: ...


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    with FakeDaemon() as running:
        yield running


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSTINATO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OSTINATO_HOST", raising=False)
    return tmp_path / "home"


@pytest.fixture
def invoke(daemon: FakeDaemon, home: Path) -> Invoke:
    """Runs the command line against the fake daemon."""
    from ostinatod.cli.app import cli

    def call(*args: str, stdin: str = "", **environment: str) -> Result:
        env: dict[str, Any] = {"OSTINATO_HOST": daemon.url, **environment}
        return CliRunner(env=env).invoke(cli, list(args), input=stdin, prog_name="ostinato")

    return call
