"""The application on a real port with a scripted engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import RunningApp, ScriptedEngine, StartApp, make_scripted_engine, running_app


@pytest.fixture
def app(start_app: StartApp, scripted_engine: ScriptedEngine) -> RunningApp:
    return start_app(scripted_engine)


@pytest.fixture(scope="module")
def shared_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    """For tests that do not care what is loaded."""
    directory = tmp_path_factory.mktemp("shared")
    with running_app(directory, make_scripted_engine(directory)) as app:
        yield app
