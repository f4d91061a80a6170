"""Makes strings from outside harmless: nothing in them can move the cursor, change colours or break a column.

Model names, log lines and error texts come from files, clients and engines. Control characters and changes of writing
direction are shown as a visible mark, so that two different names never look the same; characters that terminals
disagree about (combining marks, joiners, variation selectors) are dropped, because a wrong width would shift a row.
"""

from __future__ import annotations

import re
import unicodedata

from rich.cells import cell_len

MARK = "\N{REPLACEMENT CHARACTER}"
ASCII_MARK = "?"
LONGEST = 2000
"""Characters kept of one string; a panel shows far fewer."""

_SPACES = re.compile(r"[\t\n\r\v\f\x85\u2028\u2029]+")
_PLAIN = re.compile(r"[\x20-\x7e]*")
_VISIBLE = {"Cc": MARK, "Cf": MARK, "Cs": MARK, "Co": MARK, "Cn": MARK, "Zs": " ", "Zl": " ", "Zp": " "}
_DROPPED = frozenset({"Mn", "Me", "Mc"})
_JOINERS = frozenset("\u200b\u200c\u200d\u2060\ufeff\u00ad\ufe0e\ufe0f")


def inert(text: str) -> str:
    """`text` on one line, with nothing in it that a terminal would obey."""
    text = text[:LONGEST]
    if _PLAIN.fullmatch(text):
        return text
    return "".join(_harmless(letter) for letter in _SPACES.sub(" ", text))


def ascii_only(text: str) -> str:
    """`text` with question marks, as wide as they are, for letters outside ASCII; for terminals that have no others."""
    if text.isascii():
        return text
    return "".join(letter if letter.isascii() else ASCII_MARK * cell_len(letter) for letter in text)


def _harmless(letter: str) -> str:
    if " " <= letter <= "~":
        return letter
    if letter in _JOINERS:
        return ""
    category = unicodedata.category(letter)
    return "" if category in _DROPPED else _VISIBLE.get(category, letter)
