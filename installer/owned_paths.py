"""Tells `python3 installer uninstall` which paths outside the checkout belong to Ostinato: JSON on standard output.

A folder that the user named (OSTINATO_HOME, OSTINATO_ENGINE_CACHE) may hold other things too, so only known entries of
it are listed. The hub cache is shared with other tools and never listed.
"""

from __future__ import annotations

import json
import os

from ostinatod import locations
from ostinatod.installer.build_cache import BuildCache


def owned_paths() -> dict[str, list[str]]:
    """Existing paths: "builds" can be made again, "data" is the user's."""
    data = [locations.config_file(), locations.log_dir(), locations.data_dir()]
    if os.environ.get("OSTINATO_HOME"):
        database = locations.database_file()
        data = [locations.config_file(), *database.parent.glob(f"{database.name}*")]
    logs = [path for name in ("engine-build-*.log", "bindings.log") for path in locations.log_dir().glob(name)]
    return {
        "builds": sorted(map(str, [*BuildCache(locations.engine_cache_dir()).entries(), *logs])),
        "data": [str(path) for path in data if path.exists()],
    }


if __name__ == "__main__":
    print(json.dumps(owned_paths()))
