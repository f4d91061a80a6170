"""Every path the project uses outside its own source, and nowhere else.

``OSTINATO_HOME`` moves all of them below one directory (tests and portable installs use it). Functions create nothing.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import platformdirs

_APP = "ostinato"

RUNTIME_DIR_BYTES = 100 - len("/engine-4194304-999.sock")
"""Longest runtime directory: socket paths end at 104 bytes on some systems, including the terminating zero."""


def _home() -> Path | None:
    home = os.environ.get("OSTINATO_HOME")
    return Path(home).expanduser().absolute() if home else None


def config_file() -> Path:
    """The optional TOML file with the user's settings."""
    home = _home()
    return (home or Path(platformdirs.user_config_dir(_APP))) / "config.toml"


def data_dir() -> Path:
    """What must survive: the database and the user's imported files."""
    return _home() or Path(platformdirs.user_data_dir(_APP))


def database_file() -> Path:
    """The SQLite database of registered models."""
    return data_dir() / "ostinato.db"


def routing_log_file() -> Path:
    """The SQLite database of routing counts. Its own file, so that a fault in it or its deletion touches no model."""
    return data_dir() / "routes.db"


def session_key_file() -> Path:
    """The key under which session ids are hashed before they are logged."""
    return data_dir() / "routes.key"


def learning_file() -> Path:
    """The SQLite database of residency generations: what was kept hot, when, why, and what it did."""
    return data_dir() / "learning.db"


def residency_dir() -> Path:
    """The residency file in use of each model."""
    return data_dir() / "residency"


def prompts_dir() -> Path:
    """Prompt state of models that are not in memory, where the user wants that kept."""
    return data_dir() / "prompts"


def machine_profile_file() -> Path:
    """What was measured of this machine."""
    return cache_dir() / "machine.json"


def keys_file() -> Path:
    """Hashes of the API keys that the daemon accepts."""
    return data_dir() / "keys.json"


def local_key_file() -> Path:
    """The key that the running daemon has made for the command line of its own user."""
    return runtime_dir() / "local.key"


def log_dir() -> Path:
    """Logs of the daemon and of the engine processes."""
    home = _home()
    return home / "logs" if home else Path(platformdirs.user_log_dir(_APP))


def cache_dir() -> Path:
    """What can be made again: sources and engine builds."""
    home = _home()
    return home / "cache" if home else Path(platformdirs.user_cache_dir(_APP))


def engine_cache_dir() -> Path:
    """Engine sources, builds by digest, and the note that says which build is current.

    ``OSTINATO_ENGINE_CACHE`` moves it alone, so that tests with a fresh home can share one compiled engine.
    """
    override = os.environ.get("OSTINATO_ENGINE_CACHE")
    return Path(override).expanduser().absolute() if override else cache_dir() / "engine"


def runtime_dir() -> Path:
    """Sockets and the daemon's pid file, for mode 0700. Short, because socket paths end at 108 bytes."""
    if home := _home():
        return home / "run"
    with warnings.catch_warnings():
        # Without a log-in session (containers, cron, su) there is none, and a folder of the user's own serves as well.
        warnings.simplefilter("ignore")
        return Path(platformdirs.user_runtime_dir(_APP))


def pid_file() -> Path:
    """Holds the pid of the daemon that was started last and has not ended in order."""
    return runtime_dir() / "ostinatod.pid"


def hub_cache_dir() -> Path:
    """Where the hub client keeps downloads; shared with other tools so that nothing is stored twice."""
    if explicit := os.environ.get("HF_HUB_CACHE"):
        return Path(explicit).expanduser()
    if hf_home := os.environ.get("HF_HOME"):
        return Path(hf_home).expanduser() / "hub"
    return Path("~/.cache/huggingface/hub").expanduser()
