from __future__ import annotations

from pathlib import Path

import pytest

from ostinatod.errors import ConfigError
from ostinatod.service.plan import plan_service


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    (tmp_path / "ostinato").touch(mode=0o755)
    return tmp_path


def test_settings_and_places_are_kept_and_secrets_are_not(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(scripts)
    environment = {
        "OSTINATO_HOME": "here",
        "OSTINATO_CONTEXT": "8192",
        "OSTINATO_HOST": "127.0.0.1:11434",
        "OSTINATO_API_KEY": "secret",
        "HF_TOKEN": "secret",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PATH": "/bin",
    }
    plan = plan_service(environment, scripts, scripts=scripts)
    assert plan.environment == {
        "HF_HUB_OFFLINE": "1",
        "OSTINATO_CONTEXT": "8192",
        "OSTINATO_HOME": str(scripts / "here"),
        "OSTINATO_HOST": "127.0.0.1:11434",
    }
    assert plan.command == (str(scripts / "ostinato"), "serve")


def test_the_address_on_the_command_line_wins(scripts: Path) -> None:
    plan = plan_service({"OSTINATO_HOST": "a:1"}, scripts, host="127.0.0.1:2", scripts=scripts)
    assert plan.environment["OSTINATO_HOST"] == "127.0.0.1:2"


def test_a_line_end_cannot_add_settings_to_the_unit(scripts: Path) -> None:
    with pytest.raises(ConfigError, match="OSTINATO_ENGINE_ARGS"):
        plan_service({"OSTINATO_ENGINE_ARGS": "a\nExecStartPre=/bin/evil"}, scripts, scripts=scripts)


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        plan_service({}, tmp_path, scripts=tmp_path)
