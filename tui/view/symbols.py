"""The glyphs that panels are drawn with: one set for terminals with Unicode, one for those without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Symbols:
    """One set of glyphs, each one cell wide."""

    name: str
    full: str
    """A filled cell of a meter."""
    rest: str
    """An empty cell of a meter."""
    spark: str
    """Heights of a sparkline, lowest first."""
    hot: str
    """Heat of hot experts, coolest first."""
    cold: str
    """Heat of cold experts, coolest first."""
    uses: Mapping[str, str]
    """What a cell of a memory bar stands for where there is no colour."""
    parts: Mapping[str, str]
    """The same of an answer's time."""
    dot: str
    ring: str
    arrow: str
    ellipsis: str
    missing: str
    """Stands where a figure is not known."""
    divider: str
    times: str
    is_ascii: bool = False


USES = ("dense", "kv", "pool", "borrowed", "staging", "compute", "margin", "other", "rest", "free")
PARTS = ("waited", "read", "wrote")

UNICODE = Symbols(
    name="unicode",
    full="━",
    rest="─",
    spark="▁▂▃▄▅▆▇█",
    hot="░▒▓█",
    cold=" ·∙•",
    uses=dict.fromkeys(USES, "▆"),
    parts=dict.fromkeys(PARTS, "▆"),
    dot="●",
    ring="○",
    arrow="→",
    ellipsis="…",
    missing="\N{EN DASH}",
    divider="│",
    times="\N{MULTIPLICATION SIGN}",
)

SHADES = replace(
    UNICODE,
    name="shades",
    uses=dict(zip(USES, "█▓▒▚▌░/x? ", strict=True)),
    parts=dict(zip(PARTS, "░▒█", strict=True)),
)
"""For terminals without colour: what colour tells apart, shades do."""

ASCII = Symbols(
    name="ascii",
    full="#",
    rest="-",
    spark="_.-=+*%#",
    hot="=+%#",
    cold=" .,:",
    uses=dict(zip(USES, "DKPBSCMx?.", strict=True)),
    parts=dict(zip(PARTS, ".r#", strict=True)),
    dot="*",
    ring="o",
    arrow=">",
    ellipsis="~",
    missing="-",
    divider="|",
    times="x",
    is_ascii=True,
)
