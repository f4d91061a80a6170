"""One engine process: started, watched while it loads, stopped, and started again after a crash.

state     ensure_ready()               stop()               the process ends
--------  ---------------------------  -------------------  ---------------------------------------
stopped   starts, waits                nothing              -
starting  waits for the same start     ends it: stopped     dead; waiters get EngineLoadError
ready     returns at once              ends it: stopped     dead
stopping  waits, then starts           waits for the end    stopped
dead      starts, waits; EngineBusy    stopped              -
          before its back-off is over

Callers never look at the state first, so they cannot race.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from ostinatod.engine import guard, log_tail
from ostinatod.engine.client import EngineClient, Sampling
from ostinatod.errors import EngineBusy, EngineDied, EngineLoadError

log = logging.getLogger(__name__)

State = Literal["stopped", "starting", "ready", "stopping", "dead"]

FIRST_POLL_S = 0.05
LAST_POLL_S = 0.5
EXIT_PATIENCE_S = 10.0
"""For the exit status of an engine whose connections broke."""

# ---- Restart back-off -------------------------------------------------------------------------------------------
# A first crash is restarted by the next request at once: one bad request should cost one reload. Failures that follow
# within HEALTHY_S of readiness wait 1, 2, 4 ... seconds, at most BACKOFF_CAP_S, so that a model that cannot run does
# not keep a disk and a GPU busy with loads while clients retry.
HEALTHY_S = 60.0
BACKOFF_CAP_S = 60.0
# -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start an engine."""

    name: str
    """For messages: the model's name."""
    command: Sequence[str]
    """Program and arguments; it listens on `socket`."""
    environment: Mapping[str, str]
    socket: Path
    log_file: Path
    """Started afresh by each start; the one before is kept beside it with the suffix .1."""
    stall_s: float
    """A load without any sign of progress for this long is given up."""
    told: str = ""
    """Further key=value pairs for the log line of a start."""
    stop_grace_s: float = 10.0
    """Time to end by itself before it is killed."""


Prepare = Callable[[EngineClient], Awaitable[None]]
Renew = Callable[[], Awaitable[Launch]]


async def nothing_to_prepare(client: EngineClient) -> None:
    """The engine is used as it has loaded."""


