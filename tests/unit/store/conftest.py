from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ostinatod.store import ModelStore
from ostinatod.store.local_models import LocalPlaces
from ostinatod.store.pull import PullSettings
from ostinatod.store.transfer import TransferPolicy
from tests.fakes.hub import FakeHub, running_hub

QUICK = TransferPolicy(stall_s=20.0, attempts=2, first_wait_s=0.01, longest_wait_s=0.02, margin_bytes=0)


@pytest.fixture(autouse=True)
def _no_settings_of_this_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with running_hub() as running:
        yield running


@pytest.fixture
def places(tmp_path: Path) -> LocalPlaces:
    return LocalPlaces(tmp_path / "hub", (tmp_path / "lmstudio",), (tmp_path / "ollama",))


@pytest.fixture
def settings(hub: FakeHub, places: LocalPlaces) -> PullSettings:
    return PullSettings(hub.endpoint, places, QUICK)


@pytest.fixture
def store(tmp_path: Path, settings: PullSettings) -> ModelStore:
    return ModelStore(tmp_path / "db" / "ostinato.db", tmp_path / "hub", settings.endpoint, settings=settings)


@pytest.fixture
def impatient(tmp_path: Path, settings: PullSettings) -> ModelStore:
    """The same store, for hubs that stop sending: it gives up after a second without a byte."""
    hasty = replace(settings, policy=replace(QUICK, stall_s=1.0))
    return ModelStore(tmp_path / "db" / "ostinato.db", tmp_path / "hub", settings.endpoint, settings=hasty)
