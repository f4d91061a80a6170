from __future__ import annotations

import os
from pathlib import Path

import pytest

from ostinatod.doctor.gpu_checks import check_cuda, check_driver, check_gpu
from ostinatod.doctor.nvidia import Driver, Gpu, ask_driver, gpus_on_bus
from ostinatod.installer.cuda_probe import CudaCompiler

GIB = 1024**3
CARD = Driver((Gpu("NVIDIA GeForce RTX 4090", 24 * GIB, 23 * GIB),), "570.86", "12.8")
NVCC = CudaCompiler(Path("/usr/local/cuda/bin/nvcc"), True, "12.8", ("86", "89"))


def smi(directory: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    (directory / "nvidia-smi").write_text(f"#!/bin/sh\n{body}\n")
    (directory / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}/usr/bin{os.pathsep}/bin")


def test_the_drivers_answer_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = "NVIDIA GeForce RTX 4090, 570.86, 24564, 23000"
    smi(tmp_path, monkeypatch, f'[ -n "$1" ] && echo "{listed}" || echo "| Driver 570.86   CUDA Version: 12.8  |"')
    assert ask_driver() == Driver(
        (Gpu("NVIDIA GeForce RTX 4090", 24564 * 1024**2, 23000 * 1024**2),), "570.86", "12.8", None
    )


def test_what_the_driver_says_instead_of_an_answer_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    driver = ask_driver()
    assert driver is not None
    found = check_driver(driver)
    assert (found.level, found.hint) == ("problem", "Reboot, so that the new module is loaded")
    smi(tmp_path, monkeypatch, "exit 9")
    assert check_driver(ask_driver()).found == "the driver does not answer: nvidia-smi ended with status 9"
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert ask_driver() is None
    assert check_driver(None).level == "skipped"
    assert check_driver(CARD).level == "ok"


def test_cards_are_found_on_the_bus_without_a_driver(tmp_path: Path) -> None:
    for name, vendor, kind in (("a", "0x10de", "0x030000"), ("b", "0x10de", "0x040300"), ("c", "0x1002", "0x030000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    assert gpus_on_bus(tmp_path) == 1  # b is the sound device of a card, c another maker's
    found = check_gpu(None, 1, "cpu", {})
    assert (found.level, "no driver" in found.found) == ("problem", True)


def test_a_cuda_engine_without_a_gpu_is_a_problem() -> None:
    assert check_gpu(Driver(fault="x"), 0, "cuda", {}).level == "problem"
    assert check_gpu(None, 0, "cpu", {}).level == "skipped"


def test_a_gpu_that_the_engine_does_not_use_is_told() -> None:
    found = check_gpu(CARD, 1, "cpu", {})
    assert (found.level, "--backend cuda" in (found.hint or "")) == ("warning", True)
    assert check_gpu(CARD, 1, "cuda", {}).found == "NVIDIA GeForce RTX 4090 (23.0 of 24.0 GiB free)"


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_gpus_are_told(value: str) -> None:
    assert check_gpu(CARD, 1, "cuda", {"CUDA_VISIBLE_DEVICES": value}).level == "warning"
    assert check_gpu(CARD, 1, "cuda", {"CUDA_VISIBLE_DEVICES": "0"}).level == "ok"


def test_a_gpu_without_nvcc_is_told() -> None:
    assert check_cuda(CARD, None, ("89",)).level == "warning"
    assert check_cuda(None, None, ()).level == "skipped"


def test_a_toolkit_newer_than_the_driver_is_a_problem() -> None:
    newer = CudaCompiler(NVCC.path, True, "13.0", ("89",))
    found = check_cuda(CARD, newer, ("89",))
    assert found.level == "problem"
    assert "CUDA 13.0" in found.found
    assert "up to 12.8" in found.found
    # Within one major version a newer toolkit runs on an older driver.
    assert check_cuda(CARD, CudaCompiler(NVCC.path, True, "12.9", ("89",)), ("89",)).level == "ok"
    assert check_cuda(CARD, CudaCompiler(NVCC.path, True, "unknown", ()), ("89",)).level == "ok"


def test_a_toolkit_that_does_not_know_the_gpu_is_a_problem() -> None:
    found = check_cuda(CARD, NVCC, ("120",))
    assert (found.level, "120" in found.found) == ("problem", True)
