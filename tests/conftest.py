"""Engines and daemons for tests: the real engine when it is built, a scripted one, and daemons on free ports."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import httpx
import psutil
import pytest
import uvicorn

from ostinatod.api.app import create_app
from ostinatod.api.gate import Keys
from ostinatod.api.observer import RelayObserver
from ostinatod.api.recorder import HistoryFiles
from ostinatod.config import Settings
from ostinatod.errors import EngineNotBuilt
from ostinatod.installer.engine_build import EngineBuild, find_engine
from ostinatod.loaded import BIG_MODEL_BYTES, Places
from tests.fakes.memory_store import MemoryStore, record

SCRIPTED_ENGINE = Path(__file__).parent / "fakes" / "engine.py"
SCRIPTED_DIGEST = "5c" * 32
PATIENCE_S = 20.0


_BASE = pytest.StashKey[Path]()
_held_ports: list[socket.socket] = []


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Makes what tests start independent of how pytest was started, and how often.

    Tests interrupt programs they start; pytest run in the background would hand them SIGINT ignored. And sockets below
    `tmp_path` need short paths: pytest's own base grows by a digit with its hundredth run on a machine.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.basetemp is None:
        config.stash[_BASE] = Path(tempfile.mkdtemp(prefix="ost-"))
        config.option.basetemp = str(config.stash[_BASE])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the base of `tmp_path` that was made here, and gives back the ports that were kept."""
    while _held_ports:
        _held_ports.pop().close()
    if base := config.stash.get(_BASE, None):
        shutil.rmtree(base, ignore_errors=True)


def eventually(condition: Callable[[], Any], what: str, within_s: float = PATIENCE_S, every_s: float = 0.02) -> Any:
    """The first true value of `condition`; fails the test if there is none in time.

    Looks once more when the time is over: on a busy machine it may have slept through the rest of it.
    """
    ends_at = time.monotonic() + within_s
    is_last = False
    while not (value := condition()):
        if is_last:
            pytest.fail(f"not within {within_s:g} s: {what}")
        time.sleep(every_s)
        is_last = time.monotonic() >= ends_at
    return value


def least_s(attempt: Callable[[int], float], below_s: float, attempts: int = 5) -> float:
    """The least delay that `attempt`, given a number, has measured; the first below `below_s` ends the attempts.

    Other work on the machine adds to a delay and takes nothing off it, so that the least is the program's own.
    """
    least = math.inf
    for number in range(attempts):
        least = min(least, attempt(number))
        if least < below_s:
            break
    return least


def wait_until_healthy(
    process: subprocess.Popen[bytes],
    http: httpx.Client,
    output: Path,
    who: str,
    within_s: float = PATIENCE_S,
    unix_socket: Path | None = None,
) -> None:
    """Returns once `/health` succeeds; fails the test with the end of `output` if the process ends instead.

    unix_socket  what `http` connects to, if not to a port: asked first, because httpx leaves a socket open when it
                 cannot connect to one, and the test in which that is collected would fail
    """

    def is_up() -> bool:
        if process.poll() is not None:
            pytest.fail(f"{who} ended: {output.read_text()[-3000:]}")
        if unix_socket is not None and not _listens(unix_socket):
            return False
        try:
            return http.get("/health").is_success
        except httpx.TransportError:
            return False

    eventually(is_up, f"{who} is up", within_s)


def _listens(unix_socket: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(unix_socket)) == 0


def processes_in_group(group: int) -> list[int]:
    """Pids of the live processes of a process group."""

    def is_member(process: psutil.Process) -> bool:
        try:
            return os.getpgid(process.pid) == group and bool(process.status() != psutil.STATUS_ZOMBIE)
        except (ProcessLookupError, psutil.NoSuchProcess):
            return False

    return [process.pid for process in psutil.process_iter() if is_member(process)]


def free_port() -> int:
    """A port that nothing listens on, for a server in another process.

    On Linux nobody else is given it while the tests run: it stays bound, which refuses clients and lets only those
    have it that set SO_REUSEADDR, as servers do. Elsewhere that would keep servers out too.
    """
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind(("127.0.0.1", 0))
    port = int(probe.getsockname()[1])
    if sys.platform == "linux":
        _held_ports.append(probe)
    else:
        probe.close()
    return port


