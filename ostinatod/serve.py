"""Run the daemon: bind, write the pid file, log, serve until told to stop, and leave no engine behind."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import logging.handlers
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import uvicorn

from ostinatod import locations
from ostinatod.api.app import create_app
from ostinatod.api.recorder import HistoryFiles
from ostinatod.config import Settings
from ostinatod.errors import ConfigError
from ostinatod.installer.engine_build import find_engine
from ostinatod.keys import KeyFile, KeyRing, local_key
from ostinatod.learning.files import LearningFiles
from ostinatod.listeners import listener_on
from ostinatod.loaded import Places
from ostinatod.store import ModelStore
from ostinatod.store.local_models import LocalPlaces

log = logging.getLogger(__name__)

DRAIN_S = 20
"""How long answers in progress may take after the daemon was told to stop."""

LOG_BYTES = 8 * 1024**2
LOG_FILES = 3


def serve(settings: Settings) -> int:
    """Serve until SIGTERM, SIGINT or a shutdown request; the exit code. Raises ConfigError if it cannot start."""
    keys = KeyFile(locations.keys_file())
    is_exposed = _is_exposed(settings.host)
    if is_exposed and not keys.read():
        raise ConfigError(
            f"host {settings.host} can be reached from other machines, and there is no API key to keep them out",
            hint="Make one: ostinato keys add NAME. Or stay on loopback and use a tunnel: OSTINATO_HOST=127.0.0.1",
        )
    sockets = _private_runtime_dir()
    listener = _bind(settings)
    try:
        _start_logging(settings)
        with local_key(locations.local_key_file()) as secret:
            ring = KeyRing(keys, exposed=is_exposed, local_secret=secret)
            return _serve_on(listener, settings, sockets, ring)
    finally:
        listener.close()


def _serve_on(listener: socket.socket, settings: Settings, sockets: Path, keys: KeyRing) -> int:
    server: uvicorn.Server

    def request_shutdown() -> None:
        server.should_exit = True

    places = Places(
        sockets=sockets,
        logs=locations.log_dir(),
        environment=dict(os.environ),
        prompts=locations.prompts_dir(),
    )
    hub_cache = locations.hub_cache_dir()
    store = ModelStore(
        locations.database_file(),
        hub_cache,
        settings.hub_endpoint,
        places=LocalPlaces.below(Path.home(), hub_cache),
    )
    history_files = HistoryFiles(locations.routing_log_file(), locations.session_key_file())
    learning_files = LearningFiles(
        locations.learning_file(), locations.residency_dir(), locations.machine_profile_file()
    )
    app = create_app(
        settings,
        store,
        find_engine,
        places,
        request_shutdown,
        keys=keys,
        history_files=history_files,
        learning_files=learning_files,
    )
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=DRAIN_S,
    )
    server = uvicorn.Server(config)
    with _pid_file(), _ended_quietly():
        asked = "required" if keys.required else "none"
        log.info("daemon_started pid=%d url=%s keys=%s", os.getpid(), settings.base_url, asked)
        server.run(sockets=[listener])
        log.info("daemon_stopped pid=%d", os.getpid())
    return 0


def _is_exposed(host: str) -> bool:
    try:
        return host != "localhost" and not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


def _private_runtime_dir() -> Path:
    directory = locations.runtime_dir()
    if len(os.fsencode(directory)) > locations.RUNTIME_DIR_BYTES:
        raise ConfigError(f"{directory} is too long for a socket's path", hint="Choose a shorter place: OSTINATO_HOME")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
    except OSError as error:
        raise ConfigError(
            f"cannot use {directory} for sockets: {error}", hint="Choose another place: OSTINATO_HOME"
        ) from error
    for left in directory.glob("engine-*-*.sock"):
        # A daemon that was killed had no chance to remove them.
        pid = left.name.split("-")[1]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            left.unlink(missing_ok=True)
    return directory


def _bind(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        # Clients that come while the application starts wait instead of being refused; and the port is ours from here.
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno != errno.EADDRINUSE:
            raise ConfigError(f"cannot listen on {settings.host}:{settings.port}: {error}") from error
        owner = listener_on(settings.port)
        raise ConfigError(
            f"port {settings.port} is in use{f' by {owner}' if owner else ''}",
            hint=f"If it is this daemon: ostinato ps. Otherwise take another port: OSTINATO_PORT={settings.port + 1}",
        ) from error
    return listener


def _start_logging(settings: Settings) -> None:
    level = logging.getLevelName(settings.log_level.upper())
    if not isinstance(level, int):
        raise ConfigError(f"log_level: expected debug, info, warning or error, found {settings.log_level!r}")
    directory = locations.log_dir()
    directory.mkdir(parents=True, exist_ok=True)
    handlers: list[logging.Handler] = [
        logging.StreamHandler(sys.stderr),
        logging.handlers.RotatingFileHandler(
            directory / "ostinatod.log", maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8"
        ),
    ]
    logging.basicConfig(
        level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s", handlers=handlers, force=True
    )
    for name in ("httpx", "httpcore", "uvicorn", "filelock", "huggingface_hub", "asyncio"):
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


@contextlib.contextmanager
def _pid_file() -> Iterator[None]:
    path = locations.pid_file()
    path.write_text(f"{os.getpid()}\n", encoding="ascii")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if path.read_text(encoding="ascii").strip() == str(os.getpid()):
                path.unlink()


@contextlib.contextmanager
def _ended_quietly() -> Iterator[None]:
    """uvicorn raises the signal that stopped it once more when it has ended in order; that must not kill us then."""
    previous = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
