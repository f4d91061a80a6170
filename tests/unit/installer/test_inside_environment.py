"""The small parts of the second stage: bindings, the tree for type checkers, owned paths, the display."""

from __future__ import annotations

import importlib.metadata
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from ostinatod.installer.bindings import bundled_libraries, ensure_bindings
from ostinatod.installer.build_display import BuildDisplay, format_time
from ostinatod.installer.build_progress import BuildProgress
from ostinatod.installer.owned_paths import owned_paths
from ostinatod.installer.type_tree import link_package_tree
from tests.unit.installer.conftest import MiniProject


def _install_fake(site: Path, package: str, version: str, files: list[str]) -> None:
    folder = site / f"{package.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (folder / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file in files:
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).touch()


def test_bindings_of_the_pinned_version_are_left_alone(
    mini_project: MiniProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install_fake(tmp_path / "site", "mini-llama", "1.0", ["llama_cpp/__init__.py", "llama_cpp/llama.py"])
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    reports: list[BuildProgress] = []
    assert ensure_bindings(reports.append, sources=mini_project.sources) is False
    assert reports == []


@pytest.mark.parametrize(
    ("file", "is_library"),
    [
        ("llama_cpp/lib/libllama.so", True),
        ("llama_cpp/lib/libggml-base.so.0", True),
        ("llama_cpp/lib/libmtmd.dylib", True),
        ("llama_cpp/llama.py", False),
        ("numpy/core/_multiarray.so", False),
    ],
)
def test_bundled_libraries_are_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, is_library: bool
) -> None:
    _install_fake(tmp_path / "site", "mini-llama", "1.0", [file])
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert bundled_libraries("mini-llama") == ([file] if is_library else [])


@pytest.mark.engine
def test_the_installed_bindings_carry_no_library_of_their_own() -> None:
    try:
        importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        if os.environ.get("OSTINATO_REQUIRE_ENGINE") == "1":
            raise
        pytest.skip("the bindings are not installed; run `python3 installer`")
    assert bundled_libraries("llama-cpp-python") == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    for name in ("core/api/__init__.py", "core/__init__.py", "core/__pycache__/x.pyc", "tools/__init__.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    (root / "pyproject.toml").write_text('[tool.setuptools.package-dir]\n"pkg" = "core"\n"pkg.tools" = "tools"\n')
    return root


def _refuse(*arguments: object, **options: object) -> None:
    raise OSError("links are not permitted")


@pytest.mark.parametrize("links", [True, False])
def test_the_tree_has_the_layout_of_the_imports(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(Path, "symlink_to", _refuse)
    package = link_package_tree(checkout, tmp_path / "tree")
    assert package == tmp_path / "tree" / "pkg"
    assert {entry.name for entry in package.iterdir()} == {"__init__.py", "api", "tools"}
    assert (package / "tools" / "__init__.py").is_file()
    assert (package / "tools").is_symlink() is links
    assert (tmp_path / "tree" / "pyproject.toml").read_text() == (checkout / "pyproject.toml").read_text()


def test_the_tree_forgets_what_is_gone_and_never_touches_the_checkout(checkout: Path, tmp_path: Path) -> None:
    package = link_package_tree(checkout, tmp_path / "tree")
    (checkout / "core" / "api" / "__init__.py").unlink()
    (checkout / "core" / "api").rmdir()
    link_package_tree(checkout, tmp_path / "tree")
    assert not os.path.lexists(package / "api")
    assert (checkout / "tools" / "__init__.py").is_file()


def test_the_tree_may_be_named_from_where_one_stands(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkout)
    package = link_package_tree(Path("."), Path("build/types"))
    assert all(entry.exists() for entry in (*package.iterdir(), package.parent / "pyproject.toml"))


def test_only_known_entries_of_a_folder_the_user_named_are_owned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSTINATO_HOME", str(tmp_path))
    monkeypatch.setenv("OSTINATO_ENGINE_CACHE", str(tmp_path / "shared"))
    data = ("config.toml", "ostinato.db", "ostinato.db-wal", "routes.db", "routes.db-wal", "routes.key", "keys.json")
    folders = ("residency", "prompts", "clients")
    for name in (*data, "thesis.txt", "logs/mail.log", "logs/bindings.log", "shared/photo", "shared/current.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    for folder in ("shared/" + "a" * 64, *folders, "photos"):
        (tmp_path / folder).mkdir()
    owned = owned_paths()
    assert {Path(path).name for path in owned["builds"]} == {"current.json", "bindings.log", "a" * 64}
    assert {Path(path).name for path in owned["data"]} == {*data, *folders}
    # Folders may go once they are empty, those that the user named may not.
    assert {Path(path).relative_to(tmp_path).as_posix() for path in owned["folders"]} == {"cache", "logs", "run"}


@pytest.fixture
def plain() -> tuple[io.StringIO, BuildDisplay, Callable[[float], None]]:
    """A display on a pipe, and what moves its clock forward."""
    now = [0.0]
    out = io.StringIO()

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    return out, BuildDisplay(Console(file=out, width=80), clock=lambda: now[0]), pass_time


def test_plain_display_gives_each_step_its_time_and_estimates_the_rest(
    plain: tuple[io.StringIO, BuildDisplay, Callable[[float], None]],
) -> None:
    out, display, pass_time = plain
    with display:
        display(BuildProgress("compile", 0, 0, "2 at once"))
        pass_time(20)
        display(BuildProgress("compile", 10, 40, "a.cpp"))  # 20 s for 10 of 40: 60 s for the other 30
        pass_time(1)
        display(BuildProgress("compile", 11, 40, "b.cpp"))
        display(BuildProgress("compile", 40, 40, "c.cpp"))
        pass_time(42)
        display(BuildProgress("compile", 1, 1, "complete"))
    lines = out.getvalue().splitlines()
    assert lines[0] == "Compiling the engine: 2 at once"
    assert lines[1] == "  10 of 40, about 1 min 0 s left: a.cpp"
    assert lines[2].split() == ["Compiling", "the", "engine", "1", "min", "3", "s", "complete"]
    assert len(lines) == 3


def test_display_leaves_markup_in_file_names_alone(
    plain: tuple[io.StringIO, BuildDisplay, Callable[[float], None]],
) -> None:
    out, display, _ = plain
    with display:
        display(BuildProgress("patch", 1, 1, "[bold]x[/bold]"))
    assert "[bold]x[/bold]" in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.44, "0.4 s"), (42.4, "42 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s")]
)
def test_times_read_naturally(seconds: float, text: str) -> None:
    assert format_time(seconds) == text
