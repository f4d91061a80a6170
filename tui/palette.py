"""Themes: what every role of `view` looks like, and the colours of borders and inputs around it.

Hot is orange and cold is blue in every coloured theme, which people tell apart who do not tell red from green; the
glyphs differ as well. The monochrome themes use the terminal's own colours with bold, dim and reverse only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.color import Color
from rich.style import Style
from textual.theme import Theme

from ostinatod.tui.view.symbols import ASCII, SHADES, UNICODE, Symbols


@dataclass(frozen=True, slots=True)
class Palette:
    """One theme."""

    name: str
    theme: Theme
    symbols: Symbols
    styles: Mapping[str, Style]
    has_colour: bool

    def style(self, role: str) -> Style:
        """The style of a role; "a/b" is a's colour on b's."""
        over, _, under = role.partition("/")
        style = self.styles.get(over, _PLAIN)
        if under:
            style += Style(bgcolor=self.styles.get(under, _PLAIN).color)
        return style


_PLAIN = Style()

_VARIABLES = (
    *("border-quiet", "border-loud", "title", "border", "border-blurred", "ansi-background", "ansi-foreground"),
    *("block-cursor-foreground", "block-cursor-background", "input-cursor-foreground", "input-cursor-background"),
    *("input-selection-background", "input-selection-foreground", "footer-foreground", "footer-background"),
)
"""What style sheets name: ours, and those of Textual that would bring colours of their own."""


def palettes() -> dict[str, Palette]:
    """Every theme by its name."""
    found = (_dark(), _light(), _monochrome("mono", SHADES), _monochrome("ascii", ASCII))
    return {palette.name: palette for palette in found}


def _dark() -> Palette:
    colours = {
        **_colours("text c9d1d9 dim 8b98a5 faint 6b7886 strong f2f5f8 head 7d8b99 accent 6cb6ff brand f6a93b"),
        **_colours("good 7ec699 warn e5c07b bad f47067 spark 8fb8de use_ram 6fa8a3 use_cpu 6fa8a3"),
        **_colours("use_dense 7c8da3 use_kv 4f9fe0 use_pool f6a93b use_borrowed ffd891 use_compute b48ead"),
        **_colours("use_staging d9739f use_margin 46566a use_free 242d38 use_other 8a5e5e use_rest 5d6875"),
        **_colours("part_waited d98a7c part_read 4f9fe0 part_wrote 5f9e78 rest 3a4653"),
        **_ramp("hot", "33200e 4e2f10 714314 955a18 ba731f dd8f2b f9ae43 ffd594"),
        **_ramp("cold", "1a2a38 1e3a50 234d6c 2a638b 347cab 4697ca 6bb5e8 aedcff"),
        **_ramp("chill", "0e1318 101b25 112130 13283a 163247 1b3f5a 225275 2f6f9c"),
        **_ramp("heat", "20232e 2f3345 424862 5a6182 757da3 949cc2 b8bfe0 dfe4fb"),
    }
    theme = Theme(
        name="ostinato-dark",
        dark=True,
        primary="#6cb6ff",
        secondary="#4f9fe0",
        accent="#f6a93b",
        warning="#e5c07b",
        error="#f47067",
        success="#7ec699",
        foreground="#c9d1d9",
        background="#0e1318",
        surface="#131a21",
        panel="#1a232c",
        variables={"border-quiet": "#2c3743", "border-loud": "#f6a93b", "title": "#9fb0c0"},
    )
    return Palette("dark", theme, UNICODE, _coloured(colours, key_on="#22303d", selected="#1f2d3a"), has_colour=True)


def _light() -> Palette:
    colours = {
        **_colours("text 2b3238 dim 566270 faint 78838d strong 0c1116 head 58646f accent 0b63b0 brand 984a00"),
        **_colours("good 186a39 warn 845700 bad b3261e spark 3b74a8 use_ram 4d8f89 use_cpu 4d8f89"),
        **_colours("use_dense 8592a3 use_kv 3d86c6 use_pool e08a1e use_borrowed f3bf6b use_compute 9a6fa3"),
        **_colours("use_staging b5487f use_margin b9c3cd use_free e4e1d8 use_other b58080 use_rest a8b2bc"),
        **_colours("part_waited c4604f part_read 3d86c6 part_wrote 3a8a5b rest c6c9c6"),
        **_ramp("hot", "f5e6d0 f2d3a8 edbc7c e5a254 d88732 c26b18 a04f08 783600"),
        **_ramp("cold", "dbe6ef bfd6e8 9dc3df 78aed4 5496c5 347bb0 1c5f94 0a4472"),
        **_ramp("chill", "faf8f3 f0f2f2 e8eef2 dde8f0 cfe0ec bcd4e6 a0c3dd 7dacd0"),
        **_ramp("heat", "e6e6ef cfd0e3 b3b5d3 9698c1 787bac 5d6095 44477b 2c2f5e"),
    }
    theme = Theme(
        name="ostinato-light",
        dark=False,
        primary="#0b63b0",
        secondary="#3d86c6",
        accent="#b25a00",
        warning="#8f5f00",
        error="#b3261e",
        success="#1f7a43",
        foreground="#2b3238",
        background="#faf8f3",
        surface="#f2efe8",
        panel="#e9e5db",
        variables={"border-quiet": "#d3cdc0", "border-loud": "#c26b18", "title": "#5f6b76"},
    )
    return Palette("light", theme, UNICODE, _coloured(colours, key_on="#e2ddd0", selected="#dfe8f0"), has_colour=True)


def _monochrome(name: str, symbols: Symbols) -> Palette:
    bold, dim, reverse = Style(bold=True), Style(dim=True), Style(reverse=True)
    styles = {
        **dict.fromkeys(("strong", "brand", "head", "bad", "warn", "hot6", "hot7"), bold),
        **dict.fromkeys(("dim", "faint", "rest", "use_free"), dim),
        **dict.fromkeys(("cursor", "key", "tab_on"), reverse),
        "selected": Style(reverse=True, dim=False),
    }
    plain = "ansi_default"
    theme = Theme(
        name=f"ostinato-{name}",
        dark=True,
        ansi=True,
        primary=plain,
        secondary=plain,
        accent=plain,
        warning=plain,
        error=plain,
        success=plain,
        foreground=plain,
        background=plain,
        surface=plain,
        panel=plain,
        boost=plain,
        variables=dict.fromkeys(_VARIABLES, plain),
    )
    return Palette(name, theme, symbols, styles, has_colour=False)


def _colours(pairs: str) -> dict[str, str]:
    words = pairs.split()
    return {name: f"#{colour}" for name, colour in zip(words[::2], words[1::2], strict=True)}


def _ramp(name: str, colours: str) -> dict[str, str]:
    return {f"{name}{level}": f"#{colour}" for level, colour in enumerate(colours.split())}


def _coloured(colours: Mapping[str, str], *, key_on: str, selected: str) -> dict[str, Style]:
    styles = {role: Style(color=Color.parse(colour)) for role, colour in colours.items()}
    for role in ("strong", "brand", "head"):
        styles[role] += Style(bold=True)
    styles["selected"] = Style(bgcolor=selected)
    styles["key"] = styles["brand"] + Style(bgcolor=key_on)
    styles["tab_on"] = styles["brand"] + Style(bgcolor=key_on)
    styles["cursor"] = styles["strong"] + Style(bgcolor=colours["bad"], bold=True)
    return styles
