"""The patched engine, asked for nothing, computes what the pinned source computes, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ostinatod.installer.engine_build import EngineBuild
from tests.e2e.conftest import RunWorker

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]


def test_logits_are_those_of_the_stock_source_bit_for_bit(
    run_worker: RunWorker, engine_build: EngineBuild, stock_libraries: Path
) -> None:
    stock = run_worker("logits", stock_libraries)
    patched = run_worker("logits", engine_build.library_directory)
    assert stock.shape == (340, 8192)
    assert np.isfinite(stock).all()
    assert stock.tobytes() == patched.tobytes()


def test_counting_routes_changes_no_bit_of_the_logits(run_worker: RunWorker, engine_build: EngineBuild) -> None:
    silent = run_worker("logits", engine_build.library_directory)
    counting = run_worker("logits", engine_build.library_directory, "count")
    assert silent.tobytes() == counting.tobytes()
