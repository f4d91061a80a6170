"""Start a program that cannot outlive its parent: ``python guard.py PROGRAM ARGUMENT...``, standard input being a pipe.

The parent keeps the pipe's other end and never writes to it. A forked watcher waits for that pipe to close, which the
kernel does even when the parent is killed, and then kills the process group; meanwhile this process becomes PROGRAM, so
that the parent sees PROGRAM's own pid and exit status. The parent starts us as the leader of a new session. Unlike
Linux's death signal this works on every POSIX system and does not depend on which thread started us.
"""

from __future__ import annotations

import os
import signal
import sys


def main(argv: list[str]) -> None:
    """Become `argv`; raises OSError if it cannot be executed."""
    if os.getpid() != os.getpgrp():
        raise SystemExit("guard: expected to lead a process group of its own")
    if os.fork() == 0:
        _watch()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.execv(argv[0], argv)


def _watch() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    while os.read(0, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
