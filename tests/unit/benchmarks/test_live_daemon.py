"""The trial of a live daemon: its steps, its engine, its conversations, its ballast, and how it reads the dashboard."""

from __future__ import annotations

import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import gpu_ballast
import pytest
from live_chat import prompts, recorded_conversations
from live_checks import check_panels, figures_of
from live_host import engine_cache
from live_steps import CheckFailed, Steps, check

from ostinatod.client_dashboard_reading import daemon_state
from ostinatod.client_dashboard_values import Reading
from ostinatod.installer.build_cache import BuildCache
from ostinatod.machine.transfers import DriverError
from ostinatod.tui.view.memory import memory_lines
from ostinatod.tui.view.state import Link, View
from ostinatod.tui.view.symbols import ASCII, UNICODE, Symbols
from tests.fakes import dashboard_states as states

MIB = 1024**2


def panel(devices: list[dict[str, Any]], width: int, height: int, symbols: Symbols = UNICODE) -> str:
    """The dashboard's memory panel of an engine with these GPUs."""
    daemon = daemon_state(states.status(states.model("m", engine={"memory": {"devices": devices}})))
    profile = {"gpus": [{"name": "NVIDIA H200"}] * len(devices)}
    view = View(Link("http://127.0.0.1:1", "up"), symbols, states.NOW, Reading(states.NOW, daemon, profile=profile))
    return "\n".join("".join(part.text for part in line) for line in memory_lines(view, width, height))


def gpu(name: str, **mib: int) -> dict[str, Any]:
    """A large GPU with a small model, in MiB by use."""
    uses = dict.fromkeys(("dense", "kv", "compute", "pool", "borrowed", "staging"), 0) | mib
    return {**states.device(name, 140, 139), **{f"{use}_bytes": size * MIB for use, size in uses.items()}}


ONE = [gpu("CUDA0", dense=11, kv=32, pool=13, staging=2, borrowed=1)]
TWO = [*ONE, gpu("CUDA1", dense=9, kv=31, pool=12)]


@pytest.mark.parametrize("symbols", [ASCII, UNICODE])
@pytest.mark.parametrize(("width", "height"), [(42, 9), (60, 12), (100, 20)])
def test_what_the_memory_panel_shows_of_a_gpu_is_compared_in_every_size(
    width: int, height: int, symbols: Symbols
) -> None:
    text = panel(ONE, width, height, symbols)
    assert check_panels({"size": text, "large": panel(ONE, 100, 20)}, ONE, ["NVIDIA H200"]) == 10
    other = [{**ONE[0], "pool_bytes": 15 * MIB}]
    with pytest.raises(CheckFailed, match=r"pool 0\.0146 GiB in size"):
        check_panels({"size": text}, other, [])


def test_a_table_of_two_gpus_is_read_by_its_columns() -> None:
    # dense 11 and 9 MiB are 0.011 and 0.009 GiB; only the first GPU stages uploads.
    found = figures_of(panel(TWO, 70, 7))
    assert (found["dense"], found["pool"], found["stage"]) == (["0.011", "0.009"], ["0.013", "0.012"], ["0.002"])
    assert check_panels({"table": panel(TWO, 70, 7), "full": panel(TWO, 100, 30)}, TWO, ["NVIDIA H200"]) == 16


def test_a_panel_without_figures_or_names_is_refused() -> None:
    with pytest.raises(CheckFailed, match="NVIDIA H200"):
        check_panels({"a": "GPU 0  CUDA0"}, ONE, ["NVIDIA H200"])
    with pytest.raises(CheckFailed, match="every figure"):
        check_panels({"a": "GPU 0  CUDA0"}, ONE, [])


def test_small_panels_may_leave_figures_out_and_tell_sums() -> None:
    # 13 and 12 MiB of pools are 0.024 GiB together.
    small = panel(TWO, 34, 6)
    assert figures_of(small)["pool"] == ["0.024"]
    assert check_panels({"small": small, "full": panel(TWO, 100, 30)}, TWO, []) > 8
    with pytest.raises(CheckFailed, match=r"pool 0\.02\d\d GiB in small"):
        check_panels({"small": small}, [ONE[0], {**TWO[1], "pool_bytes": 14 * MIB}], [])


def test_a_step_that_fails_or_takes_too_long_hinders_no_other() -> None:
    steps = Steps(seconds=60, reserve_s=1)

    def fails() -> str:
        check(False, "four", 5)
        return "never"

    def sleeps() -> str:
        time.sleep(30)
        return "never"

    assert not steps.run("fails", 10, fails)
    assert not steps.run("sleeps", 0.1, sleeps)
    assert steps.run("holds", 10, lambda: "four")
    assert [(item.name, item.ok) for item in steps.outcomes] == [("fails", False), ("sleeps", False), ("holds", True)]
    assert "expected four, found 5" in steps.outcomes[0].fact
    assert steps.outcomes[1].seconds < 5
    assert not steps.all_ok()
    assert "FAILED" in steps.table()


def test_time_is_kept_for_the_step_that_cleans_up() -> None:
    steps = Steps(seconds=10, reserve_s=10)
    assert not steps.run("other", 5, lambda: "done")
    assert steps.outcomes[0].fact == "CheckFailed: no time was left"
    assert steps.run("cleans up", 5, lambda: "done", cleans_up=True)


@pytest.mark.parametrize(("library", "backend"), [("libggml-cuda.so", "cuda"), ("libggml-cpu.so", "cpu")])
def test_binaries_in_a_folder_are_found_as_an_installed_engine(tmp_path: Path, library: str, backend: str) -> None:
    binaries, cache = tmp_path / "bin", tmp_path / "cache"
    binaries.mkdir()
    (binaries / library).write_bytes(b"library")
    (binaries / "ostinato-engine").write_text("#!/bin/sh\n")
    (binaries / "ostinato-engine").chmod(0o755)
    build = BuildCache(engine_cache(binaries, cache)).current()
    assert (build.backend, build.server.resolve()) == (backend, binaries / "ostinato-engine")


def test_recorded_conversations_grow_turn_by_turn_and_begin_differently() -> None:
    talks = recorded_conversations(3)
    assert len({talk[0]["content"] for talk in talks}) == 3
    for talk in talks:
        said = list(prompts(talk))
        assert len(said) >= 4
        assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(said))
        assert all(turn[-1]["role"] == "user" for turn in said)


class Memory:
    """A GPU's memory, which refuses pieces larger than `largest`."""

    def __init__(self, free: int, largest: int) -> None:
        self.free_bytes, self._largest = free, largest

    def current(self, device: int) -> Memory:
        return self

    def device_memory(self, size: int) -> Memory:
        if size > self._largest:
            raise DriverError("cuMemAlloc_v2 ended with status 2")
        self.free_bytes -= size
        return self

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def test_ballast_leaves_what_it_was_asked_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    memory: Any = Memory(free=140 << 30, largest=3 << 30)
    monkeypatch.setattr(gpu_ballast, "list_gpus", lambda: [memory])
    with ExitStack() as stack:
        gpu_ballast.fill(memory, stack, 0, 1600 * MIB)
    assert 0 <= memory.free_bytes - 1600 * MIB < gpu_ballast.GRAIN_BYTES
