"""A conversation at the terminal: prompts, answers, and commands that begin with a slash."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ostinatod import locations
from ostinatod.cli.answer import AnswerPrinter, ask, tell_end
from ostinatod.cli.conversation import PARAMETERS, Conversation
from ostinatod.cli.loaded import show_load
from ostinatod.cli.models import details_text, listing_table
from ostinatod.cli.output import print_text, report, say
from ostinatod.client import DaemonClient
from ostinatod.errors import OstinatoError, RequestError

if TYPE_CHECKING:
    from prompt_toolkit.history import History

Reader = Callable[[str], str]
"""Shows a prompt and returns the line typed; raises EOFError on Ctrl-D and KeyboardInterrupt on Ctrl-C."""

HELP = f"""\
/set system TEXT             Set the system prompt
/set parameter NAME VALUE    Set {", ".join(PARAMETERS)}
/show                        Show the model and the settings of this conversation
/load MODEL                  Talk with another model
/clear                       Forget what was said
/list                        List the models on this machine
/verbose                     Print timings after each answer, or stop printing them
/?                           Show this
/bye                         Leave; so does Ctrl-D

Begin with \"\"\" to write several lines, and end them with \"\"\".
Ctrl-C stops an answer."""

_QUOTES = '"""'


class Repl:
    """Reads, asks and prints until the reader ends or /bye is typed."""

    def __init__(
        self,
        client: DaemonClient,
        conversation: Conversation,
        read: Reader,
        *,
        verbose: bool = False,
        load_ms: float = 0.0,
        debug: bool = False,
    ) -> None:
        self._client = client
        self._conversation = conversation
        self._read = read
        self._verbose = verbose
        self._load_ms = load_ms
        self._debug = debug
        self._commands: dict[str, Callable[[str], None]] = {
            "/set": self._set,
            "/show": self._show,
            "/load": self._load,
            "/clear": self._clear,
            "/list": self._list,
            "/verbose": self._toggle_verbose,
            "/?": self._help,
            "/help": self._help,
        }

    def talk(self) -> None:
        """Hold the conversation."""
        while True:
            try:
                entry = self._entry()
            except EOFError:
                return
            except KeyboardInterrupt:
                say("Leave with Ctrl-D or /bye.")
                continue
            word, _, rest = entry.partition(" ")
            if word in ("/bye", "/exit"):
                return
            try:
                if entry.startswith("/"):
                    self._command(word, rest.strip())
                elif entry:
                    self._ask(entry.removeprefix(_QUOTES).removesuffix(_QUOTES).strip())
            except OstinatoError as error:
                report(error, debug=self._debug)
            except KeyboardInterrupt:
                say("stopped")

    def _entry(self) -> str:
        entry = self._read(">>> ").strip()
        if entry.removeprefix("/set system").lstrip().startswith(_QUOTES):
            while entry.count(_QUOTES) < 2:
                entry += "\n" + self._read("... ")
        return entry.strip()

    def _ask(self, prompt: str) -> None:
        if not prompt:
            return
        printer = AnswerPrinter()
        try:
            answer = ask(self._client, self._conversation.request(prompt), printer, self._load_ms)
        except KeyboardInterrupt:
            # What was seen of the answer is part of the conversation, and of the state that the engine keeps.
            if printer.text:
                self._conversation.add(prompt, printer.text)
            raise
        self._load_ms = 0.0
        self._conversation.add(prompt, answer.text)
        tell_end(answer, verbose=self._verbose)

    def _command(self, word: str, rest: str) -> None:
        command = self._commands.get(word)
        if command is None:
            raise RequestError(f"unknown command {word}", hint="/? lists the commands")
        command(rest)

    def _set(self, rest: str) -> None:
        what, _, value = rest.partition(" ")
        value = value.strip()
        if what == "system":
            self._conversation.system = value.removeprefix(_QUOTES).removesuffix(_QUOTES).strip() or None
            say("The system prompt is set." if self._conversation.system else "There is no system prompt now.")
        elif what == "parameter" and len(value.split()) == 2:
            name, number = value.split()
            self._conversation.set_parameter(name, number)
            say(f"{name} is {number} from now on.")
        else:
            raise RequestError("expected /set system TEXT or /set parameter NAME VALUE")

    def _show(self, rest: str) -> None:
        print_text(details_text(self._client.show(self._conversation.model)))
        print_text("\n  Conversation")
        print_text(f"    system        {self._conversation.system or '-'}")
        for name, value in self._conversation.options.items():
            print_text(f"    {name.ljust(14)}{value}")

    def _load(self, rest: str) -> None:
        if not rest:
            raise RequestError("expected /load MODEL", hint="/list shows the models on this machine")
        show_load(self._client, rest)
        self._conversation.model = rest
        self._conversation.clear()
        say(f"Talking with {rest}.")

    def _clear(self, rest: str) -> None:
        self._conversation.clear()
        say("What was said is forgotten.")

    def _list(self, rest: str) -> None:
        print_text(listing_table(self._client.models()))

    def _toggle_verbose(self, rest: str) -> None:
        self._verbose = not self._verbose
        say(f"Timings are {'on' if self._verbose else 'off'}.")

    def _help(self, rest: str) -> None:
        print_text(HELP)


def terminal_reader() -> Reader:
    """A reader with line editing, and a history that only this user can read."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.output import create_output

    # The prompt goes to whichever of stdout and stderr is the terminal, so that `| tee` gets answers only.
    session: PromptSession[str] = PromptSession(history=_history(), output=create_output(always_prefer_tty=True))

    def read(prompt: str) -> str:
        placeholder = "Send a message (/? for help)" if prompt.startswith(">") else ""
        return session.prompt(prompt, placeholder=placeholder)

    return read


def _history() -> History:
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    file = locations.data_dir() / "history"
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        say(f"What you type is not kept for the next time: {error}")
        return InMemoryHistory()
    return FileHistory(str(file))
