from __future__ import annotations

from pathlib import Path

import pytest

from ostinatod.errors import EngineBuildError
from ostinatod.installer.engine_build import kernels_patch_dir
from ostinatod.installer.patch_series import apply_series, read_series, update_patched_tree

_FIRST = "--- a/f\n+++ b/f\n@@ -1,2 +1,3 @@\n one\n+one and a half\n two\n"
_SECOND = "--- a/f\n+++ b/f\n@@ -1,3 +1,4 @@\n one\n one and a half\n+one and three quarters\n two\n"


def _series(directory: Path, **patches: str) -> Path:
    directory.mkdir(exist_ok=True)
    for name, text in patches.items():
        (directory / name).write_text(text)
    (directory / "series").write_text("# why\n\n" + "".join(f"{name}  # note\n" for name in patches))
    return directory


@pytest.fixture
def pristine(tmp_path: Path) -> Path:
    (tmp_path / "pristine" / "d").mkdir(parents=True)
    (tmp_path / "pristine" / "f").write_text("one\ntwo\n")
    (tmp_path / "pristine" / "d" / "g").write_text("untouched\n")
    return tmp_path / "pristine"


def test_later_patches_see_the_text_of_earlier_ones(tmp_path: Path, pristine: Path) -> None:
    diffs = read_series(_series(tmp_path / "patches", a=_FIRST, b=_SECOND))
    assert apply_series(diffs, pristine) == {"f": b"one\none and a half\none and three quarters\ntwo\n"}


def test_an_unchanged_series_writes_nothing(tmp_path: Path, pristine: Path) -> None:
    diffs = read_series(_series(tmp_path / "patches", a=_FIRST))
    assert update_patched_tree(pristine, tmp_path / "patched", diffs) == 1
    before = (tmp_path / "patched" / "f").stat().st_mtime_ns
    assert update_patched_tree(pristine, tmp_path / "patched", diffs) == 0
    assert (tmp_path / "patched" / "f").stat().st_mtime_ns == before
    assert (tmp_path / "patched" / "d" / "g").read_text() == "untouched\n"


def test_a_dropped_patch_is_undone(tmp_path: Path, pristine: Path) -> None:
    create = "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n"
    update_patched_tree(pristine, tmp_path / "patched", read_series(_series(tmp_path / "p1", a=_FIRST, b=create)))
    assert (tmp_path / "patched" / "new").read_text() == "x\n"
    update_patched_tree(pristine, tmp_path / "patched", ())
    assert (tmp_path / "patched" / "f").read_text() == "one\ntwo\n"
    assert not (tmp_path / "patched" / "new").exists()


def test_a_series_that_fails_changes_nothing(tmp_path: Path, pristine: Path) -> None:
    diffs = read_series(_series(tmp_path / "patches", good=_FIRST, bad=_SECOND.replace("half", "third")))
    with pytest.raises(EngineBuildError, match="bad does not apply to f"):
        update_patched_tree(pristine, tmp_path / "patched", diffs)
    assert not (tmp_path / "patched").exists()
    assert (pristine / "f").read_text() == "one\ntwo\n"


def test_a_missing_patch_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "series").write_text("gone.patch\n")
    with pytest.raises(EngineBuildError, match=r"gone\.patch"):
        read_series(tmp_path)


def test_the_series_of_this_project_parses() -> None:
    directory = kernels_patch_dir() / "patches"
    named = {diff.patch for diff in read_series(directory)}
    assert named == {file.name for file in directory.glob("*.patch")}
