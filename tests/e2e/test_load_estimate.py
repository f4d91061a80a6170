"""The estimate of a load beside what the engine says it allocates."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from ostinatod.engine.arguments import engine_environment
from ostinatod.installer.engine_build import EngineBuild
from ostinatod.models import bundled_file
from ostinatod.profiles.gguf_model import read_model
from ostinatod.profiles.load_estimate import estimate_load
from tests.conftest import eventually

MIB = 1024**2


@pytest.mark.engine
@pytest.mark.parametrize("context", [2048, 8192])
def test_the_engine_allocates_what_was_estimated(engine_build: EngineBuild, tmp_path: Path, context: int) -> None:
    estimate = estimate_load(read_model([bundled_file()]), context)
    socket, log = tmp_path / "engine.sock", tmp_path / "log"
    arguments = ["--model", bundled_file(), "--host", socket, "--ctx-size", str(context), "--parallel", "4"]
    command = [engine_build.server, *arguments, "--kv-unified", "--offline", "--log-verbosity", "5"]
    variables = engine_environment({"PATH": "/usr/bin:/bin"}, engine_build.library_directory)
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, env=variables) as engine:
        try:
            eventually(lambda: b"model loaded" in log.read_bytes() or engine.poll() is not None, "the model is loaded")
        finally:
            engine.kill()
    said = log.read_text(errors="replace")

    def allocated(what: str) -> float:
        return max(float(size) for size in re.findall(rf"CPU {what} buffer size = +([0-9.]+) MiB", said))

    assert allocated("KV") == pytest.approx(estimate.kv_cache_bytes / MIB, abs=0.01)
    # An estimate, which is right for the bundled model and must not be far off for it.
    assert allocated("compute") == pytest.approx(estimate.compute_bytes / MIB, rel=0.1)
