"""The life of an engine process, with a scripted engine as a real process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest

from ostinatod.engine import guard
from ostinatod.engine.process import EngineProcess, Launch
from ostinatod.errors import EngineBusy, EngineDied, EngineLoadError
from tests.conftest import ScriptedEngine, eventually, processes_in_group

Scenario = Callable[[EngineProcess], Coroutine[Any, Any, None]]


def play(
    engine: ScriptedEngine, scenario: Scenario, *, stall_s: float = 30, grace_s: float = 5, **changes: Any
) -> None:
    """Run a scenario and leave no process behind."""
    socket = engine.directory / "e.sock"
    launch = Launch(
        **{
            "name": "m",
            "command": (str(engine.server), "--host", str(socket)),
            "environment": engine.environment(),
            "socket": socket,
            "log_file": engine.directory / "logs" / "e.log",
            "stall_s": stall_s,
            "stop_grace_s": grace_s,
            **changes,
        }
    )

    async def run() -> None:
        process = EngineProcess(launch)
        try:
            await scenario(process)
        finally:
            await process.close()
            assert process.pid is None
            assert not socket.exists()

    asyncio.run(run())


async def outcome(process: EngineProcess) -> Exception | None:
    """What `ensure_ready` raises."""
    return (await asyncio.gather(process.ensure_ready(), return_exceptions=True))[0]  # type: ignore[return-value]


def test_starts_tells_its_context_and_stops(scripted_engine: ScriptedEngine) -> None:
    async def scenario(process: EngineProcess) -> None:
        assert process.state == "stopped"
        await process.ensure_ready()
        assert (process.state, process.context_tokens, process.progress) == ("ready", 2048, 1.0)
        pid = process.pid
        assert pid is not None
        await process.ensure_ready()
        await process.stop()
        assert process.state == "stopped"
        assert not psutil.pid_exists(pid)
        await process.ensure_ready()
        assert process.pid not in (None, pid)

    play(scripted_engine.scripted(n_ctx=2048), scenario)
    assert len(scripted_engine.events("start")) == 2


def test_concurrent_callers_share_one_start_and_see_its_progress(scripted_engine: ScriptedEngine) -> None:
    loads = scripted_engine.directory / "loads"

    async def scenario(process: EngineProcess) -> None:
        waiting = [asyncio.create_task(process.ensure_ready()) for _ in range(5)]
        await asyncio.to_thread(eventually, lambda: process.progress == 0.5, "the progress is told")
        loads.touch()
        await asyncio.gather(*waiting)

    play(scripted_engine.scripted(load_until=str(loads)), scenario)
    assert len(scripted_engine.events("start")) == 1


def test_a_caller_that_gives_up_does_not_end_the_start(scripted_engine: ScriptedEngine) -> None:
    loads = scripted_engine.directory / "loads"

    async def scenario(process: EngineProcess) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(process.ensure_ready(), 0.05)
        loads.touch()
        await process.ensure_ready()

    play(scripted_engine.scripted(load_until=str(loads)), scenario)
    assert len(scripted_engine.events("start")) == 1


def test_an_early_end_tells_what_the_engine_wrote_and_is_backed_off_from(scripted_engine: ScriptedEngine) -> None:
    async def scenario(process: EngineProcess) -> None:
        with pytest.raises(EngineLoadError) as failed:
            await process.ensure_ready()
        assert "status 3" in failed.value.message
        assert "CUDA error: out of memory" in failed.value.message
        assert "OSTINATO_CONTEXT" in str(failed.value.hint)
        assert process.state == "dead"
        # Allowed at once after the first failure, then after 1, 2, 4 ... seconds, so that one of these comes too early.
        errors = [await outcome(process) for _ in range(6)]
        busy = next(error for error in errors if isinstance(error, EngineBusy))
        assert "times in a row" in busy.message
        assert busy.retry_after_s >= 1

    play(scripted_engine.scripted(exit_status=3, exit_words="CUDA error: out of memory"), scenario)


def test_a_load_without_progress_is_given_up(scripted_engine: ScriptedEngine) -> None:
    async def scenario(process: EngineProcess) -> None:
        with pytest.raises(EngineLoadError, match="no progress for 1 s"):
            await process.ensure_ready()
        assert process.pid is None

    play(scripted_engine.scripted(stall=True), scenario, stall_s=0.6)


def test_a_slow_load_with_progress_outlives_the_stall_time(scripted_engine: ScriptedEngine) -> None:
    async def scenario(process: EngineProcess) -> None:
        await process.ensure_ready()

    play(scripted_engine.scripted(load_s=2.5), scenario, stall_s=1.5)


def test_stopping_during_the_load_fails_its_callers(scripted_engine: ScriptedEngine) -> None:
    async def scenario(process: EngineProcess) -> None:
        waiting = asyncio.create_task(process.ensure_ready())
        await asyncio.sleep(0.01)
        await process.stop()
        with pytest.raises(EngineLoadError, match="was stopped while it was loading"):
            await waiting
        await process.ensure_ready()

    play(scripted_engine.scripted(load_s=0.2), scenario)


def test_an_engine_that_ignores_the_request_to_stop_is_killed(scripted_engine: ScriptedEngine) -> None:
    async def scenario(process: EngineProcess) -> None:
        await process.ensure_ready()
        await process.stop()
        assert process.pid is None

    play(scripted_engine.scripted(stubborn=True), scenario, grace_s=0.2)


def test_a_crash_is_noticed_explained_and_followed_by_a_new_engine(scripted_engine: ScriptedEngine) -> None:
    async def scenario(process: EngineProcess) -> None:
        await process.ensure_ready()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSEGV)
        assert "SIGSEGV" in (await process.death()).message
        assert process.state == "dead"
        await process.ensure_ready()

    play(scripted_engine, scenario)


def test_an_engine_that_takes_its_time_to_end_is_explained_too(scripted_engine: ScriptedEngine) -> None:
    async def scenario(process: EngineProcess) -> None:
        await process.ensure_ready()
        explanation = asyncio.create_task(process.death())
        await asyncio.sleep(1.2)  # as long as freeing what was page-locked may take
        assert process.pid is not None
        os.kill(process.pid, signal.SIGABRT)
        assert "SIGABRT" in (await explanation).message

    play(scripted_engine, scenario)


def test_a_closed_process_never_starts_again(scripted_engine: ScriptedEngine) -> None:
    async def scenario(process: EngineProcess) -> None:
        await process.ensure_ready()
        await process.close()
        with pytest.raises(EngineDied, match="unloaded"):
            await process.ensure_ready()

    play(scripted_engine, scenario)


def test_a_missing_program_is_a_load_error(scripted_engine: ScriptedEngine) -> None:
    async def scenario(process: EngineProcess) -> None:
        with pytest.raises(EngineLoadError, match="No such file"):
            await process.ensure_ready()

    play(scripted_engine, scenario, command=("/nonexistent/engine",))


def test_the_log_is_private_and_the_one_before_is_kept(scripted_engine: ScriptedEngine) -> None:
    async def scenario(process: EngineProcess) -> None:
        await process.ensure_ready()
        await process.stop()
        await process.ensure_ready()

    play(scripted_engine, scenario)
    logs = sorted((scripted_engine.directory / "logs").iterdir())
    assert [log.name for log in logs] == ["e.log", "e.log.1"]
    assert all(log.stat().st_mode & 0o777 == 0o600 for log in logs)


def test_the_guard_kills_a_stubborn_program_when_its_parent_is_killed(tmp_path: Path) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    parent_code = f"""
import os, subprocess, sys, time
read_end, write_end = os.pipe()
command = [sys.executable, "-I", "-S", {guard.__file__!r}, sys.executable, "-c", {stubborn!r}]
child = subprocess.Popen(command, stdin=read_end, start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        group = int(parent.stdout.readline())
    assert psutil.Process(group).status() != psutil.STATUS_ZOMBIE
    parent.kill()
    parent.wait()
    eventually(lambda: not processes_in_group(group), "nothing of the group is left", 5)


def test_the_guard_leaves_no_watcher_when_the_program_ends(scripted_engine: ScriptedEngine) -> None:
    groups: list[int] = []

    async def scenario(process: EngineProcess) -> None:
        await process.ensure_ready()
        groups.append(process.pid or 0)
        assert len(processes_in_group(groups[0])) == 2
        await process.stop()

    play(scripted_engine, scenario)
    eventually(lambda: not processes_in_group(groups[0]), "nothing of the group is left", 5)
