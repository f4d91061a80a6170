from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostinatod.bench.plan import divided, read_settings
from ostinatod.bench.settings import (
    Setting,
    as_json,
    cpu_layers_for,
    from_json,
    ostinato_candidates,
    stock_candidates,
    upload_thresholds,
)
from ostinatod.bindings import NEVER
from ostinatod.errors import RequestError
from ostinatod.profiles.experts import ModelExperts

EXPERTS = ModelExperts(layers=(1, 2, 3, 4), expert_bytes=(10, 10, 20, 10), n_experts=(8, 8, 8, 8), k=2)
"""80 + 80 + 160 + 80 = 400 bytes; layer 0 is dense."""


@pytest.mark.parametrize(
    ("pool_bytes", "cpu_layers"),
    # --n-cpu-moe N leaves layers N and above: 400, 320, 240, 80, 0 bytes for N = 0..1, 2, 3, 4, 5.
    [(400, 0), (399, 2), (320, 2), (319, 3), (240, 3), (239, 4), (80, 4), (79, 5), (0, 5)],
)
def test_whole_layers_fill_the_memory_without_exceeding_it(pool_bytes: int, cpu_layers: int) -> None:
    assert cpu_layers_for(EXPERTS, pool_bytes) == cpu_layers


def test_stock_is_searched_over_load_modes_thresholds_and_layouts() -> None:
    found = stock_candidates(3, 8, on_gpu=True)
    assert {(item.load_mode, item.min_batch, item.repacked) for item in found} == {
        ("none", 32, False),
        ("none", 512, False),
        ("mmap", 32, False),
        ("mmap", 512, False),
        ("none", None, True),
    }
    assert {(item.kind, item.cpu_layers, item.threads) for item in found} == {("stock", 3, 8)}
    assert len({item.name for item in found}) == len(found)


def test_without_a_gpu_there_is_nothing_to_upload_to() -> None:
    assert {(item.load_mode, item.min_batch) for item in stock_candidates(0, 2, on_gpu=False)} == {
        ("mmap", None),
        ("none", None),
    }


def test_upload_thresholds_are_words_or_tokens() -> None:
    assert upload_thresholds("auto,never,512") == (0, NEVER, 512)
    names = [item.name for item in ostinato_candidates(0, upload_thresholds("auto,never,512"))]
    assert names == ["ostinato", "ostinato, no uploads", "ostinato, uploads from 512"]
    for wrong in ("often", "-5", "0", ""):
        with pytest.raises(RequestError, match=f"found '{wrong}'"):
            upload_thresholds(f"auto,{wrong}")


def test_the_threshold_reaches_llama_cpp_by_its_variable_and_bindings_are_free_to_bind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", "/elsewhere")
    environment = Setting("s", "stock", min_batch=512, environment={"X": "1"}).process_environment()
    assert (environment["GGML_OP_OFFLOAD_MIN_BATCH"], environment["X"]) == ("512", "1")
    assert "LLAMA_CPP_LIB_PATH" not in environment
    assert "GGML_OP_OFFLOAD_MIN_BATCH" not in Setting("s", "stock").process_environment()


def test_settings_survive_json() -> None:
    setting = Setting("s", "stock", 3, "none", 32, environment={"X": "1"})
    assert from_json(json.loads(json.dumps(as_json(setting)))) == setting


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"name": "s", "kind": "stock", "layers": 3}, "unknown in a setting: layers"),
        ({"name": "s", "kind": "other"}, "kind stock or ostinato"),
        ({"kind": "stock"}, "with a name"),
        ({"name": "s", "kind": "stock", "load_mode": "fast"}, "mmap or none, found 'fast'"),
        ({"name": "s", "kind": "stock", "cpu_layers": "3"}, "cpu_layers of s: expected a whole number, found '3'"),
        ({"name": "s", "kind": "stock", "threads": True}, "threads of s: expected a whole number, found True"),
        ({"name": "s", "kind": "stock", "repacked": 1}, "repacked of s: expected true or false, found 1"),
        ({"name": "s", "kind": "stock", "tensor_split": ["a"]}, "tensor_split of s: expected a list of numbers"),
        ({"name": "s", "kind": "stock", "environment": {"A": 1}}, "environment of s: expected names with text"),
    ],
)
def test_settings_that_are_none_are_refused(tmp_path: Path, values: dict[str, object], reason: str) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps([values]))
    with pytest.raises(RequestError, match=reason):
        read_settings(file)


def test_settings_need_names_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps([{"name": "s", "kind": "stock"}, {"name": "s", "kind": "ostinato"}]))
    with pytest.raises(RequestError, match="two settings are called 's'"):
        read_settings(file)


@pytest.mark.parametrize("content", ["{}", "[1]", "x", "[]"])
def test_files_that_hold_no_list_of_settings_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "settings.json").write_text(content)
    with pytest.raises(RequestError, match="holds no settings"):
        read_settings(tmp_path / "settings.json")


def test_of_logged_sessions_the_newest_are_timed_and_older_ones_teach() -> None:
    shapes: list[dict[str, Any]] = [{"id": name, "turns": []} for name in ("newest", "newer", "old", "oldest")]
    assert [(item["id"], item["part"]) for item in divided(shapes, 1, 2)] == [
        ("newest", "held-out"),
        ("newer", "held-out"),
        ("old", "development"),
    ]
    assert [item["part"] for item in divided(shapes[:2], 5, 5)] == ["held-out", "development"]
    with pytest.raises(RequestError, match="at least two sessions in the routing log, found 1"):
        divided(shapes[:1], 1, 1)
