"""A strict applier of unified diffs: exact context, at the stated line or at the only place it occurs; never fuzz.

The upstream source is pinned by hash, so a hunk that does not fit means that patch and source do not belong together.
Works on bytes, because upstream files need not be valid text. Renames, mode changes and binary patches are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from ostinatod.errors import EngineBuildError

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_REFUSED = (
    b"rename from ",
    b"rename to ",
    b"copy from ",
    b"copy to ",
    b"old mode ",
    b"GIT binary patch",
    b"Binary files ",
)


@dataclass(frozen=True, slots=True)
class Hunk:
    """One change: the lines it expects and the lines it leaves, each with its line end."""

    start: int
    """1-based line of the first expected line; of the line before the insertion when `old` is empty."""
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class FileDiff:
    """What one patch does to one file."""

    patch: str
    """Name of the patch, for messages."""
    path: str
    """Relative to the source tree, with forward slashes."""
    creates: bool
    deletes: bool
    hunks: tuple[Hunk, ...]

    def apply(self, content: bytes | None) -> bytes | None:
        """The file after the change; None stands for a file that does not exist.

        Raises EngineBuildError naming the file, the patch and the expected text when anything differs.
        """
        if self.creates and content:
            raise EngineBuildError(f"{self.patch}: creates {self.path}, which already exists")
        if content is None and not self.creates:
            raise EngineBuildError(f"{self.patch}: changes {self.path}, which does not exist in the pinned source")
        lines = split_lines(content or b"")
        result: list[bytes] = []
        consumed = 0
        for hunk in self.hunks:
            at = self._locate(hunk, lines, consumed)
            result += lines[consumed:at]
            result += hunk.new
            consumed = at + len(hunk.old)
        result += lines[consumed:]
        if not self.deletes:
            return b"".join(result)
        if result:
            raise EngineBuildError(f"{self.patch}: deletes {self.path}, but would leave {len(result)} lines of it")
        return None

    def _locate(self, hunk: Hunk, lines: list[bytes], consumed: int) -> int:
        if not hunk.old:
            if lines:
                raise EngineBuildError(f"{self.patch}: the hunk for {self.path} line {hunk.start} has no context lines")
            return 0
        size = len(hunk.old)
        wanted = list(hunk.old)
        stated = hunk.start - 1
        if stated >= consumed and lines[stated : stated + size] == wanted:
            return stated
        places = [at for at in range(consumed, len(lines) - size + 1) if lines[at : at + size] == wanted]
        if len(places) == 1:
            return places[0]
        found = "is not there" if not places else f"occurs {len(places)} times"
        anchor = b"".join(b"    | " + line.rstrip(b"\r\n") + b"\n" for line in hunk.old).decode(errors="replace")
        raise EngineBuildError(
            f"{self.patch} does not apply to {self.path}: the text expected at line {hunk.start} {found}:\n"
            + anchor.rstrip("\n")
        )


def split_lines(content: bytes) -> list[bytes]:
    """Lines with their ends, split at line feeds only; joining them gives back `content`."""
    lines = content.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def parse_diff(text: bytes, patch: str) -> tuple[FileDiff, ...]:
    """The file changes in a patch, which may be a mail with prose around them.

    Raises EngineBuildError when it is malformed, changes nothing, or names a path outside the tree.
    """
    lines = split_lines(text)
    diffs: list[FileDiff] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if diffs and line.startswith(b"@@ "):
            raise EngineBuildError(f"{patch}: stray hunk at line {at + 1}; its predecessor has more lines than stated")
        if any(line.startswith(prefix) for prefix in _REFUSED):
            raise EngineBuildError(f"{patch}: line {at + 1}: renames, mode changes and binary files are not supported")
        following = lines[at + 1] if at + 1 < len(lines) else b""
        if line.startswith(b"--- ") and following.startswith(b"+++ "):
            diff, at = _parse_file(lines, at, patch)
            diffs.append(diff)
        else:
            at += 1
    if not diffs:
        raise EngineBuildError(f"{patch}: contains no change")
    return tuple(diffs)


def _parse_file(lines: list[bytes], at: int, patch: str) -> tuple[FileDiff, int]:
    old, new = (_header_path(lines[at + i], patch) for i in (0, 1))
    if old is None and new is None:
        raise EngineBuildError(f"{patch}: line {at + 1}: both sides of the change are /dev/null")
    if old is not None and new is not None and old != new:
        raise EngineBuildError(f"{patch}: line {at + 1}: renames {old} to {new}; renames are not supported")
    at += 2
    hunks: list[Hunk] = []
    while at < len(lines) and (match := _HUNK.match(lines[at])):
        hunk, at = _parse_hunk(lines, at, match, patch)
        hunks.append(hunk)
    if not hunks:
        raise EngineBuildError(f"{patch}: line {at + 1}: expected a hunk (@@ -line,count +line,count @@)")
    path = new if new is not None else old
    return FileDiff(patch, str(path), creates=old is None, deletes=new is None, hunks=tuple(hunks)), at


def _parse_hunk(lines: list[bytes], at: int, match: re.Match[bytes], patch: str) -> tuple[Hunk, int]:
    header = at + 1
    n_old, n_new = (int(match[i]) if match[i] is not None else 1 for i in (2, 4))
    old: list[bytes] = []
    new: list[bytes] = []
    at += 1
    touched: list[list[bytes]] = []
    while at < len(lines):
        mark, body = lines[at][:1], lines[at][1:]
        if mark == b"\\":
            for side in touched:
                side[-1] = side[-1].removesuffix(b"\n")
        elif len(old) == n_old and len(new) == n_new:
            break
        else:
            # Editors strip the blank that stands for an empty context line; that loses nothing.
            sides = {b" ": [old, new], b"\n": [old, new], b"-": [old], b"+": [new]}
            if mark not in sides:
                raise EngineBuildError(f"{patch}: line {at + 1}: expected ' ', '+', '-' or '\\', found {mark!r}")
            touched = sides[mark]
            for side in touched:
                side.append(body if mark != b"\n" else b"\n")
        at += 1
    if len(old) != n_old or len(new) != n_new:
        raise EngineBuildError(
            f"{patch}: the hunk at line {header} states {n_old} old and {n_new} new lines, "
            f"found {len(old)} and {len(new)}"
        )
    return Hunk(int(match[1]), tuple(old), tuple(new)), at


def _header_path(line: bytes, patch: str) -> PurePosixPath | None:
    name = line[4:].rstrip(b"\r\n").split(b"\t")[0].decode(errors="surrogateescape")
    if name == "/dev/null":
        return None
    prefix, _, rest = name.partition("/")
    path = PurePosixPath(rest)
    if prefix not in {"a", "b"} or not rest or path.is_absolute() or ".." in path.parts:
        raise EngineBuildError(f"{patch}: expected a path such as a/src/llama.cpp inside the tree, found {name!r}")
    return path
