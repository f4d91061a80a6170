"""API keys: made, listed and removed by the user, checked by the daemon, stored only as hashes.

A key is 256 random bits, so one SHA-256 is as good as a slow hash: there is nothing to guess. While any key exists,
every request needs one. The command line on the daemon's own machine uses a key that the daemon makes anew at each
start and keeps in its private runtime directory.
"""

from __future__ import annotations

import difflib
import hashlib
import hmac
import ipaddress
import json
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import urlsplit

from ostinatod import locations
from ostinatod.config import client_api_key
from ostinatod.errors import ConfigError, KeyNotFound

log = logging.getLogger(__name__)

_PREFIX = "ost_"
_SECRET_BYTES = 32
_ID_DIGITS = 8
_VERSION = 1


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is kept of a key; the key itself is not."""

    id: str
    name: str
    created_at: str
    """ISO 8601, UTC."""
    sha256: str


class KeyFile:
    """The registered keys, in a file that only its owner can read. Raises ConfigError if it cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> tuple[ApiKey, ...]:
        """Every registered key, the oldest first."""
        try:
            told = json.loads(self._path.read_text(encoding="utf-8"))
            return tuple(ApiKey(**key) for key in told["keys"])
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"cannot read the API keys in {self._path}: {error}", hint=f"Make new ones: rm {self._path}"
            ) from error

    def add(self, name: str) -> tuple[ApiKey, str]:
        """Register a new key; what is kept of it, and the key, which cannot be shown again."""
        kept = self.read()
        if any(key.name == name for key in kept):
            raise ConfigError(f"there is a key called {name!r} already", hint=f"Remove it: ostinato keys rm {name}")
        secret = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        digest = _digest(secret)
        added = ApiKey(digest[:_ID_DIGITS], name, datetime.now(timezone.utc).isoformat(timespec="seconds"), digest)
        self._write((*kept, added))
        return added, secret

    def remove(self, wanted: str) -> ApiKey:
        """Forget the key of that name or id; it is refused from the next request on. Raises KeyNotFound."""
        kept = self.read()
        removed = next((key for key in kept if wanted in (key.name, key.id)), None)
        if removed is None:
            close = difflib.get_close_matches(wanted, [key.name for key in kept], n=3)
            hint = f"Did you mean {' or '.join(close)}?" if close else "List them: ostinato keys list"
            raise KeyNotFound(f"there is no key called {wanted!r}", hint=hint)
        self._write(tuple(key for key in kept if key != removed))
        return removed

    def stamp(self) -> tuple[int, int, int] | None:
        """Changes whenever the file does; None while there is none."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _write(self, keys: Sequence[ApiKey]) -> None:
        content = json.dumps({"version": _VERSION, "keys": [asdict(key) for key in keys]}, indent=2)
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_private(beside, content)
            beside.replace(self._path)
        except OSError as error:
            raise ConfigError(f"cannot write the API keys to {self._path}: {error}") from error


class KeyRing:
    """The daemon's view of the keys; a change of the file holds from the next request on.

    `exposed` daemons require a key even when none is registered: then nobody is let in. Nor is anybody while the file
    cannot be read, other than with the local key.
    """

    def __init__(self, file: KeyFile, *, exposed: bool = False, local_secret: str | None = None) -> None:
        self._file = file
        self._exposed = exposed
        self._local = _digest(local_secret) if local_secret else None
        self._stamp: tuple[int, int, int] | None = None
        self._digests: tuple[str, ...] = ()
        self._is_broken = False

    @property
    def exposed(self) -> bool:
        """Whether other machines can reach the daemon."""
        return self._exposed

    @property
    def required(self) -> bool:
        """Whether a request needs a key."""
        return bool(self._current()) or self._exposed or self._is_broken

    def accepts(self, secret: str | None) -> bool:
        """Whether `secret` is a registered key or the local one, in a time that does not tell how close it was."""
        if not secret:
            return False
        found = _digest(secret)
        known = (*self._current(), *filter(None, [self._local]))
        # Every comparison is made, whichever holds.
        return sum(hmac.compare_digest(found, digest) for digest in known) > 0

    def _current(self) -> tuple[str, ...]:
        stamp = self._file.stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._digests = tuple(key.sha256 for key in self._file.read())
                self._is_broken = False
            except ConfigError as error:
                self._digests, self._is_broken = (), True
                log.error("keys_unreadable reason=%r", error.message)
        return self._digests


@contextmanager
def local_key(path: Path) -> Iterator[str]:
    """A key for this machine's command line, readable by its owner in `path` for as long as the context lasts."""
    secret = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    path.unlink(missing_ok=True)
    _write_private(path, secret)
    try:
        yield secret
    finally:
        with suppress(OSError):
            if path.read_text(encoding="ascii") == secret:
                path.unlink()


def read_local_key(path: Path) -> str | None:
    """The key that the daemon on this machine has put down for its owner; None if there is none."""
    try:
        return path.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def key_for(base_url: str) -> str | None:
    """The key that a client sends to the daemon at `base_url`: the user's own, or the local one on this machine."""
    if own := client_api_key():
        return own
    host = urlsplit(base_url).hostname or ""
    try:
        is_here = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_here = False
    return read_local_key(locations.local_key_file()) if is_here else None


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", errors="surrogateescape")).hexdigest()


def _write_private(path: Path, content: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(content)
