"""Names of models: how they are written, compared and suggested.

``tiny``, ``mine:fast``, ``org/repo``, ``org/repo:Q4_K_M``, each also behind ``hf.co/`` or ``https://huggingface.co/``.
Names are compared without case. The grammar admits no path: parts start with a letter, digit or underscore.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ostinatod.errors import ModelNameError

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MAX_PART = {"namespace": 80, "model": 96, "tag": 128}
_HOSTS = ("huggingface.co/", "www.huggingface.co/", "hf.co/", "hf-mirror.com/")
_LATEST = "latest"
"""The tag that Ollama's clients append to a name without one."""


@dataclass(frozen=True, slots=True)
class ModelName:
    """A parsed name. A namespace makes it a hub repository; the tag is then the quantisation."""

    namespace: str | None
    model: str
    tag: str | None = None

    def __str__(self) -> str:
        stem = f"{self.namespace}/{self.model}" if self.namespace else self.model
        return f"{stem}:{self.tag}" if self.tag else stem

    @property
    def key(self) -> str:
        """What two spellings of one name have in common."""
        return str(self).lower()

    @property
    def repository(self) -> str | None:
        """``org/repo``, or None for a name that is not from the hub."""
        return f"{self.namespace}/{self.model}" if self.namespace else None


def parse_name(text: str) -> ModelName:
    """The name in `text`. Raises ModelNameError, naming the part that is wrong."""
    rest = _without_host(text.strip())
    path, colon, tag = rest.partition(":")
    namespace, slash, model = path.rpartition("/")
    if slash:
        _check(text, "namespace", namespace)
    _check(text, "model", model)
    if colon:
        _check(text, "tag", tag)
    kept_tag = None if not colon or tag.lower() == _LATEST else tag
    return ModelName(namespace if slash else None, model, kept_tag)


def name_from_stem(stem: str) -> str:
    """A name for a file called `stem`: what the grammar does not admit becomes a dash."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).lstrip(".-")
    return name[: _MAX_PART["model"]] or "model"


def suggest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three known names that look like `name`, or whose last part does, the likeliest first."""
    by_key: dict[str, str] = {}
    for candidate in known:
        by_key.setdefault(candidate.lower().rpartition("/")[2], candidate)
        by_key[candidate.lower()] = candidate
    matches = difflib.get_close_matches(name.lower(), by_key, n=6, cutoff=0.6)
    return list(dict.fromkeys(by_key[match] for match in matches))[:3]


def _without_host(text: str) -> str:
    rest = re.sub(r"^https?://", "", text, flags=re.IGNORECASE)
    for host in _HOSTS:
        if rest.lower().startswith(host):
            return rest[len(host) :].rstrip("/")
    return text


def _check(text: str, part: str, value: str) -> None:
    if _PART.fullmatch(value) and len(value) <= _MAX_PART[part]:
        return
    raise ModelNameError(
        f"expected letters, digits, '_', '.' and '-' as the {part} of a model name, "
        f"found {value[:200]!r} in {text[:200]!r}",
        hint="Names look like tiny, org/repo or org/repo:Q4_K_M.",
    )
