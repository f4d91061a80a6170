"""What an installed Ostinato looks like: one import package, with everything the engine is built from inside it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    # From a copy: setuptools leaves a build folder behind, whose stale modules would find their way into later wheels.
    out = tmp_path_factory.mktemp("wheel")
    source = out / "source"
    shutil.copytree(CHECKOUT, source, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--quiet",
        "-w",
        str(out),
        ".",
    ]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return zipfile.ZipFile(next(out.glob("*.whl")))


def test_nothing_generic_lands_at_the_top_of_site_packages(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ostinatod"}


def test_the_wheel_carries_the_model_and_the_sources_of_the_engine(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    kernels_patch = CHECKOUT / "kernels_patch"
    sources = [
        file for folder in ("overlay", "patches") for file in (kernels_patch / folder).rglob("*") if file.is_file()
    ]
    assert len(sources) > 20
    expected = {f"ostinatod/kernels_patch/{file.relative_to(kernels_patch).as_posix()}" for file in sources}
    expected |= {f"ostinatod/kernels_patch/{name}" for name in ("UPSTREAM", "CMakeLists.txt")}
    expected.add("ostinatod/models/tiny-moe-MXFP4.gguf")
    assert expected - names == set()


def test_every_python_module_of_the_source_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for folder, package in (
        ("ostinatod", "ostinatod"),
        ("profiles", "ostinatod/profiles"),
        ("installer", "ostinatod/installer"),
        ("tui", "ostinatod/tui"),
    ):
        for file in (CHECKOUT / folder).rglob("*.py"):
            assert f"{package}/{file.relative_to(CHECKOUT / folder).as_posix()}" in names
