"""The pages for people hang together: links lead somewhere, and what they tell to type exists."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from ostinatod.cli.app import cli

CHECKOUT = Path(__file__).parents[2]
PAGES = sorted([CHECKOUT / "README.md", CHECKOUT / "installer" / "README.md", *(CHECKOUT / "docs").glob("*.md")])

_LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
_TEST = re.compile(r"`(test_[a-z0-9_]+)(…?)`")
_COMMAND = re.compile(r"`(?:\.venv/bin/)?ostinato ([a-z][a-z -]*)[^`]*`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(CHECKOUT).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    missing = [link for link in _LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(CHECKOUT).as_posix())
def test_commands_that_pages_tell_to_type_exist(page: Path) -> None:
    unknown = []
    for words in _COMMAND.findall(page.read_text(encoding="utf-8")):
        command: click.Command | None = cli
        context = click.Context(cli)
        for word in words.split():
            if not isinstance(command, click.Group):
                break
            command = command.get_command(context, word)
        if command is None:
            unknown.append(words.strip())
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(CHECKOUT).as_posix())
def test_tests_that_pages_name_exist(page: Path) -> None:
    named = _TEST.findall(page.read_text(encoding="utf-8"))
    source = "\n".join(file.read_text(encoding="utf-8") for file in (CHECKOUT / "tests").rglob("test_*.py"))
    missing = [name for name, cut in named if not re.search(rf"def {name}" + ("" if cut else r"\("), source)]
    assert missing == []
