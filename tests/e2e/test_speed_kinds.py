"""Layers count with the speeds of their own kind of experts, and the engine tells which kinds there are."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ostinatod.installer.engine_build import EngineBuild
from tests.e2e.conftest import MODEL, RunSilentProgram
from tests.e2e.programs import run_program
from tests.e2e.test_residency import LAYOUT, PLAIN_WEIGHTS, running_engine

pytestmark = pytest.mark.engine

_PLACED = """
import json, sys
from pathlib import Path
from ostinatod.bench.placed_model import EngineLog, PlacedModel
from ostinatod.bench.settings import Setting
from ostinatod.bindings import load_bindings
from ostinatod.errors import EngineError

bindings = load_bindings(Path(sys.argv[1]))
log = EngineLog(bindings.llama_cpp.llama_cpp)
setting = Setting("placed", "ostinato", threads=1, copy_blocks=8)
model = PlacedModel(bindings, Path(sys.argv[2]), setting, n_ctx=64, on_gpu=False, counted=True)
try:
    refusal = str(bindings.upload_costs(model.handle, 1))
except EngineError as error:
    refusal = error.message
print(json.dumps({"costs": model.upload_costs(), "refusal": refusal}))
"""


def test_each_kind_is_measured_once_and_stands_for_those_that_cannot_be(
    run_silent_program: RunSilentProgram, pinned_source: Path
) -> None:
    run_silent_program("speeds_by_kind.cpp", f"-I{pinned_source / 'include'}", f"-I{pinned_source / 'ggml' / 'src'}")


def test_costs_of_uploads_are_told_by_device_and_of_none_that_is_not_there(engine_build: EngineBuild) -> None:
    command = [sys.executable, "-c", _PLACED, str(engine_build.library_directory), str(MODEL)]
    printed = run_program(command, timeout_s=60)
    told = json.loads(printed.splitlines()[-1])
    # The only device is the CPU, to which nothing is uploaded.
    assert told == {"costs": [[]], "refusal": "device: expected less than 1, found 1"}


def test_the_status_tells_kinds_with_their_layers(engine_build: EngineBuild, tmp_path: Path) -> None:
    flags = (*PLAIN_WEIGHTS, "--ostinato-branches", "--ostinato-copy-blocks", "8")
    with running_engine(engine_build, tmp_path, *flags) as engine:
        (device,) = engine.http.get("/ostinato/status").json()["devices"]
    kinds = device["kinds"]
    assert sorted(layer for kind in kinds for layer in kind["layers"]) == list(LAYOUT.layers)
    assert all(kind["types"].startswith("gate ") and kind["expert_bytes"] > 0 for kind in kinds)
    # Nothing is measured without a GPU.
    assert [kind["measured"] for kind in kinds] == [-1] * len(kinds)
    assert {speed for kind in kinds for speed in kind["speeds"].values()} == {0.0}
    assert set(kinds[0]["speeds"]) == set(device["speeds"])
