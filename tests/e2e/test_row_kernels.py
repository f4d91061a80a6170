"""The CPU branch's row kernels for processors that the tests may not have, with their instructions in software."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from ostinatod.installer.engine_build import EngineBuild
from tests.e2e.conftest import CompileProgram

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="kernels of x86"),
]


def test_rows_of_four_bits_multiply_as_ggml_multiplies_them(
    engine_build: EngineBuild, compile_program: CompileProgram, pinned_source: Path
) -> None:
    libraries = engine_build.library_directory
    compiled = compile_program(
        "row_dots.cpp",
        *("-mavx2", "-mfma", "-mf16c", f"-I{pinned_source / 'ggml' / 'src'}"),
        *(f"-L{libraries}", f"-Wl,-rpath,{libraries}", f"-Wl,-rpath-link,{libraries}"),
        *("-lllama", "-lggml", "-lggml-cpu", "-lggml-base"),
    )
    done = subprocess.run([str(compiled)], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
