"""`python -m ostinatod.installer.upstream_tree DIRECTORY`: the pinned llama.cpp, unpatched, to work on the series."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from ostinatod import locations
from ostinatod.installer.build_progress import BuildProgress
from ostinatod.installer.engine_build import kernels_patch_dir
from ostinatod.installer.source_fetch import unpack_pinned
from ostinatod.installer.upstream import read_upstream


def copy_upstream(target: Path) -> None:
    """Copies the pinned source to `target`, which must not exist, fetching it first when needed."""
    upstream = read_upstream(kernels_patch_dir() / "UPSTREAM")
    log = locations.log_dir() / "upstream-tree.log"
    shutil.copytree(unpack_pinned(locations.engine_cache_dir(), upstream, None, log, _ignore), target)


def _ignore(progress: BuildProgress) -> None:
    pass


if __name__ == "__main__":
    copy_upstream(Path(sys.argv[1]))
