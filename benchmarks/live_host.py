"""A daemon of its own with a folder of its own, its command line, and what it leaves on the machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from live_steps import CheckFailed, check

from ostinatod import locations
from ostinatod.installer.build_cache import SERVER_NAME
from ostinatod.installer.engine_build import kernels_patch_dir
from ostinatod.installer.upstream import read_upstream
from ostinatod.machine.gpus import list_gpus

POLL_S = 0.02
STOP_S = 10.0
BALLAST = Path(__file__).with_name("gpu_ballast.py")


def engine_cache(libraries: Path | None, folder: Path) -> Path:
    """Where the daemon finds its engine: the installed one, or the binaries in `libraries` as if they were."""
    if libraries is None:
        return locations.engine_cache_dir()
    libraries = libraries.resolve()
    digest = hashlib.sha256()
    for file in sorted([libraries / SERVER_NAME, *libraries.glob("lib*.so")]):
        digest.update(file.name.encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    build = folder / digest.hexdigest()
    build.mkdir(parents=True)
    (build / "bin").symlink_to(libraries)
    note = {
        "backend": "cuda" if any(libraries.glob("libggml-cuda*")) else "cpu",
        "llama_cpp_commit": read_upstream(kernels_patch_dir() / "UPSTREAM").llama_cpp_commit,
        "sources_digest": "unknown",
    }
    (build / "build.json").write_text(json.dumps(note), encoding="utf-8")
    (folder / "current.json").write_text(json.dumps({"digest": build.name}), encoding="utf-8")
    return folder


@dataclass(slots=True)
class Host:
    """The daemon that is tried, as its users meet it: a command, a port, processes, GPU memory."""

    folder: Path
    raw: Path
    """Where everything that was told is kept."""
    environment: dict[str, str]
    http: httpx.Client
    free_before: list[int]
    """Of each GPU, before anything was started; bytes."""
    process: subprocess.Popen[bytes] | None = None
    commands: list[dict[str, Any]] = field(default_factory=list)

    def set(self, **variables: str) -> None:
        """Set variables for what is started from now on."""
        self.environment.update(variables)

    def cli(self, *arguments: str, statuses: Sequence[int] = (0,)) -> str:
        """What `ostinato …` prints. Raises CheckFailed for another exit status than those."""
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "ostinatod", *arguments],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = round(time.monotonic() - begun, 2)
        self.commands.append({"command": " ".join(arguments), "status": done.returncode, "seconds": seconds})
        name = "-".join(argument.strip("-") for argument in arguments if "/" not in argument)
        name = f"{len(self.commands):02d}-{name}"
        self.keep(f"{name}.{'json' if '--json' in arguments else 'txt'}", done.stdout)
        if done.stderr:
            self.keep(f"{name}.stderr.txt", done.stderr)
        check(done.returncode in statuses, f"`ostinato {' '.join(arguments)}` to work", done.stderr.strip()[-300:])
        return done.stdout

    def json(self, *arguments: str, statuses: Sequence[int] = (0,)) -> Any:
        """The same with --json, read."""
        return json.loads(self.cli(*arguments, "--json", statuses=statuses))

    def keep(self, name: str, text: str) -> None:
        """Keep what was told."""
        (self.raw / name).write_text(text, encoding="utf-8")

    def start(self) -> None:
        """Start the daemon; returns when it answers."""
        with (self.folder / "serve.txt").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ostinatod", "serve"],
                env=self.environment,
                cwd=self.folder,
                stdout=output,
                stderr=output,
            )

        def is_up() -> bool:
            check(self.running() is not None, "the daemon to run", (self.folder / "serve.txt").read_text()[-300:])
            with contextlib.suppress(httpx.TransportError):
                return self.http.get("/health").is_success
            return False

        eventually(is_up)

    def running(self) -> psutil.Process | None:
        """The daemon's process, while there is one."""
        if self.process is None or self.process.poll() is not None:
            return None
        return psutil.Process(self.process.pid)

    def get(self, path: str) -> Any:
        """What the daemon's API tells. Raises CheckFailed where it refuses."""
        answer = self.http.get(path)
        check(answer.is_success, f"GET {path} to work", answer.text[:300])
        return answer.json()

    def model(self, name: str) -> dict[str, Any]:
        """The loaded model in the daemon's status."""
        models: list[dict[str, Any]] = self.get("/ostinato/status")["models"]
        found = next((model for model in models if model["name"] == name), None)
        if found is None:
            raise CheckFailed(f"expected {name} to be in memory, found {[model['name'] for model in models]}")
        return found

    def kill(self) -> None:
        """End the daemon if a step has left it; its engines end with it."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
            self.process.kill()
            self.process.wait()

    def keep_logs(self) -> None:
        """Keep the logs of the daemon and its engines."""
        for log in [self.folder / "serve.txt", *(self.folder / "home" / "logs").glob("*.log*")]:
            if log.exists():
                self.keep(log.name, log.read_text(encoding="utf-8", errors="replace"))


@contextmanager
def host(folder: Path, cache: Path) -> Iterator[Host]:
    """Everything below `folder`; nothing of it runs afterwards."""
    (folder / "home").mkdir()
    (folder / "raw").mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OSTINATO_")},
        "OSTINATO_HOME": str(folder / "home"),
        "OSTINATO_ENGINE_CACHE": str(cache),
        "OSTINATO_HOST": url.removeprefix("http://"),
        "HF_HUB_OFFLINE": "1",
    }
    free = [gpu.free_bytes for gpu in list_gpus()]
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
        found = Host(folder, folder / "raw", environment, http, free)
        try:
            yield found
        finally:
            found.kill()


@contextmanager
def ballast(leave_bytes: Sequence[int], environment: Mapping[str, str]) -> Iterator[None]:
    """GPU memory taken by another program but for so much of each GPU."""
    command = [sys.executable, str(BALLAST), *map(str, leave_bytes)]
    # CUDA's own order would be by speed, the driver's is by place.
    ordered = {**environment, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    with subprocess.Popen(command, env=ordered, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            check(process.stdout.readline(), "the GPUs to be filled", "a program that ended")
            yield
        finally:
            process.kill()


def eventually(condition: Callable[[], object]) -> None:
    """Wait until it is true; the step's time limit ends it."""
    while not condition():
        time.sleep(POLL_S)
