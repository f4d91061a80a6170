"""Tells `python3 installer uninstall` which paths outside the checkout belong to Ostinato: JSON on standard output.

A folder that the user named (OSTINATO_HOME, OSTINATO_ENGINE_CACHE) may hold other things too, so only known entries of
it are listed. The hub cache is shared with other tools and never listed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from ostinatod import locations
from ostinatod.installer.build_cache import BuildCache
from ostinatod.installer.integration import integration_paths

_FOLDER_NAMES = ("ostinato", "log", "logs", "cache", "run", "engine")
"""Of folders that are made here; the parent of the logs, for one, belongs to everybody on some systems."""


def owned_paths() -> dict[str, list[str]]:
    """Existing paths: "builds" can be made again, "data" is the user's, "integration" is service and completion.

    "folders" are ours too, and may go once they are empty.
    """
    if os.environ.get("OSTINATO_HOME"):
        data = _known_data()
    else:
        data = [locations.config_file(), locations.log_dir(), locations.data_dir()]
    logs = [path for name in ("engine-build-*.log", "bindings.log") for path in locations.log_dir().glob(name)]
    passing = [locations.machine_profile_file(), locations.pid_file(), locations.local_key_file()]
    builds = [*BuildCache(locations.engine_cache_dir()).entries(), *logs, *(path for path in passing if path.exists())]
    return {
        "integration": sorted(map(str, integration_paths())),
        "builds": sorted(map(str, builds)),
        "data": [str(path) for path in data if path.exists()],
        "folders": [str(path) for path in _folders()],
    }


def _folders() -> list[Path]:
    """Those that the daemon, the command line and the installer make; none that the user named."""
    made = [locations.config_file().parent, locations.data_dir(), locations.runtime_dir(), locations.log_dir()]
    made += [locations.log_dir().parent, locations.cache_dir(), locations.engine_cache_dir()]
    variables = (os.environ.get(name) for name in ("OSTINATO_HOME", "OSTINATO_ENGINE_CACHE"))
    named = {Path(value).expanduser().absolute() for value in variables if value}
    return [path for path in made if path not in named and path.name in _FOLDER_NAMES]


def _known_data() -> list[Path]:
    """What the daemon and the command line keep in a folder that may hold other things."""
    databases = (locations.database_file(), locations.routing_log_file(), locations.learning_file())
    files = [path for file in databases for path in file.parent.glob(f"{file.name}*")]
    files += [locations.config_file(), locations.session_key_file(), locations.keys_file()]
    files += [locations.residency_dir(), locations.prompts_dir()]
    files += [locations.data_dir() / name for name in ("history", "clients")]
    patterns = ("ostinatod.log*", "daemon.log*", "engine-*.log*")
    return files + [path for pattern in patterns for path in locations.log_dir().glob(pattern)]


if __name__ == "__main__":
    print(json.dumps(owned_paths()))
