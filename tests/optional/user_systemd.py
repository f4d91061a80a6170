"""A real `systemd --user` of an unprivileged user, in namespaces of its own: nothing of it is left when it ends.

Needs root, systemd, and a kernel that lets it mount; a machine that was not booted with systemd will do. The manager
is told so by an empty /run/systemd/system, which is what `sd_booted(3)` looks at; it gets a control group to keep its
units in, and a home on a file system in memory. Processes of the namespace end with its first one.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.conftest import eventually

USER, USER_ID = "nobody", 65534
HOME = Path("/run/home")
"""Of the user, inside."""
_RUNTIME = Path("/run/user") / str(USER_ID)
_MANAGERS = (Path("/usr/lib/systemd/systemd"), Path("/lib/systemd/systemd"))
_TOOLS = ("systemctl", "unshare", "nsenter", "setpriv", "mount")

# The control group of the test is seen as the root of the hierarchy, so that the manager may move processes in it.
_BOOT = """\
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/systemd/system /run/user {home} {runtime} /run/group
chown {uid}:{uid} {home} {runtime}
chmod 700 {home} {runtime}
{ways}
mount -t cgroup2 cgroup2 /run/group
mkdir /run/group/{group}
chown -R {uid}:{uid} /run/group/{group}
echo $$ > /run/group/{group}/cgroup.procs
mount -t tmpfs tmpfs /sys/fs/cgroup
mount --move /run/group /sys/fs/cgroup
cd /
{as_user} {manager} --user --log-target=console &
wait $!
"""


class UserSystemd:
    """The manager. Use as a context manager. Skips the test where it cannot be had.

    directory  holds what it says
    needs      folders that the user must be able to read, though they may lie in another user's closed home
    """

    def __init__(self, directory: Path, needs: Sequence[Path] = ()) -> None:
        self._said = directory / "manager.log"
        self._needs = [path.resolve() for path in needs]
        self._group = f"ostinato-test-{os.getpid()}"

    def __enter__(self) -> UserSystemd:
        manager = next((path for path in _MANAGERS if path.exists()), None)
        missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
        if manager is None or missing:
            self._skip(f"no {', '.join(missing) or 'systemd'} here")
        if os.geteuid() != 0:
            self._skip("only root can make its namespaces")
        boot = _BOOT.format(
            home=HOME,
            runtime=_RUNTIME,
            uid=USER_ID,
            group=self._group,
            ways=_ways(self._needs),
            as_user=_as_user({}),
            manager=manager,
        )
        with self._said.open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", boot],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        eventually(lambda: self._is_up() or self._process.poll() is not None, "systemd --user is up", within_s=30)
        if self._process.poll() is not None:
            said = self._said.read_text(errors="replace").strip().splitlines()
            self._skip(f"it does not start: {said[-1] if said else 'no word'}")
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._remove_group()

    def run(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as the user. Its status is not judged."""
        words = ["sh", "-c", f"cd {HOME} && exec {_as_user(environment)} {shlex.join(map(str, command))}"]
        return subprocess.run(
            ["nsenter", "--target", str(self._first()), "--mount", "--pid", *words],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def systemctl(self, *words: str) -> str:
        """What `systemctl --user` answers."""
        return self.run("systemctl", "--user", *words).stdout.strip()

    def files(self) -> set[str]:
        """Every file and link in the user's home."""
        found = self.run("find", ".", "(", "-type", "f", "-o", "-type", "l", ")", "-printf", r"%P\n").stdout
        return set(found.splitlines())

    def processes(self, words: str) -> list[str]:
        """Command lines inside that hold `words`."""
        script = 'for file in /proc/[0-9]*/cmdline; do tr "\\0" " " < "$file" 2>/dev/null; echo; done'
        return [line for line in self.run("sh", "-c", script).stdout.splitlines() if words in line]

    def _is_up(self) -> bool:
        return self._process.poll() is None and self._has_first() and self.systemctl("is-system-running") == "running"

    def _has_first(self) -> bool:
        return bool(self._children())

    def _first(self) -> int:
        """The first process of the namespace."""
        return int(self._children()[0])

    def _children(self) -> list[str]:
        pid = self._process.pid
        try:
            return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return []

    def _remove_group(self) -> None:
        """Take away the control group, which outlives its processes."""
        mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
        for root in (Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"):
            group = root / self._group
            if group.is_dir():
                eventually(lambda group=group: _removed(group), "the control group is empty", within_s=10)

    def _skip(self, why: str) -> None:
        pytest.skip(f"THE SERVICE IS NOT TESTED ON A REAL SYSTEMD: {why}")


def _removed(group: Path) -> bool:
    try:
        for inner in sorted(group.rglob("*"), reverse=True):
            if inner.is_dir():
                inner.rmdir()
        group.rmdir()
    except OSError:
        return False
    return True


def _ways(needs: Sequence[Path]) -> str:
    """Commands that put an empty folder over every closed one, with only what is needed of it inside."""
    commands = [f"mkdir -p /run/ways/{at} && mount --bind {path} /run/ways/{at}" for at, path in enumerate(needs)]
    closed = {at: _closed(path) for at, path in enumerate(needs)}
    commands += [f"mount -t tmpfs -o mode=755 tmpfs {folder}" for folder in sorted({*closed.values()} - {None})]
    for at, path in enumerate(needs):
        if closed[at] is not None:
            commands.append(f"mkdir -p {path} && mount --bind /run/ways/{at} {path}")
    return "\n".join(commands)


def _closed(path: Path) -> Path | None:
    """The outermost folder above `path` that others may not enter."""
    return next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001), None)


def _as_user(environment: Mapping[str, str]) -> str:
    """The words that start a program as the user, with an environment that has nothing of ours."""
    settings = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(HOME),
        "USER": USER,
        "LOGNAME": USER,
        "LANG": "C.UTF-8",
        "XDG_RUNTIME_DIR": str(_RUNTIME),
        **environment,
    }
    pairs = " ".join(shlex.quote(f"{name}={value}") for name, value in settings.items())
    return f"setpriv --reuid={USER_ID} --regid={USER_ID} --clear-groups env -i {pairs}"
