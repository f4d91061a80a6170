"""Page-locked memory for cold experts: where places lie, and what of a machine's memory is left alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ostinatod.installer.engine_build import kernels_patch_dir
from tests.e2e.conftest import CompileProgram

GIB = 1024**3
NO_LIMIT = 2**64 - 1


@pytest.fixture(scope="module")
def program(compile_program: CompileProgram) -> Path:
    return compile_program("host_arena.cpp", str(kernels_patch_dir() / "overlay" / "ostinato" / "host-arena.cpp"))


def spare(program: Path, root: Path, files: dict[str, str]) -> int:
    """What the arena takes of a machine that says this of itself, in bytes."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    done = subprocess.run([program, root], check=True, capture_output=True, text=True, timeout=20)
    return int(done.stdout)


def meminfo(total_gib: float, available_gib: float) -> dict[str, str]:
    kib = GIB // 1024
    text = f"MemTotal:       {int(total_gib * kib)} kB\nMemFree:  1 kB\nMemAvailable:   {int(available_gib * kib)} kB\n"
    return {"proc/meminfo": text}


def group(limit: str, current: int, inactive_file: int) -> dict[str, str]:
    stat = f"anon 1\nfile 2\ninactive_anon 3\ninactive_file {inactive_file}\n"
    folder = "sys/fs/cgroup/memory."
    return {f"{folder}max": f"{limit}\n", f"{folder}current": f"{current}\n", f"{folder}stat": stat}


def test_places_are_multiples_of_a_stride_and_limits_hold(program: Path) -> None:
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_tenth_of_the_machine_is_left_alone(program: Path, tmp_path: Path) -> None:
    assert spare(program, tmp_path, meminfo(64, 50)) == pytest.approx((50 - 6.4) * GIB, abs=4096)


def test_a_small_machine_keeps_two_gibibytes(program: Path, tmp_path: Path) -> None:
    assert spare(program, tmp_path, meminfo(8, 3)) == pytest.approx(1 * GIB, abs=4096)
    assert spare(program, tmp_path, meminfo(8, 1)) == 0


def test_a_control_group_has_less(program: Path, tmp_path: Path) -> None:
    files = meminfo(64, 50) | group(str(20 * GIB), 9 * GIB, 3 * GIB)
    assert spare(program, tmp_path, files) == pytest.approx((20 - 6 - 2) * GIB, abs=4096)
    unlimited = meminfo(64, 50) | group("max", 9 * GIB, 3 * GIB)
    assert spare(program, tmp_path, unlimited) == pytest.approx((50 - 6.4) * GIB, abs=4096)


def test_a_machine_that_tells_nothing_has_no_limit(program: Path, tmp_path: Path) -> None:
    assert spare(program, tmp_path, {}) == NO_LIMIT
