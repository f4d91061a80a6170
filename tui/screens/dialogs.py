"""What opens above the dashboard: a question, a line to type, a page to read. Escape closes each and does nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from ostinatod.tui.palette import Palette
from ostinatod.tui.view.inert import ascii_only, inert
from ostinatod.tui.view.lines import Line


class Confirm(ModalScreen[bool]):
    """Asks before something is lost. Only y or enter on the question does it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "answer(True)", "yes"),
        Binding("n,escape,q", "answer(False)", "no"),
    ]

    def __init__(self, title: str, lines: Sequence[str], yes: str, *, is_ascii: bool = False) -> None:
        super().__init__(classes="-ascii" if is_ascii else "")
        self._texts = [_shown(text, is_ascii) for text in (title, *lines)]
        self._yes = _shown(yes, is_ascii)

    def compose(self) -> ComposeResult:
        """The question, what it means, and the keys."""
        title, *lines = self._texts
        with Vertical(classes="dialog") as box:
            box.border_title = Content(title)
            for text in lines:
                yield Static(Content(text), classes="row")
            yield Static(_keys(("y", self._yes), ("n", "keep it as it is")), classes="keys")

    def action_answer(self, is_yes: bool) -> None:
        """Close with the answer."""
        self.dismiss(is_yes)


class Ask(ModalScreen[str]):
    """Asks for one line; closes with "" when it is left."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "leave")]

    def __init__(self, title: str, note: str, value: str = "", *, is_ascii: bool = False) -> None:
        super().__init__(classes="-ascii" if is_ascii else "")
        self._title, self._note = _shown(title, is_ascii), _shown(note, is_ascii)
        self._value = value

    def compose(self) -> ComposeResult:
        """The line."""
        with Vertical(classes="dialog") as box:
            box.border_title = Content(self._title)
            yield Static(Content(self._note), classes="row")
            yield Input(self._value, compact=True)
            yield Static(_keys(("enter", "do it"), ("esc", "leave")), classes="keys")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with what was typed."""
        self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        """Close without."""
        self.dismiss("")


class Page(ModalScreen[None]):
    """Shows lines to read, in the colours of their roles."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "leave", "close"),
        Binding("up,k", "scroll(-1)", "up", show=False),
        Binding("down,j", "scroll(1)", "down", show=False),
    ]

    def __init__(self, title: str, lines: Sequence[Line], palette: Palette) -> None:
        is_ascii = palette.symbols.is_ascii
        super().__init__(classes="-ascii" if is_ascii else "")
        self._title = _shown(title, is_ascii)
        rows = (Text.assemble(*((_shown(text, is_ascii), palette.style(role)) for text, role in row)) for row in lines)
        self._text = Content.from_rich_text(Text("\n").join(rows))

    def compose(self) -> ComposeResult:
        """The text."""
        with Vertical(classes="dialog wide") as box:
            box.border_title = Content(self._title)
            box.border_subtitle = Content("arrows scroll, esc closes")
            box.can_focus = True
            yield Static(self._text, classes="page")

    def action_leave(self) -> None:
        """Close."""
        self.dismiss(None)

    def action_scroll(self, rows: int) -> None:
        """Scroll a page that is longer than the terminal."""
        self.query_one(".dialog").scroll_relative(y=rows, animate=False)


def _keys(*keys: tuple[str, str]) -> Content:
    """Keys with what they do, looking as they do in the lowest line."""
    parts: list[Content | str | tuple[str, str]] = []
    for key, does in keys:
        parts += ["      "] if parts else []
        parts += [(f" {key} ", "bold $border-loud on $panel"), f" {does}"]
    return Content.assemble(*parts)


def _shown(text: str, is_ascii: bool) -> str:
    return ascii_only(inert(text)) if is_ascii else inert(text)