def asking(url: str, path: str, body: Mapping[str, Any]) -> socket.socket:
    """A connection on which a request has been sent and nothing read; closing it is a client that leaves."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    connection = socket.create_connection(("127.0.0.1", httpx.URL(url).port or 0))
    connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + content)
    return connection


@pytest.fixture(scope="session")
def engine_build() -> EngineBuild:
    """The real engine. Skips when it is not built, unless OSTINATO_REQUIRE_ENGINE=1 makes that an error."""
    try:
        return find_engine()
    except EngineNotBuilt as error:
        if os.environ.get("OSTINATO_REQUIRE_ENGINE") == "1":
            raise
        pytest.skip(f"THE REAL ENGINE IS NOT TESTED: {error}")


@dataclass(frozen=True)
class ScriptedEngine:
    """An engine build whose server is tests/fakes/engine.py, run by this interpreter."""

    directory: Path
    script: dict[str, Any]
    server: Path
    backend: Literal["cpu", "cuda"] = "cpu"
    digest: str = SCRIPTED_DIGEST

    @property
    def library_directory(self) -> Path:
        return self.directory

    @property
    def journal(self) -> Path:
        """The events that engines noted."""
        return Path(self.script["journal"])

    def events(self, kind: str) -> list[str]:
        """The noted events of a kind, such as "start"."""
        return [line for line in self.journal.read_text().splitlines() if line.split()[0] == kind]

    def environment(self) -> dict[str, str]:
        """For the process that starts the engine."""
        return {**os.environ, "OSTINATO_SCRIPTED_ENGINE": json.dumps(self.script)}

    def scripted(self, **script: Any) -> ScriptedEngine:
        """The same with further instructions; see tests/fakes/engine.py."""
        return replace(self, script={**self.script, **script})


def install_scripted_engine(path: Path) -> Path:
    """Write the scripted engine to `path`, run by this interpreter without what would slow its start."""
    path.write_text(f"#!{sys.executable} -IS\n{SCRIPTED_ENGINE.read_text()}")
    path.chmod(0o755)
    return path


def make_scripted_engine(directory: Path) -> ScriptedEngine:
    """A scripted engine that loads at once, with its journal in `directory`."""
    journal = directory / "journal"
    journal.touch()
    return ScriptedEngine(directory, {"journal": str(journal)}, install_scripted_engine(directory / "ostinato-engine"))


@pytest.fixture
def scripted_engine(tmp_path: Path) -> ScriptedEngine:
    """A scripted engine that loads at once."""
    return make_scripted_engine(tmp_path)


@dataclass
class RunningApp:
    """The application served on a free port by a thread of the tests, with a store in memory."""

    url: str
    http: httpx.Client
    store: MemoryStore
    shutdown_requests: list[bool] = field(default_factory=list)

    def chat(self, text: str, **fields: Any) -> httpx.Response:
        """One chat request to the model "m"."""
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
        return self.http.post("/v1/chat/completions", json=body)

    def status(self) -> dict[str, Any]:
        """What the daemon tells of itself."""
        return cast(dict[str, Any], self.http.get("/ostinato/status").json())


@contextmanager
def running_app(
    directory: Path,
    build: ScriptedEngine | EngineBuild,
    settings: Settings | None = None,
    store: MemoryStore | None = None,
    big_model_bytes: int = BIG_MODEL_BYTES,
    keys: Keys | None = None,
    history_files: HistoryFiles | None = None,
    observers: Sequence[RelayObserver] = (),
) -> Iterator[RunningApp]:
    """The application, stopped on leaving."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    environment = build.environment() if isinstance(build, ScriptedEngine) else dict(os.environ)
    sockets = directory / "run"
    sockets.mkdir(mode=0o700, exist_ok=True)
    with listener, httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
        models = store or MemoryStore(record("m"), record("embedder", is_embedding=True))
        running = RunningApp(url, http, models)
        app = create_app(
            settings or Settings(),
            models,
            lambda: build,
            Places(sockets, directory / "logs", environment, prompts=directory / "prompts"),
            lambda: running.shutdown_requests.append(True),
            big_model_bytes=big_model_bytes,
            keys=keys,
            history_files=history_files,
            observers=observers,
        )
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            eventually(lambda: server.started, "the application serves")
            yield running
        finally:
            http.close()
            server.should_exit = True
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


StartApp = Callable[..., RunningApp]


@pytest.fixture
def start_app(tmp_path: Path) -> Iterator[StartApp]:
    """Starts applications, with the arguments of `running_app`; they stop when the test ends."""
    with ExitStack() as stack:
        yield lambda *arguments, **named: stack.enter_context(running_app(tmp_path, *arguments, **named))


@dataclass
class RunningDaemon:
    """The daemon as a process of its own, with its own home."""

    process: subprocess.Popen[bytes]
    url: str
    home: Path
    http: httpx.Client

    def stop(self) -> int:
        """End it in order; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


StartDaemon = Callable[..., RunningDaemon]

_SERVE = """
import sys
from ostinatod.config import load_settings
from ostinatod.serve import serve
sys.exit(serve(load_settings()))
"""


@pytest.fixture
def start_daemon(tmp_path: Path) -> Iterator[StartDaemon]:
    """Starts daemons with a fresh OSTINATO_HOME each and an engine cache; they stop when the test ends."""
    with ExitStack() as stack:

        def start(engine_cache: Path, **environment: str) -> RunningDaemon:
            port = free_port()
            home = tmp_path / f"home-{port}"
            home.mkdir()
            variables = {
                **os.environ,
                "OSTINATO_HOME": str(home),
                "OSTINATO_ENGINE_CACHE": str(engine_cache),
                "OSTINATO_HOST": f"127.0.0.1:{port}",
                "HF_HUB_OFFLINE": "1",
                **environment,
            }
            output = stack.enter_context((home / "output").open("wb"))
            process = subprocess.Popen([sys.executable, "-c", _SERVE], env=variables, stdout=output, stderr=output)
            url = f"http://127.0.0.1:{port}"
            http = stack.enter_context(httpx.Client(base_url=url, timeout=60, trust_env=False))
            daemon = RunningDaemon(process, url, home, http)
            stack.callback(daemon.stop)

            wait_until_healthy(process, http, home / "output", "the daemon")
            return daemon

        yield start


@pytest.fixture
def scripted_engine_cache(tmp_path: Path) -> Path:
    """An engine cache whose current build is the scripted engine, for daemons as processes."""
    cache = tmp_path / "engine-cache"
    binaries = cache / SCRIPTED_DIGEST / "bin"
    binaries.mkdir(parents=True)
    install_scripted_engine(binaries / "ostinato-engine")
    (binaries.parent / "build.json").write_text(
        json.dumps({"backend": "cpu", "llama_cpp_commit": "none", "sources_digest": "none"})
    )
    (cache / "current.json").write_text(json.dumps({"digest": SCRIPTED_DIGEST}))
    return cache
