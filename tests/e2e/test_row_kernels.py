"""The CPU branch's row kernels for processors that the tests may not have, with their instructions in software."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import RunSilentProgram

CPU_FACTS = Path("/proc/cpuinfo")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not CPU_FACTS.exists() or " avx2 " not in CPU_FACTS.read_text(encoding="utf-8"),
        reason="the model of AVX-512 runs on x86 with AVX2",
    ),
]


def test_rows_of_four_bits_and_tiles_multiply_as_ggml_multiplies_them(
    run_silent_program: RunSilentProgram, pinned_source: Path
) -> None:
    run_silent_program("row_dots.cpp", "-mavx2", "-mfma", "-mf16c", f"-I{pinned_source / 'ggml' / 'src'}")
