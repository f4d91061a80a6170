"""What the engine tells of two GPUs is what the planner fills: each pool with experts of its own GPU's layers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinatod.learning.generations import Generations
from ostinatod.learning.model_files import ModelFiles
from ostinatod.learning.residencies import Residencies
from ostinatod.profiles.route_log import SessionRoutes
from tests.fakes.gguf import model_metadata, model_tensors, write
from tests.fakes.memory_store import record

SOURCE = Path(__file__).parents[2] / "kernels_patch" / "overlay" / "ostinato" / "server-routes.cpp"
N_LAYERS, N_EXPERTS = 4, 4
EXPERT = 1088
"""Bytes of an expert of the model that `model_tensors` describes."""


def two_gpus(*pools: int) -> dict[str, Any]:
    """The engine's status, as far as pools go, where the first three layers are the first GPU's."""
    speeds = {
        "cpu_row_bytes_per_s": 7e10,
        "cpu_rows_bytes_per_s": 2e10,
        "link_bytes_per_s": 5e10,
        "in_place_bytes_per_s": 4e10,
    }
    devices = [
        {
            "name": f"CUDA{number}",
            "gpu": True,
            "pool_capacity": size,
            "pool_used": size,
            "pool_room": size,
            "pool_unlearned": size,
            "published": 900,
            "cold_routes": 1400,
            "waited_ms": 21.5,
            "decode_waited_ms": 12.5,
            "decode_busy_ms": 20.0,
            "cpu_routes": 1400,
            "linked": 300,
            "link_columns": 576,
            "hidden_columns": 2048,
            "cpu_busy_ms": 41.0,
            "uploaded": 12,
            "uploaded_bytes": 12 * EXPERT,
            "prefetched": 6,
            "foreseen": 5,
            "staging_bytes": 0,
            "borrowed_bytes": 0,
            "borrowed": 0,
            "graphs": {"captures": 1, "replays": 60, "direct_passes": 4},
            "speeds": speeds,
            "kinds": [
                {
                    "types": "gate mxfp4, up mxfp4, down mxfp4",
                    "layers": [[0, 1, 2], [3]][number],
                    "expert_bytes": EXPERT,
                    "measured": 0,
                    "speeds": speeds,
                    "link_columns": 576,
                    "hidden_columns": 2048,
                }
            ],
        }
        for number, size in enumerate(pools)
    ]
    return {"abi": 7, "devices": devices, "pool_bytes": list(pools), "gpu_of_layer": [0, 0, 0, 1], "cpu_branch": None}


def keys_of(function: str, opening: str) -> set[str]:
    """The keys of the object that begins there in a function of the C++ source; not those of objects within it."""
    body = SOURCE.read_text(encoding="utf-8").split(f"{function}(")[1].split("\n}\n")[0]
    written = body.split(opening)[1].split("\n")
    depth = min(len(row) - len(row.lstrip()) for row in written if '{ "' in row)
    return {match[1] for row in written if (match := re.match(rf'\s{{{depth}}}\{{ "(\w+)",', row))}


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    return write(tmp_path / "m.gguf", model_metadata(n_layers=N_LAYERS), model_tensors(n_layers=N_LAYERS, rows=32))


def test_the_canned_status_has_the_engine_s_names() -> None:
    told = two_gpus(1, 1)
    assert set(told) <= keys_of("static server_http_res_ptr get_status", "return respond({")
    for device in told["devices"]:
        assert set(device) == keys_of("static json describe_devices", "out.push_back({")
        assert set(device["kinds"][0]) == keys_of("static json describe_kinds", "out.push_back({")


def test_the_engine_tells_a_gpu_for_each_layer_only_where_there_are_several() -> None:
    body = SOURCE.read_text(encoding="utf-8").split("static json describe_gpu_of_layer(")[1].split("\n}\n")[0]
    assert "json out = nullptr;" in body
    assert re.search(r"if \(n_gpus > 1\) \{\s+out\.push_back\(gpu\);", body)


def test_both_pools_are_filled_and_neither_beyond_its_size(tmp_path: Path, model_file: Path) -> None:
    # Three experts and a rest for three layers, two and a rest for one.
    pools = (3 * EXPERT + 500, 2 * EXPERT + 500)
    facts = ModelFiles().facts(record("m", path=model_file))
    assert facts is not None
    assert facts.experts.expert_bytes == (EXPERT,) * N_LAYERS
    decode = np.array([[9, 1, 1, 1], [8, 1, 1, 1], [7, 1, 1, 1], [1, 1, 2, 3]], np.int64) * 50
    session = SessionRoutes(
        session="s",
        started_at=1.0,
        last_at=2.0,
        requests=1,
        layers=tuple(range(N_LAYERS)),
        prefill=np.zeros_like(decode),
        decode=decode,
        new_tokens=0,
        output_tokens=1000,
    )
    generations = Generations(tmp_path / "learning.db", tmp_path / "residency")
    sets = Residencies(generations, lambda _: [session], hot_experts_fraction=0.0)
    sets.learn_capacity(facts, two_gpus(*pools))
    capacity = sets.capacity(facts)
    assert capacity is not None
    assert (capacity.pool_bytes, capacity.gpu) == (pools, (0, 0, 0, 1))
    planned = sets.plan(facts, capacity).proposal
    assert planned is not None
    for hot in (planned.hot, sets.unlearned(facts, capacity)[0]):
        assert (hot[:3].sum(), hot[3].sum()) == (3, 2)
    # The most routed of each GPU, although every expert of the last layer has fewer routes than the first's.
    assert [np.flatnonzero(row).tolist() for row in planned.hot] == [[0], [0], [0], [2, 3]]
