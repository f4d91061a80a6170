"""The pages for people hang together: links lead somewhere, and what they tell to type exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ostinatod.cli.app import cli

CHECKOUT = Path(__file__).parents[2]
PAGES = sorted([CHECKOUT / "README.md", CHECKOUT / "installer" / "README.md", *(CHECKOUT / "docs").glob("*.md")])

of_every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(CHECKOUT).as_posix())

_LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")
_TEST = re.compile(r"`(test_[a-z0-9_]+)(…?)`")
_FENCED = re.compile(r"```.*?\n(.*?)```", re.DOTALL)
_COMMAND = re.compile(r"^(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?ostinato ([^#`]+)")
_OPTION = re.compile(r"(?<!\S)\[?(--[a-z][a-z-]*)")


def anchors(page: Path) -> set[str]:
    """What links to headings of a page may name."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(page: Path) -> Iterator[str]:
    """What stands behind `ostinato` in code, up to a comment."""
    text = page.read_text(encoding="utf-8")
    for code in [*_FENCED.findall(text), *re.findall(r"^ {4}(.*)$|`([^`\n]+)`", _FENCED.sub("", text), re.MULTILINE)]:
        for line in (code if isinstance(code, str) else "".join(code)).splitlines():
            if found := _COMMAND.match(line.strip()):
                yield found[1].strip()


def command_of(words: list[str]) -> click.Command | None:
    """The command that words name, of which the latter may be arguments; None where there is none."""
    command: click.Command | None = cli
    for word in words:
        if not isinstance(command, click.Group) or not re.fullmatch("[a-z][a-z-]*", word):
            break
        command = command.get_command(click.Context(cli), word)
    return command


@of_every_page
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    missing = []
    for name, anchor in _LINK.findall(page.read_text(encoding="utf-8")):
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(f"{name}#{anchor}")
    assert missing == []


@of_every_page
def test_commands_that_pages_tell_to_type_exist_with_their_options(page: Path) -> None:
    unknown = []
    for typed in commands(page):
        words = re.sub(r"^--host \S+ ", "", typed).split()
        command = command_of(words)
        known = {name for parameter in command.params for name in parameter.opts} if command else set()
        if command is None or not known.issuperset(set(_OPTION.findall(typed)) - {"--help", "--host"}):
            unknown.append(typed)
    assert unknown == []


@of_every_page
def test_tests_that_pages_name_exist(page: Path) -> None:
    named = _TEST.findall(page.read_text(encoding="utf-8"))
    source = "\n".join(file.read_text(encoding="utf-8") for file in (CHECKOUT / "tests").rglob("test_*.py"))
    missing = [name for name, cut in named if not re.search(rf"def {name}" + ("" if cut else r"\("), source)]
    assert missing == []


def test_the_map_of_the_tree_has_every_folder_and_nothing_else() -> None:
    page = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    table = re.findall(r"^\|.*$", page.split("## Map of the tree")[1], re.MULTILINE)
    named = {name.rstrip("/") for name in re.findall(r"`([\w/.]+)`", "\n".join(table))}
    packages = [*CHECKOUT.glob("*/__init__.py"), *CHECKOUT.glob("ostinatod/*/__init__.py")]
    assert {package.parent.name for package in packages} - named == set()
    parents = (CHECKOUT, CHECKOUT / "ostinatod", CHECKOUT / "tests")
    assert [name for name in sorted(named) if not any((parent / name).exists() for parent in parents)] == []
