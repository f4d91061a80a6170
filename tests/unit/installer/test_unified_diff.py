from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinatod.errors import EngineBuildError
from ostinatod.installer.unified_diff import parse_diff, split_lines

_LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"}\n", b"\n", b"-- \n", b"@@ x\n", b"\xff\r\n"]), max_size=24)
_TAIL = st.sampled_from([b"", b"no line end"])


def _diff(old: bytes, new: bytes, context: int = 3) -> bytes:
    """A unified diff in the form of GNU diff and git, with the note for a missing last line end."""
    lines = difflib.diff_bytes(
        difflib.unified_diff, split_lines(old), split_lines(new), b"a/f", b"b/f", lineterm=b"\n", n=context
    )
    return b"".join(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in lines)


@given(_LINES, _TAIL, _LINES, _TAIL, st.integers(1, 4))
def test_applying_a_diff_gives_the_new_file(
    old_lines: list[bytes], old_tail: bytes, new_lines: list[bytes], new_tail: bytes, context: int
) -> None:
    old, new = b"".join(old_lines) + old_tail, b"".join(new_lines) + new_tail
    text = _diff(old, new, context)
    if old == new:
        with pytest.raises(EngineBuildError, match="no change"):
            parse_diff(text, "p")
        return
    (diff,) = parse_diff(text, "p")
    assert diff.apply(old) == new


@given(st.lists(st.integers(0, 9), min_size=8, max_size=30), st.data())
def test_a_changed_context_line_is_never_tolerated(numbers: list[int], data: st.DataObject) -> None:
    old = b"".join(b"%d-%d\n" % pair for pair in enumerate(numbers))  # every line occurs once
    lines = split_lines(old)
    changed = data.draw(st.integers(3, len(lines) - 4))
    (diff,) = parse_diff(_diff(old, b"".join([*lines[:changed], b"new\n", *lines[changed:]])), "p")
    spoilt = data.draw(st.integers(changed - 3, changed + 2))  # within the three lines of context on either side
    with pytest.raises(EngineBuildError, match="is not there"):
        diff.apply(b"".join([*lines[:spoilt], b"other\n", *lines[spoilt + 1 :]]))


def test_a_hunk_moves_to_the_only_place_its_text_occurs() -> None:
    (diff,) = parse_diff(_diff(b"one\ntwo\nthree\n", b"one\nTWO\nthree\n"), "p")
    assert diff.apply(b"zero\none\ntwo\nthree\n") == b"zero\none\nTWO\nthree\n"


def test_a_hunk_whose_text_occurs_twice_elsewhere_is_refused() -> None:
    (diff,) = parse_diff(_diff(b"one\ntwo\n", b"one\nTWO\n"), "p")
    with pytest.raises(EngineBuildError, match="occurs 2 times"):
        diff.apply(b"zero\none\ntwo\none\ntwo\n")


def test_the_stated_line_decides_between_equal_places() -> None:
    old = b"x\ny\nx\ny\n"
    (diff,) = parse_diff(b"--- a/f\n+++ b/f\n@@ -3,2 +3,2 @@\n x\n-y\n+z\n", "p")
    assert diff.apply(old) == b"x\ny\nx\nz\n"


def test_failure_names_patch_file_and_expected_text() -> None:
    (diff,) = parse_diff(_diff(b"alpha\nbeta\n", b"alpha\ngamma\n"), "0001.patch")
    with pytest.raises(EngineBuildError) as caught:
        diff.apply(b"something else\n")
    assert "0001.patch" in caught.value.message
    assert "f: the text expected at line 1" in caught.value.message
    assert "| beta" in caught.value.message


def test_files_are_created_and_deleted() -> None:
    (create,) = parse_diff(b"--- /dev/null\n+++ b/d/new.c\n@@ -0,0 +1,2 @@\n+int x;\n+int y;\n", "p")
    assert (create.path, create.apply(None)) == ("d/new.c", b"int x;\nint y;\n")
    (delete,) = parse_diff(b"--- a/old.c\n+++ /dev/null\n@@ -1 +0,0 @@\n-int x;\n", "p")
    assert delete.apply(b"int x;\n") is None


def test_creating_over_a_file_and_changing_a_missing_one_are_refused() -> None:
    (create,) = parse_diff(b"--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n", "p")
    with pytest.raises(EngineBuildError, match="already exists"):
        create.apply(b"here\n")
    (change,) = parse_diff(b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n", "p")
    with pytest.raises(EngineBuildError, match="does not exist"):
        change.apply(None)


def test_deleting_less_than_the_whole_file_is_refused() -> None:
    (delete,) = parse_diff(b"--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n", "p")
    with pytest.raises(EngineBuildError, match="would leave 1 lines"):
        delete.apply(b"x\ny\n")


def test_an_insertion_without_context_is_refused() -> None:
    (diff,) = parse_diff(b"--- a/f\n+++ b/f\n@@ -1,0 +2 @@\n+x\n", "p")
    with pytest.raises(EngineBuildError, match="no context"):
        diff.apply(b"a\nb\n")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"only prose\n", "contains no change"),
        (b"--- a/f\n+++ b/f\n", "expected a hunk"),
        (b"--- a/f\n+++ b/f\n@@ -1,2 +1 @@\n-x\n", "states 2 old"),
        (b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n?y\n", "expected ' '"),
        (b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n+z\n@@ -9 +9 @@\n-a\n+b\n", "stray hunk"),
        (b"--- a/../f\n+++ b/../f\n@@ -1 +1 @@\n-x\n+y\n", "inside the tree"),
        (b"--- /etc/f\n+++ /etc/f\n@@ -1 +1 @@\n-x\n+y\n", "inside the tree"),
        (b"--- a//etc/f\n+++ b//etc/f\n@@ -1 +1 @@\n-x\n+y\n", "inside the tree"),
        (b"--- a/f\n+++ b/g\n@@ -1 +1 @@\n-x\n+y\n", "renames"),
        (b"--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-x\n+y\n", "both sides"),
        (b"diff --git a/f b/g\nrename from f\nrename to g\n", "not supported"),
        (b"diff --git a/f b/f\nGIT binary patch\n", "not supported"),
    ],
)
def test_malformed_patches_are_refused_by_reason(text: bytes, complaint: str) -> None:
    with pytest.raises(EngineBuildError, match=complaint):
        parse_diff(text, "bad.patch")
