"""A tree in which the import package is laid out as it is imported, for tools that read folders and not import hooks.

The checkout keeps some packages in top-level folders; pyproject.toml says which. `link_package_tree` makes
`TREE/ostinatod/...` out of links to them (copies, where links are refused). Runs in the environment.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib as toml
else:
    import tomli as toml


def link_package_tree(checkout: Path, tree: Path) -> Path:
    """Brings `tree` up to date with `checkout` and returns the folder of the import package in it.

    pyproject.toml is there too, for tools that look for their settings where they run.

    Raises ValueError when pyproject.toml maps no package to a folder of its own name.
    """
    # A link is read from where it lies, not from where this program runs.
    checkout = checkout.absolute()
    project = toml.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    mapping: dict[str, str] = project["tool"]["setuptools"]["package-dir"]
    tops = [name for name in mapping if "." not in name]
    if len(tops) != 1:
        raise ValueError(f"expected one import package in [tool.setuptools.package-dir], found {tops}")
    top = tops[0]
    wanted = {
        entry.name: entry
        for entry in (checkout / mapping[top]).iterdir()
        if not entry.name.startswith(("__pycache__", "."))
    }
    wanted |= {name.removeprefix(f"{top}."): checkout / folder for name, folder in mapping.items() if name != top}
    package = tree / top
    package.mkdir(parents=True, exist_ok=True)
    for entry in package.iterdir():
        _remove(entry)
    for name, target in wanted.items():
        _link(target, package / name)
    settings = tree / "pyproject.toml"
    settings.unlink(missing_ok=True)
    _link(checkout / "pyproject.toml", settings)
    return package


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()


def _link(target: Path, place: Path) -> None:
    try:
        place.symlink_to(target, target_is_directory=target.is_dir())
    except OSError:
        if target.is_dir():
            shutil.copytree(target, place)
        else:
            shutil.copy2(target, place)


if __name__ == "__main__":
    link_package_tree(Path(sys.argv[1]), Path(sys.argv[2]))
