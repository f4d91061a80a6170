"""A real terminal that tests type into and look at."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from tests.conftest import eventually


class Terminal:
    """A tmux server of its own, with one window."""

    def __init__(self, directory: Path) -> None:
        self._tmux = ("tmux", "-S", str(directory / "tmux"), "-f", "/dev/null")

    def start(self, command: str, size: tuple[int, int], **environment: str) -> None:
        """Run a command in it; what follows its end is shown too."""
        settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
        shell = f"env -u NO_COLOR {settings} {command}; echo ended with $?; sleep 60"
        width, height = size
        subprocess.run([*self._tmux, "new-session", "-d", "-x", str(width), "-y", str(height), shell], check=True)

    def press(self, *keys: str) -> None:
        """Type keys, as tmux names them."""
        subprocess.run([*self._tmux, "send-keys", *keys], check=True)

    def screen(self, *, with_colours: bool = False) -> str:
        """What it shows."""
        options = ["-e"] if with_colours else []
        shown = subprocess.run(
            [*self._tmux, "capture-pane", "-p", *options], capture_output=True, text=True, check=True
        )
        return shown.stdout

    def until_shown(self, *words: str) -> str:
        """Wait until it shows all of the words at once; what it shows then."""

        def shown() -> str | None:
            screen = self.screen()
            return screen if all(word in screen for word in words) else None

        return str(eventually(shown, f"{words} on the screen", within_s=60, every_s=0.2))

    def close(self) -> None:
        """End it with what runs in it."""
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)
