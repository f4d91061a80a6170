"""What is known before the first session: an imatrix's counts of each expert, and the experts themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ostinatod.profiles.errors import HeaderError
from ostinatod.profiles.experts import read_experts
from ostinatod.profiles.gguf_header import read_header
from ostinatod.profiles.gguf_model import read_model
from ostinatod.profiles.imatrix import imatrix_files, read_expert_counts
from tests.fakes.gguf import Tensor, model_metadata, write, write_model


def write_imatrix(path: Path, counts: dict[str, list[float]]) -> Path:
    """A GGUF as `llama-imatrix` writes it: sums of squares and counts of each tensor."""
    names = [f"{name}.counts" for name in counts]
    sums = [Tensor(f"{name}.in_sum2", (8, len(values))) for name, values in counts.items()]
    tensors = [*sums, *(Tensor(name, (1, len(values))) for name, values in zip(names, counts.values(), strict=True))]
    write(path, {"general.type": "imatrix", "imatrix.chunk_count": 4}, tensors)
    data = bytearray(path.read_bytes())
    offsets = {tensor.name: tensor.offset for tensor in read_header(path).tensors}
    for name, values in zip(names, counts.values(), strict=True):
        raw = np.array(values, "<f4").tobytes()
        data[offsets[name] : offsets[name] + len(raw)] = raw
    path.write_bytes(data)
    return path


UP = "blk.{}.ffn_up_exps.weight"


def test_counts_are_read_per_layer_and_expert(tmp_path: Path) -> None:
    path = write_imatrix(tmp_path / "i.gguf", {UP.format(1): [5, 0, 2, 1], UP.format(0): [1, 2, 3, 4]})
    counts = read_expert_counts(path, (0, 1), 4)
    assert counts is not None
    assert counts.tolist() == [[1, 2, 3, 4], [5, 0, 2, 1]]


def test_an_imatrix_that_lacks_a_layer_tells_nothing(tmp_path: Path) -> None:
    path = write_imatrix(tmp_path / "i.gguf", {UP.format(0): [1, 2, 3, 4]})
    assert read_expert_counts(path, (0, 1), 4) is None
    assert read_expert_counts(write_model(tmp_path / "m.gguf"), (0, 1), 4) is None


@pytest.mark.parametrize(("values", "words"), [([1, 2], "expected 4 numbers"), ([1, -1, 0, 0], "counts of 0 or more")])
def test_counts_that_cannot_be_are_refused(tmp_path: Path, values: list[float], words: str) -> None:
    path = write_imatrix(tmp_path / "i.gguf", {UP.format(0): values})
    with pytest.raises(HeaderError, match=words):
        read_expert_counts(path, (0,), 4)


def test_sidecars_of_the_same_model_come_first(tmp_path: Path) -> None:
    for name in ("other-imatrix.gguf", "qwen3-30b-imatrix.gguf", "imatrix.gguf", "qwen3-30b-Q4.gguf", "a.imatrix.dat"):
        (tmp_path / name).touch()
    found = [path.name for path in imatrix_files(tmp_path / "qwen3-30b-Q4.gguf")]
    assert found == ["qwen3-30b-imatrix.gguf", "imatrix.gguf", "other-imatrix.gguf"]
    split = imatrix_files(tmp_path / "qwen3-30b-00001-of-00002.gguf")
    assert split[0].name == "qwen3-30b-imatrix.gguf"


def test_experts_are_as_large_as_all_their_tensors(tmp_path: Path) -> None:
    names = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
    tensors = [Tensor(f"blk.3.{name}.weight", (64, 32, 4), "MXFP4") for name in names]
    tensors += [Tensor("blk.3.ffn_gate_inp.weight", (64, 4)), Tensor("blk.3.ffn_up_exps.bias", (32, 4))]
    path = write(tmp_path / "m.gguf", model_metadata(n_layers=4), tensors)
    experts = read_experts(read_model([path]))
    assert experts is not None
    assert (experts.layers, experts.n_experts, experts.k, experts.width) == ((3,), (4,), 2, 4)
    # 64 * 32 weights in blocks of 32 of 17 bytes, three times, and a bias of 32 F32.
    assert experts.expert_bytes == (3 * 64 * 32 // 32 * 17 + 32 * 4,)


def test_a_dense_model_has_no_experts(tmp_path: Path) -> None:
    path = write(tmp_path / "d.gguf", model_metadata(n_experts=0), [Tensor("token_embd.weight", (64, 3), "F32")])
    assert read_experts(read_model([path])) is None


def test_tensors_that_disagree_about_the_experts_are_refused(tmp_path: Path) -> None:
    tensors = [Tensor(UP.format(0), (64, 32, 4), "MXFP4"), Tensor("blk.0.ffn_down_exps.weight", (32, 64, 3), "MXFP4")]
    path = write(tmp_path / "m.gguf", model_metadata(n_layers=1), tensors)
    with pytest.raises(HeaderError, match="4 experts of one size"):
        read_experts(read_model([path]))