class EngineProcess:
    """See the module's table. Must be used from one event loop."""

    def __init__(self, launch: Launch, prepare: Prepare = nothing_to_prepare, renew: Renew | None = None) -> None:
        """`prepare` is awaited each time the engine has loaded, before anybody is told that it is ready.

        `renew` gives the launch of every start after the first: what it depends on may have changed since. It keeps
        name, socket and log file.
        """
        self._launch = launch
        self._prepare = prepare
        self._renew = renew
        self._was_started = False
        self._state: State = "stopped"
        self._process: asyncio.subprocess.Process | None = None
        self._start: asyncio.Task[EngineLoadError | None] | None = None
        self._exit: asyncio.Task[None] | None = None
        self._stop: asyncio.Task[None] | None = None
        self._lifeline: int | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._ready_at = 0.0
        self._last_failure = ""
        self._closed = False
        self.client = EngineClient(launch.socket)
        self.progress: float | None = None
        """Of the load in progress, 0 to 1; None where the engine does not tell."""
        self.context_tokens: int | None = None
        """As the engine reports it once it is ready."""
        self.sampling = Sampling()
        """The same."""

    @property
    def state(self) -> State:
        """The present state, for display."""
        return self._state

    @property
    def pid(self) -> int | None:
        """The process that is running, if any."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process else None

    def pid_and_rss_bytes(self) -> tuple[int, int] | tuple[None, None]:
        """The process that is running and the memory it has resident, if any."""
        if (pid := self.pid) is not None:
            with contextlib.suppress(psutil.Error):
                return pid, psutil.Process(pid).memory_info().rss
        return None, None

    async def ensure_ready(self) -> None:
        """Return when requests can be sent. Cancelling the caller leaves the start running for the others.

        Raises EngineLoadError if the load failed, EngineBusy while failures are being backed off from.
        """
        if self._closed:
            raise EngineDied(f"{self._launch.name} was unloaded", hint="Send the request again to load it")
        while self._state == "stopping" and self._stop:
            await asyncio.shield(self._stop)
        if self._state == "ready":
            return
        if self._start is None:
            self._refuse_during_backoff()
            self._state = "starting"
            self._start = asyncio.create_task(self._run_start())
        if failure := await asyncio.shield(self._start):
            raise EngineLoadError(failure.message, hint=failure.hint)

    async def stop(self) -> None:
        """End the process: SIGTERM, and SIGKILL after the grace time. Returns when it is gone."""
        if self._state in ("starting", "ready"):
            self._state = "stopping"
            self._stop = asyncio.create_task(self._terminate())
        if self._state == "stopping" and self._stop:
            await asyncio.shield(self._stop)
        if self._state == "dead":
            self._state = "stopped"

    async def close(self) -> None:
        """Stop for good: every later `ensure_ready` raises EngineDied."""
        self._closed = True
        await self.stop()
        await self.client.aclose()

    async def death(self) -> EngineDied:
        """The error for a request whose connection to the engine broke; says how the process ended, if it has."""
        if self._exit is not None:
            # The connection breaks before the exit status is known: a moment, or as long as the system takes to free a
            # large model's memory.
            await asyncio.wait({self._exit}, timeout=EXIT_PATIENCE_S)
        if self._closed:
            return EngineDied(f"{self._launch.name} was unloaded before it had answered")
        ended = self._last_failure if self._state == "dead" else "it closed the connection"
        return EngineDied(
            f"the engine of {self._launch.name} ended while it served this request: {ended}",
            hint=f"Send the request again: a new engine is started. The log: {self._launch.log_file}",
        )

    def _refuse_during_backoff(self) -> None:
        wait_s = self._retry_at - asyncio.get_running_loop().time()
        if self._state == "dead" and wait_s > 0:
            raise EngineBusy(
                f"the engine of {self._launch.name} failed {self._failures} times in a row; "
                f"the next start is allowed in {wait_s:.0f} s. Last: {self._last_failure}",
                hint=f"The whole log: {self._launch.log_file}",
                retry_after_s=math.ceil(wait_s),
            )

    async def _run_start(self) -> EngineLoadError | None:
        try:
            failure = await self._start_and_wait()
            if failure is not None:
                log.error("engine_load_failed model=%s reason=%r", self._launch.name, failure.message)
            return failure
        finally:
            self._start = None

    async def _start_and_wait(self) -> EngineLoadError | None:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        self.progress, self._exit = None, None
        try:
            if self._was_started and self._renew is not None:
                self._launch = await self._renew()
            self._was_started = True
            exited = await self._spawn()
        except OSError as error:
            self._note_failure(f"it could not be started: {error}")
            return EngineLoadError(
                f"cannot start the engine {self._launch.command[0]}: {error}",
                hint="Build it again: ostinato engine build",
            )
        poll_s, seen, seen_at = FIRST_POLL_S, self._signs_of_progress(), started_at
        while not exited.done():
            health = await self.client.health()
            if health == "ready" and self._state == "starting":
                self.context_tokens = await self.client.context_tokens()
                self.sampling = await self.client.sampling()
                await self._prepare(self.client)
                if exited.done() or self._state != "starting":
                    continue
                self._state, self.progress, self._ready_at = "ready", 1.0, loop.time()
                log.info(
                    "engine_ready model=%s pid=%s load_s=%.2f", self._launch.name, self.pid, loop.time() - started_at
                )
                return None
            self.progress = log_tail.read_load_progress(self._launch.log_file)
            signs = self._signs_of_progress()
            if signs != seen:
                seen, seen_at = signs, loop.time()
            elif loop.time() - seen_at > self._launch.stall_s:
                return await self._give_up()
            await asyncio.wait({exited}, timeout=poll_s)
            poll_s = min(poll_s * 1.5, LAST_POLL_S)
        return self._load_failure()

    async def _spawn(self) -> asyncio.Task[None]:
        log_file = self._launch.log_file
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            log_file.replace(log_file.with_name(log_file.name + ".1"))
        self._launch.socket.unlink(missing_ok=True)
        read_end, write_end = os.pipe()
        try:
            with os.fdopen(os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as output:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", guard.__file__, *self._launch.command),
                    stdin=read_end,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT,
                    env=dict(self._launch.environment),
                    start_new_session=True,
                )
        except BaseException:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        self._lifeline = write_end
        told = f" {self._launch.told}" if self._launch.told else ""
        log.info("engine_started model=%s pid=%d log=%s%s", self._launch.name, self._process.pid, log_file, told)
        self._exit = asyncio.create_task(self._wait_for_exit(self._process))
        return self._exit

    async def _wait_for_exit(self, process: asyncio.subprocess.Process) -> None:
        status = await process.wait()
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        self._launch.socket.unlink(missing_ok=True)
        if self._state == "stopping":
            log.info("engine_stopped model=%s pid=%d", self._launch.name, process.pid)
            return
        if self._state == "ready" and asyncio.get_running_loop().time() - self._ready_at > HEALTHY_S:
            self._failures = 0
        self._note_failure(_describe_exit(status))
        log.error("engine_died model=%s pid=%d how=%r", self._launch.name, process.pid, self._last_failure)
        for line in log_tail.telling_lines(log_tail.read_tail(self._launch.log_file)):
            log.error("engine_log model=%s line=%r", self._launch.name, line)

    def _note_failure(self, how: str) -> None:
        self._state = "dead"
        self._last_failure = how
        self._failures += 1
        delay_s = min(BACKOFF_CAP_S, 2.0 ** (self._failures - 2)) if self._failures > 1 else 0.0
        self._retry_at = asyncio.get_running_loop().time() + delay_s

    def _load_failure(self) -> EngineLoadError:
        if self._state == "stopping":
            return EngineLoadError(f"{self._launch.name} was stopped while it was loading")
        lines = log_tail.telling_lines(log_tail.read_tail(self._launch.log_file))
        said = ":\n" + "\n".join(f"  {line}" for line in lines) if lines else ", and wrote nothing"
        return EngineLoadError(
            f"the engine ended before {self._launch.name} was loaded ({self._last_failure}){said}",
            hint=log_tail.hint_for(lines, self._launch.log_file),
        )

    async def _give_up(self) -> EngineLoadError:
        last = log_tail.read_tail(self._launch.log_file)[-1:]
        self._kill()
        if self._exit is not None:
            await self._exit
        return EngineLoadError(
            f"loading {self._launch.name} made no progress for {self._launch.stall_s:.0f} s"
            + (f"; the engine's last words: {last[0]}" if last else ""),
            hint=f"If its disk is that slow, raise load_stall (OSTINATO_LOAD_STALL). The log: {self._launch.log_file}",
        )

    async def _terminate(self) -> None:
        while self._start is not None and self._exit is None:
            # The process is being created at this moment; there is something to end only afterwards.
            await asyncio.wait({self._start}, timeout=FIRST_POLL_S)
        if self._process is not None and self._exit is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            done, _ = await asyncio.wait({self._exit}, timeout=self._launch.stop_grace_s)
            if not done:
                log.warning("engine_killed model=%s grace_s=%g", self._launch.name, self._launch.stop_grace_s)
                self._kill()
            await self._exit
        if self._start is not None:
            await asyncio.wait({self._start})
        self._state = "stopped"

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _signs_of_progress(self) -> tuple[object, ...]:
        """Anything that moves while an engine loads; a spinning or sleeping one moves none of it."""
        signs: list[object] = [self.progress]
        with contextlib.suppress(OSError):
            signs.append(self._launch.log_file.stat().st_size)
        if (pid := self.pid) is not None:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                signs.append(process.memory_info().rss)
                if hasattr(process, "io_counters"):
                    signs.append(process.io_counters().read_bytes)
        return tuple(signs)


def _describe_exit(status: int) -> str:
    if status >= 0:
        return f"it exited with status {status}"
    try:
        return f"it was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"it was ended by signal {-status}"
