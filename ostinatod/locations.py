"""Every path the project uses outside its own source, and nowhere else.

``OSTINATO_HOME`` moves all of them below one directory (tests and portable installs use it). Functions create nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

_APP = "ostinato"


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
    """The SQLite database: models, and from the learning on, routing counts."""
    return data_dir() / "ostinato.db"


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
    home = _home()
    return home / "run" if home else Path(platformdirs.user_runtime_dir(_APP))


def hub_cache_dir() -> Path:
    """Where the hub client keeps downloads; shared with other tools so that nothing is stored twice."""
    if explicit := os.environ.get("HF_HUB_CACHE"):
        return Path(explicit).expanduser()
    if hf_home := os.environ.get("HF_HOME"):
        return Path(hf_home).expanduser() / "hub"
    return Path("~/.cache/huggingface/hub").expanduser()
