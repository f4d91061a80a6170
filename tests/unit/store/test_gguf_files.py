from __future__ import annotations

from pathlib import Path

import pytest

from ostinatod.errors import ModelFormatError, ModelNotFound
from ostinatod.store.gguf_files import describe, parse_split_name, parts_of
from tests.fakes import gguf


def test_split_name_is_taken_apart() -> None:
    split = parse_split_name("big-Q4_K_M-00002-of-00003.gguf")
    assert split is not None
    assert (split.stem, split.part, split.count) == ("big-Q4_K_M", 2, 3)
    assert split.sibling(3) == "big-Q4_K_M-00003-of-00003.gguf"


@pytest.mark.parametrize("name", ["m.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m-1-of-3.gguf"])
def test_other_names_claim_no_place_in_a_set(name: str) -> None:
    assert parse_split_name(name) is None


def test_any_part_stands_for_its_set(tmp_path: Path) -> None:
    paths = gguf.write_split(tmp_path, "big", 3)
    assert parts_of(paths[1]) == tuple(paths)


def test_directory_stands_for_its_only_model(tmp_path: Path) -> None:
    paths = gguf.write_split(tmp_path, "big", 2)
    gguf.write(tmp_path / "mmproj-F16.gguf", {})
    (tmp_path / "README.md").write_text("x")
    assert parts_of(tmp_path) == tuple(paths)


def test_directory_with_two_models_is_refused_naming_them(tmp_path: Path) -> None:
    gguf.write_model(tmp_path / "a.gguf")
    gguf.write_model(tmp_path / "b.gguf")
    with pytest.raises(ModelFormatError, match=r"exactly one model .* found a\.gguf, b\.gguf"):
        parts_of(tmp_path)


def test_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="found none"):
        parts_of(tmp_path)


def test_missing_part_is_named(tmp_path: Path) -> None:
    paths = gguf.write_split(tmp_path, "big", 3)
    paths[1].unlink()
    with pytest.raises(ModelFormatError, match=r"missing big-00002-of-00003\.gguf"):
        parts_of(paths[0])


def test_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such file"):
        parts_of(tmp_path / "none.gguf")


def test_description_says_what_the_headers_say(tmp_path: Path) -> None:
    path = gguf.write_model(tmp_path / "m.gguf")
    found = describe([path])
    assert found.size_bytes == path.stat().st_size
    assert (found.shape.architecture, found.shape.n_layers, found.shape.n_experts, found.shape.k) == (
        "qwen3moe",
        2,
        4,
        2,
    )
    assert (found.shape.n_embd, found.shape.context_tokens, found.shape.quantization) == (64, 4096, "MXFP4")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "clip"}, "expected a language model"),
        ({"general.type": "adapter"}, "found a file of type 'adapter'"),
        ({"general.architecture": ""}, "found metadata only"),
        ({"qwen3moe.block_count": "two"}, "block_count: expected a whole number"),
    ],
)
def test_file_that_is_no_language_model_is_refused(tmp_path: Path, metadata: dict[str, str], message: str) -> None:
    path = gguf.write(tmp_path / "m.gguf", gguf.model_metadata() | metadata, gguf.model_tensors())
    with pytest.raises(ModelFormatError, match=message):
        describe([path])


def test_truncated_file_is_refused_by_name(tmp_path: Path) -> None:
    path = gguf.write_model(tmp_path / "cut.gguf")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelFormatError, match=r"cut\.gguf: tensor 'blk\.1\.ffn_up_exps\.weight': expected"):
        describe([path])
