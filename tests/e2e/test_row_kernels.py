"""The CPU branch's row kernels for processors that the tests may not have, with their instructions in software."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ostinatod.installer.engine_build import EngineBuild
from tests.e2e.conftest import CompileProgram

CPU_FACTS = Path("/proc/cpuinfo")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not CPU_FACTS.exists() or " avx2 " not in CPU_FACTS.read_text(encoding="utf-8"),
        reason="the model of AVX-512 runs on x86 with AVX2",
    ),
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
