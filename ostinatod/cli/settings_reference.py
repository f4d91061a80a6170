"""Writes the reference of the settings as Markdown: `python -m ostinatod.cli.settings_reference > docs/settings.md`.

What a setting means is read from the text below its field in `ostinatod.config`, so that there is one place for it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterator

import click

from ostinatod import config
from ostinatod.config import FOREVER_S, Settings, variable_name

_FURTHER_VARIABLES = {"hub_endpoint": "HF_ENDPOINT"}
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))

_INTRODUCTION = """\
# Settings

Defaults, then the TOML file, then `OSTINATO_*` variables, then command-line flags; the later wins. The file is
`config.toml` in the user's configuration folder (`~/.config/ostinato/` on Linux), or in `OSTINATO_HOME`, which moves
everything below one folder. An unknown key or a malformed value is refused by name; `ostinato doctor` says which.

```toml
# ~/.config/ostinato/config.toml
context_tokens = 32768
keep_alive_s = "forever"
engine_args = ["--mlock"]
```"""

_REST = """\
Durations are `90`, `90s`, `5m`, `1h30m` or `forever`. Lists are separated by spaces or commas in a variable.

## What only the environment says

| variable | meaning |
|---|---|
| `OSTINATO_HOME` | one folder for everything below except models |
| `OSTINATO_ENGINE_CACHE` | the folder of engine sources and builds alone |
| `HF_TOKEN`, `HF_TOKEN_PATH` | for gated models; `hf auth login` keeps it for you |
| `HF_HOME`, `HF_HUB_CACHE` | where downloaded models lie |
| `HF_HUB_OFFLINE` | nothing is downloaded |
| `CUDA_VISIBLE_DEVICES` | which GPUs the engine sees |
| `OSTINATO_API_KEY` | the API key that the command line sends |
| `NO_COLOR` | no colour in the terminal |

`ostinato service install` writes the settings of the shell it is called in into the service, tokens and keys excepted.

## Where things lie

| place | on Linux | holds |
|---|---|---|
| configuration | `~/.config/ostinato` | `config.toml` |
| data | `~/.local/share/ostinato` | the database, the lines typed in `ostinato run` |
| hub cache | `~/.cache/huggingface/hub` | downloaded models, shared with other tools |
| cache | `~/.cache/ostinato` | engine sources and builds |
| logs | `~/.local/state/ostinato/log` | of the daemon, the engines and the builds: `ostinato logs` |
| runtime | `/run/user/UID/ostinato` | sockets and the pid of the daemon |

`python3 installer uninstall` removes the builds, the service and completion, and with `--purge` also settings, logs and
data; models in the hub cache stay.

This page is generated: `python -m ostinatod.cli.settings_reference > docs/settings.md`."""


def settings_reference() -> str:
    """The whole page."""
    rows = ["| key in the file | variable | default | meaning |", "|---|---|---|---|", *_rows()]
    return "\n\n".join([_INTRODUCTION, "\n".join(rows), _REST]) + "\n"


def meanings() -> dict[str, str]:
    """The text below each field of the settings, in one line; a field without one is left out."""
    (tree,) = ast.parse(inspect.getsource(config.Settings)).body
    if not isinstance(tree, ast.ClassDef):
        raise TypeError("expected the class of the settings")
    found: dict[str, str] = {}
    name = ""
    for statement in tree.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
        elif name and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            found[name] = " ".join(str(statement.value.value).split())
            name = ""
        else:
            name = ""
    return found


def _rows() -> Iterator[str]:
    meaning = meanings()
    for field in dataclasses.fields(Settings):
        variables = [variable_name(field.name), *filter(None, [_FURTHER_VARIABLES.get(field.name)])]
        named = ", ".join(f"`{variable}`" for variable in variables)
        default = _shown(field.name, getattr(Settings(), field.name))
        yield f"| `{field.name}` | {named} | {default} | {meaning.get(field.name, '').replace('|', chr(92) + '|')} |"


def _shown(name: str, value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value)
    if name.endswith("_s") and isinstance(value, float):
        return f"`{_duration(value)}`"
    return f"`{value}`"


def _duration(seconds: float) -> str:
    if seconds == FOREVER_S:
        return "forever"
    for size, unit in _UNITS:
        if seconds >= size and seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return f"{seconds:g}s"


if __name__ == "__main__":
    click.echo(settings_reference(), nl=False)
