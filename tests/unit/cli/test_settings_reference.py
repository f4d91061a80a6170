from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ostinatod.cli.settings_reference import meanings, settings_reference
from ostinatod.config import Settings, load_settings, variable_name

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def test_the_page_is_up_to_date() -> None:
    command = "python -m ostinatod.cli.settings_reference > docs/settings.md"
    assert PAGE.read_text(encoding="utf-8") == settings_reference(), f"run: {command}"


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Settings)])
def test_every_setting_says_what_it_means_and_can_be_set_as_the_page_says(name: str, tmp_path: Path) -> None:
    assert meanings()[name], f"say below {name} in ostinatod/config.py what it means"
    row = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{name}` |"))
    variable, default = (cell.strip().strip("`").partition("`")[0] for cell in row.split(" | ")[1:3])
    assert variable == variable_name(name)
    settings = load_settings(tmp_path / "none.toml", {variable: default} if default else {})
    assert settings == Settings()
