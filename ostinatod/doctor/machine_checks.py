"""Checks of what the machine grants this user: locked memory, disk space, a usable terminal."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from ostinatod.doctor.findings import Finding, ok, problem, warning

UNLIMITED = -1
"""RLIM_INFINITY, as `resource.getrlimit` tells it."""

ENGINE_BUILD_BYTES = 1_000_000_000
"""Source, objects and the finished build; a CPU build has taken 0.3 GB, CUDA kernels take more."""
DATA_BYTES = 200_000_000
"""The database and its journal."""
DOWNLOAD_BYTES = 20_000_000_000
"""A small MoE model in four bits; `ostinato pull` tells the exact need before it starts."""

_SMALLEST_TERMINAL = (80, 24)


def check_memory_lock(soft: int, hard: int, memory_bytes: int, *, wanted: bool) -> Finding:
    """Memory may be locked where something locks it: `--mlock`, or GPUs that are fed from host memory.

    soft, hard  the limits in bytes, or UNLIMITED
    """
    if soft == UNLIMITED or soft >= memory_bytes:
        return ok("memory-lock", "no limit that matters")
    if not wanted:
        return ok("memory-lock", f"at most {soft // 1024} KiB, and nothing here locks memory")
    found = f"at most {soft // 1024} KiB may be locked, of {memory_bytes // 1024**2} MiB of memory"
    if hard == UNLIMITED or hard > soft:
        return warning("memory-lock", found, "Raise it in the shell that starts the daemon: ulimit -l hard")
    return warning(
        "memory-lock",
        found,
        "Have an administrator allow it: 'USER - memlock unlimited' in /etc/security/limits.d/ostinato.conf",
    )


def check_disk(check: str, directory: Path, needed_bytes: int, purpose: str, move: str) -> Finding:
    """There is room in `directory`, or where it will be made, and it can be written.

    purpose  what the room is for, in words
    move     how the directory is moved elsewhere
    """
    place = directory
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return problem(check, f"{place} cannot be written", f"Mend its permissions, or choose another place: {move}")
    free = shutil.disk_usage(place).free
    text = f"{free / 1e9:.1f} GB free in {directory}"
    if free < needed_bytes:
        return warning(
            check, f"{text}; {purpose} takes about {needed_bytes / 1e9:.1f} GB", f"Free some, or move it: {move}"
        )
    return ok(check, text)


def check_terminal(
    environment: Mapping[str, str], *, is_terminal: bool, encoding: str | None, size: os.terminal_size | None
) -> Finding:
    """The terminal shows colour, box characters and at least 80x24 cells, as the dashboard wants."""
    if not is_terminal:
        return ok("terminal", "output goes to a file or a pipe")
    if environment.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return warning(
            "terminal",
            f"expected a terminal type with cursor movement, found TERM={environment.get('TERM', '')}",
            "export TERM=xterm-256color",
        )
    if (encoding or "").replace("-", "").lower() != "utf8":
        return warning("terminal", f"expected UTF-8 output, found {encoding or 'none'}", "export LC_ALL=C.UTF-8")
    if size is not None and (size.columns < _SMALLEST_TERMINAL[0] or size.lines < _SMALLEST_TERMINAL[1]):
        return warning(
            "terminal",
            f"expected at least 80x24 cells, found {size.columns}x{size.lines}",
            "Enlarge the window before `ostinato tui`",
        )
    colours = "24-bit colour" if environment.get("COLORTERM") in ("truecolor", "24bit") else "256 colours or fewer"
    if environment.get("NO_COLOR"):
        colours = "colour turned off by NO_COLOR"
    return ok("terminal", f"{environment['TERM']}, UTF-8, {colours}")
