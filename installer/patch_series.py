"""The patched source tree: the pristine one with every patch of the series applied, kept up to date in place.

Only files whose text changes are written, so that a later build recompiles no more than it must.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from ostinatod.errors import EngineBuildError
from ostinatod.installer.unified_diff import FileDiff, parse_diff


def read_series(directory: Path) -> tuple[FileDiff, ...]:
    """The changes of all patches that `directory`/series names, in its order; blank lines and #-comments are skipped.

    Raises EngineBuildError when the series or a patch is missing or malformed.
    """
    diffs: list[FileDiff] = []
    try:
        for line in (directory / "series").read_text(encoding="utf-8").splitlines():
            name = line.partition("#")[0].strip()
            if name:
                diffs += parse_diff((directory / name).read_bytes(), name)
    except OSError as error:
        raise EngineBuildError(f"cannot read the patch series: {error}") from error
    return tuple(diffs)


def apply_series(diffs: Sequence[FileDiff], pristine: Path) -> dict[str, bytes | None]:
    """Contents after the series of every file it touches; None where it deletes one. Writes nothing.

    Raises EngineBuildError for the first change that does not fit.
    """
    contents: dict[str, bytes | None] = {}
    for diff in diffs:
        if diff.path not in contents:
            contents[diff.path] = _read(pristine / diff.path)
        contents[diff.path] = diff.apply(contents[diff.path])
    return contents


def update_patched_tree(pristine: Path, patched: Path, diffs: Sequence[FileDiff]) -> int:
    """Makes `patched` equal to `pristine` plus the series, and returns how many files had to be written.

    A first call copies the whole tree. Raises EngineBuildError and changes nothing when a patch does not apply.
    """
    contents = apply_series(diffs, pristine)
    note = patched.with_name(patched.name + ".patched.json")
    if not patched.is_dir():
        partial = patched.with_name(patched.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(pristine, partial)
        note.unlink(missing_ok=True)
        partial.rename(patched)
    earlier: list[str] = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else []
    for path in earlier:
        if path not in contents:
            contents[path] = _read(pristine / path)
    # Noted before the first write: an interrupted update still knows every file that may differ.
    note.write_text(json.dumps(sorted(contents)), encoding="utf-8")
    return sum(_write(patched / path, content) for path, content in contents.items())


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None


def _write(file: Path, content: bytes | None) -> bool:
    if _read(file) == content:
        return False
    if content is None:
        file.unlink()
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return True
