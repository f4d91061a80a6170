"""The patch series keeps its rules: complete headers, added lines only, a budget, every hook declared and listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

KERNELS_PATCH = Path(__file__).parents[2] / "kernels_patch"
PATCHES = sorted((KERNELS_PATCH / "patches").glob("*.patch"))
SERIES = [
    line
    for line in (KERNELS_PATCH / "patches" / "series").read_text().splitlines()
    if line and not line.startswith("#")
]
MAX_ADDED_LINES = 51
TRAILERS = ("Paper", "Hook", "Inert-when", "Upstream", "Test")

each_patch = pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)


def added(patch: Path) -> list[str]:
    return [line[1:] for line in patch.read_text().splitlines() if line.startswith("+") and not line.startswith("+++")]


def trailer(patch: Path, name: str) -> str:
    match = re.search(rf"^{name}: (.+)$", patch.read_text(), re.MULTILINE)
    assert match, f"{patch.name} has no {name}: line"
    return match[1]


def test_the_series_names_every_patch_once_and_nothing_else() -> None:
    assert sorted(SERIES) == [patch.name for patch in PATCHES]


@each_patch
def test_a_patch_says_what_it_is_for(patch: Path) -> None:
    assert re.search(r"^Subject: \[PATCH\] \S+: \S", patch.read_text(), re.MULTILINE)
    for name in TRAILERS:
        trailer(patch, name)


@each_patch
def test_a_patch_only_adds_lines(patch: Path) -> None:
    removed = [
        line for line in patch.read_text().splitlines() if line.startswith("-") and not re.match(r"--- |--$", line)
    ]
    assert removed == []


def test_the_series_stays_within_its_budget() -> None:
    assert sum(len(added(patch)) for patch in PATCHES) <= MAX_ADDED_LINES


@each_patch
def test_every_hook_is_called_by_its_patch_declared_in_its_header_and_listed_in_the_readme(patch: Path) -> None:
    match = re.fullmatch(r"(.+) \(overlay/(\S+)\)", trailer(patch, "Hook"))
    assert match
    header = (KERNELS_PATCH / "overlay" / match[2]).read_text()
    readme = (KERNELS_PATCH / "README.md").read_text()
    for hook in match[1].split(", "):
        # a function, a template, or the declaration of a guard
        assert re.search(rf"\b{hook}(<\w+>)?(\(| \w+\()", "\n".join(added(patch)))
        assert re.search(rf"\b{hook}\(", header), f"{hook} is not declared in {match[2]}"
        assert f"`{hook}`" in readme
    assert f"`{patch.stem}`" in readme


@each_patch
def test_the_test_that_a_patch_names_exists(patch: Path) -> None:
    assert (KERNELS_PATCH.parent / trailer(patch, "Test")).is_file()


def test_bindings_and_pin_name_the_same_release() -> None:
    from ostinatod.bindings import BINDINGS_VERSION, LLAMA_CPP_COMMIT

    pin = (KERNELS_PATCH / "UPSTREAM").read_text()
    assert f"llama-cpp-python {BINDINGS_VERSION} " in pin
    assert f"llama.cpp {LLAMA_CPP_COMMIT}\n" in pin
