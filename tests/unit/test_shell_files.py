from __future__ import annotations

from pathlib import Path

import pytest

from ostinatod.errors import ConfigError
from ostinatod.shell_files import SHELLS, completion_file, install_script, installed_scripts, remove_scripts


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_installed_once_and_its_first_line_stays_first(shell: str, environment: dict[str, str]) -> None:
    file, changed = install_script(shell, "#compdef ostinato\nbody\n", environment)
    assert changed
    assert file.read_text().splitlines()[0] == "#compdef ostinato"
    assert file.read_text().endswith("\nbody\n")
    assert install_script(shell, "#compdef ostinato\nbody\n", environment) == (file, False)
    assert install_script(shell, "#compdef ostinato\nother\n", environment) == (file, True)


def test_the_shells_own_folders_are_used(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "XDG_DATA_HOME": "/d", "XDG_CONFIG_HOME": "/c"}
    assert [str(completion_file(shell, environment)) for shell in SHELLS] == [
        "/d/bash-completion/completions/ostinato",
        "/d/zsh/site-functions/_ostinato",
        "/c/fish/completions/ostinato.fish",
    ]


def test_removing_takes_what_was_installed_and_nothing_else(tmp_path: Path, environment: dict[str, str]) -> None:
    mine = completion_file("bash", environment)
    mine.parent.mkdir(parents=True)
    mine.write_text("complete -W mine ostinato\n")
    with pytest.raises(ConfigError, match="was not installed by this program"):
        install_script("bash", "x", environment)
    fish, _ = install_script("fish", "x", environment)
    assert installed_scripts(environment) == [fish]
    assert remove_scripts(environment) == [fish]
    assert remove_scripts(environment) == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]


def test_a_home_that_cannot_be_written_is_an_error_with_another_way(tmp_path: Path) -> None:
    (tmp_path / ".local").touch()
    with pytest.raises(ConfigError, match="cannot write") as caught:
        install_script("bash", "x", {"HOME": str(tmp_path)})
    assert "completion show" in (caught.value.hint or "")
