"""`benchmarks/gpu_wait.cu` where there is a CUDA compiler, and its measurements where there is a GPU as well."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
VARIANTS = {"kernel", "value", "value, batch", "value, reset"}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built so that a warning is an error; skips where nothing compiles CUDA."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no CUDA compiler (nvcc) is installed")
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release (\d+)", version)
    if release is None or int(release[1]) < 12:
        pytest.skip("the program needs CUDA 12 or newer")
    path = tmp_path_factory.mktemp("gpu-wait") / "gpu_wait"
    flags = ["-O1", "-std=c++17", "-arch=sm_80", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra"]
    sources = ["-I", str(ROOT / "kernels_patch" / "overlay"), str(ROOT / "benchmarks" / "gpu_wait.cu")]
    done = subprocess.run([nvcc, *flags, *sources, "-o", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return path


def run(*command: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    arguments = [str(part) for part in command]
    variables = {**os.environ, **environment}
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, env=variables, check=False)


def test_without_a_file_to_write_it_says_what_it_expects(program: Path) -> None:
    done = run(program)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "gpu_wait: expected the file to write: gpu_wait OUT.json\n"


def test_without_a_gpu_it_says_so_and_writes_nothing(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path / "out.json", CUDA_VISIBLE_DEVICES="")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("gpu_wait: no CUDA device: cudaError")
    assert not (tmp_path / "out.json").exists()


def test_every_answer_is_waited_for_in_every_variant_that_the_driver_accepts(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path / "out.json")
    if "no CUDA device" in done.stderr:
        pytest.skip("this machine has no GPU")

    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert [(row["layers"], row["published"]) for row in report["rows"]] == [
        *((8, n) for n in (0, 4, 8, 8)),
        *((43, n) for n in (0, 21, 43, 43)),
    ]
    assert "kernel" not in report["left_out"]
    for row in report["rows"]:
        assert row["replays"] >= 200
        assert {name for name, added in row["added_us"].items() if added} == VARIANTS - set(report["left_out"])
        if row["answer_after_us"] == 20:  # of which the hot experts' kernel covers 10
            assert all(added["median"] > 10 for added in row["added_us"].values() if added)
