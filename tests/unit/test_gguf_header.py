from __future__ import annotations

import hashlib
import os
import struct
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinatod.models import bundled_file
from ostinatod.profiles.errors import HeaderError, PlanError
from ostinatod.profiles.gguf_header import ArrayField, read_header
from ostinatod.profiles.gguf_model import GgufModel, fingerprint, read_model
from tests.fakes import gguf


def test_bundled_model_is_described_right_and_at_once() -> None:
    start = time.thread_time()
    model = read_model([bundled_file()])
    elapsed_s = time.thread_time() - start
    assert model.architecture == "qwen3moe"
    assert (model.block_count, model.expert_count, model.expert_used_count) == (8, 64, 8)
    assert (model.embedding_length, model.context_length) == (512, 8192)
    assert model.quantization == "MXFP4"
    assert model.parameters == 60_040_704
    assert model.has_chat_template
    assert not model.is_embedding
    assert elapsed_s < 0.25  # about 10 ms


def test_fingerprint_is_the_hash_of_all_that_precedes_tensor_data() -> None:
    model = read_model([bundled_file()])
    head = bundled_file().read_bytes()[: model.parts[0].header_bytes]
    assert fingerprint(model) == hashlib.sha256(head).hexdigest()


def test_tensors_lie_back_to_back_behind_the_header(tmp_path: Path) -> None:
    path = gguf.write(tmp_path / "m.gguf", {}, [gguf.Tensor("a", (64, 3), "MXFP4"), gguf.Tensor("b", (5,))])
    found = read_header(path)
    a, b = found.tensors
    # 64 * 3 elements in blocks of 32 at 17 bytes: 102 bytes, padded to 128.
    assert (a.type_name, a.shape, a.nbytes, a.n_elements) == ("MXFP4", (64, 3), 102, 192)
    assert (b.type_name, b.shape, b.nbytes, b.n_elements) == ("F32", (5,), 20, 5)
    assert (a.offset, b.offset) == (found.header_bytes, found.header_bytes + 128)


def test_every_value_type_is_read(tmp_path: Path) -> None:
    values: dict[int, object] = {
        gguf.U8: 200,
        gguf.I8: -3,
        gguf.U16: 60000,
        gguf.I16: -300,
        gguf.U32: 4_000_000_000,
        gguf.I32: -70000,
    }
    values |= {gguf.U64: 1 << 40, gguf.I64: -(1 << 40), gguf.F32: 0.5, gguf.F64: 0.1, gguf.BOOL: True}
    metadata: dict[str, object] = {f"k{kind}": gguf.Typed(kind, value) for kind, value in values.items()}
    metadata |= {"text": "grün", "few": [1, 2, 3], "words": ["x", "y"]}
    fields = read_header(gguf.write(tmp_path / "m.gguf", metadata)).fields
    assert {kind: fields[f"k{kind}"] for kind in values} == values
    assert fields["text"] == "grün"
    assert fields["few"] == (1, 2, 3)
    assert isinstance(fields["words"], ArrayField)
    assert fields["words"].count == 2


def test_version_2_is_read_as_version_3(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf.header({"a": 1}, version=2))
    assert read_header(path).version == 2


def _vocabulary(n_tokens: int, token: str) -> bytes:
    words = struct.pack("<IIQ", 9, 8, n_tokens) + gguf.text(token) * n_tokens
    scores = struct.pack("<IIQ", 9, 6, n_tokens) + bytes(4 * n_tokens)
    fields = [gguf.text("words") + words, gguf.text("merges") + words, gguf.text("scores") + scores]
    return _file(n_fields=4, rest=b"".join(fields) + gguf.field("after", "here"))


def test_large_vocabulary_is_skipped_quickly(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(_vocabulary(200_000, "token"))
    start = time.thread_time()
    found = read_header(path)
    elapsed_s = time.thread_time() - start
    assert found.fields["after"] == "here"
    assert elapsed_s < 1.5  # about 0.15 s


def test_large_vocabulary_is_skipped_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(_vocabulary(10_000, "x" * 1000))  # 20 MB
    tracemalloc.start()
    read_header(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 4 << 20


def test_dense_model_has_no_experts(tmp_path: Path) -> None:
    metadata = gguf.model_metadata(architecture="llama", n_experts=0)
    model = read_model([gguf.write(tmp_path / "m.gguf", metadata, gguf.model_tensors())])
    assert (model.expert_count, model.expert_used_count) == (0, 0)


@pytest.mark.parametrize(
    ("file_type", "name"), [(15, "Q4_K_M"), (38, "MXFP4"), (1024 + 7, "Q8_0"), (999, "MXFP4"), (None, "MXFP4")]
)
def test_quantisation_is_the_recorded_mixture_or_what_takes_most_bytes(
    tmp_path: Path, file_type: int | None, name: str
) -> None:
    metadata = gguf.model_metadata()
    del metadata["general.file_type"]
    if file_type is not None:
        metadata["general.file_type"] = file_type
    assert read_model([gguf.write(tmp_path / "m.gguf", metadata, gguf.model_tensors())]).quantization == name


@pytest.mark.parametrize(
    ("extra", "expected"), [({"qwen3moe.pooling_type": 3}, True), ({"qwen3moe.pooling_type": 0}, False)]
)
def test_pooling_makes_an_embedding_model(tmp_path: Path, extra: dict[str, int], expected: bool) -> None:
    path = gguf.write(tmp_path / "m.gguf", gguf.model_metadata() | extra, gguf.model_tensors())
    assert read_model([path]).is_embedding is expected


def test_encoder_is_an_embedding_model(tmp_path: Path) -> None:
    metadata = gguf.model_metadata(architecture="bert", n_experts=0)
    assert read_model([gguf.write(tmp_path / "m.gguf", metadata, gguf.model_tensors())]).is_embedding


def test_selected_experts_may_differ_by_layer(tmp_path: Path) -> None:
    metadata = gguf.model_metadata() | {"qwen3moe.expert_used_count": gguf.Typed(gguf.U32, [1, 3])}
    assert read_model([gguf.write(tmp_path / "m.gguf", metadata, gguf.model_tensors())]).expert_used_count == 3


def test_split_set_is_read_as_one_model(tmp_path: Path) -> None:
    parts = gguf.write_split(tmp_path, "big", 3)
    model = read_model(parts)
    assert model.block_count == 3
    # 64 * 3 in the embedding and 64 * 32 * 4 in each of three layers.
    assert model.parameters == 192 + 3 * 8192
    assert model.size_bytes == sum(part.stat().st_size for part in parts)
    digest = hashlib.sha256()
    for part, path in zip(model.parts, parts, strict=True):
        digest.update(path.read_bytes()[: part.header_bytes])
    assert fingerprint(model) == digest.hexdigest()


@pytest.mark.parametrize("order", [(0, 1), (0, 2, 1), (1, 0, 2), (0, 1, 1)])
def test_wrong_set_is_refused(tmp_path: Path, order: tuple[int, ...]) -> None:
    parts = gguf.write_split(tmp_path, "big", 3)
    with pytest.raises(HeaderError, match=r"split\."):
        read_model([parts[index] for index in order])


def test_set_that_lacks_tensors_is_refused(tmp_path: Path) -> None:
    first, second = gguf.write_split(tmp_path, "big", 2)
    metadata = {"split.no": gguf.Typed(gguf.U16, 1), "split.count": gguf.Typed(gguf.U16, 2)}
    gguf.write(second, metadata, [])
    with pytest.raises(HeaderError, match=r"split\.tensors\.count"):
        read_model([first, second])


def _tensor(name: str, shape: tuple[int, ...], number: int = 0, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return gguf.text(name) + dimensions + struct.pack("<IQ", number, offset)


def _file(n_tensors: int = 0, n_fields: int = 0, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_fields) + rest


HUGE = struct.pack("<Q", 1 << 62)
MALFORMED = {
    "empty": (b"", "magic"),
    "another format": (b"PK\x03\x04" + bytes(60), "magic"),
    "version 1": (_file(version=1), "version: expected 2 or 3, found 1"),
    "version 4": (_file(version=4), "version: expected 2 or 3, found 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "too many fields": (_file(n_fields=1 << 60), "metadata count"),
    "too many tensors": (_file(n_tensors=1 << 60), "tensor count"),
    "huge key": (_file(n_fields=1, rest=HUGE + bytes(20)), "metadata key 0"),
    "empty key": (_file(n_fields=1, rest=gguf.field("", 1)), "metadata key 0"),
    "duplicate key": (_file(n_fields=2, rest=gguf.field("a", 1) * 2), "metadata key 1"),
    "key that is not text": (_file(n_fields=1, rest=struct.pack("<Q", 2) + b"\xff\xfe" + bytes(12)), "UTF-8"),
    "unknown value type": (
        _file(n_fields=1, rest=gguf.text("a") + struct.pack("<IQ", 13, 0)),
        "a: expected a value type",
    ),
    "huge text": (_file(n_fields=1, rest=gguf.text("a") + struct.pack("<I", 8) + HUGE), "a: expected at most"),
    "text past the end": (_file(n_fields=1, rest=gguf.text("a") + struct.pack("<IQ", 8, 900)), "a: expected 900 bytes"),
    "huge array": (_file(n_fields=1, rest=gguf.text("a") + struct.pack("<II", 9, 4) + HUGE), "a: expected"),
    "huge array of text": (_file(n_fields=1, rest=gguf.text("a") + struct.pack("<II", 9, 8) + HUGE), "a: expected"),
    "huge text in an array": (
        _file(n_fields=1, rest=gguf.text("a") + struct.pack("<IIQ", 9, 8, 1) + HUGE),
        "a: expected",
    ),
    "nested array": (_file(n_fields=1, rest=gguf.text("a") + struct.pack("<IIQ", 9, 9, 1)), "array of arrays"),
    "alignment of zero": (_file(n_fields=1, rest=gguf.field("general.alignment", 0)), "general.alignment"),
    "odd alignment": (_file(n_fields=1, rest=gguf.field("general.alignment", 48)), "general.alignment"),
    "alignment that is text": (_file(n_fields=1, rest=gguf.field("general.alignment", "32")), "general.alignment"),
    "long tensor name": (_file(n_tensors=1, rest=_tensor("x" * 64, (1,))), "name of tensor 0"),
    "duplicate tensor": (_file(n_tensors=2, rest=_tensor("a", (1,)) * 2), "name of tensor 1"),
    "five dimensions": (_file(n_tensors=1, rest=_tensor("a", (1,) * 5)), "tensor 'a': expected at most 4"),
    "dimension overflow": (_file(n_tensors=1, rest=_tensor("a", (1 << 32, 1 << 32))), "tensor 'a': expected fewer"),
    "negative dimension": (_file(n_tensors=1, rest=_tensor("a", (0, (1 << 64) - 1))), "tensor 'a': expected fewer"),
    "removed type": (_file(n_tensors=1, rest=_tensor("a", (32,), 4)), "tensor 'a': expected a tensor type"),
    "broken block": (_file(n_tensors=1, rest=_tensor("a", (33,), 39)), "tensor 'a': expected rows in blocks of 32"),
    "data past the end": (_file(n_tensors=1, rest=_tensor("a", (1 << 40,))), "bytes in the file"),
    "offset past the end": (_file(n_tensors=1, rest=_tensor("a", (1,), 0, 1 << 40)), "tensor 'a': expected offset 0"),
}


@pytest.mark.parametrize(("content", "message"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_file_is_refused_by_name_and_reason(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(HeaderError, match=r"bad\.gguf: ") as caught:
        read_header(path)
    assert message in caught.value.message
    assert isinstance(caught.value, PlanError)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("qwen3moe.block_count", "two"),
        ("qwen3moe.block_count", gguf.Typed(gguf.I32, -1)),
        ("qwen3moe.block_count", 1 << 20),
        ("qwen3moe.expert_used_count", 5),
        ("general.architecture", 7),
    ],
)
def test_setting_of_the_wrong_kind_is_refused_by_name(tmp_path: Path, key: str, value: object) -> None:
    metadata = gguf.model_metadata() | {key: value}
    model = read_model([gguf.write(tmp_path / "m.gguf", metadata, gguf.model_tensors())])
    with pytest.raises(HeaderError, match=key.replace(".", r"\.")):
        _read_all(model)


def test_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(HeaderError, match="regular file"):
        read_header(tmp_path / "pipe.gguf")


def test_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_header(tmp_path / "none.gguf")


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damage_never_raises_anything_else_or_allocates_much(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.gguf"
    content = bytearray(gguf.header(gguf.model_metadata(), gguf.model_tensors()) + bytes(40_000))
    head = len(content) - 40_000
    for position in data.draw(st.lists(st.integers(0, head - 1), max_size=6)):
        content[position] = data.draw(st.sampled_from([0, 1, 8, 9, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.just(len(content)) | st.integers(0, head))])
    tracemalloc.start()
    with suppress(HeaderError):
        _read_all(read_model([path]))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 2 << 20


def _read_all(model: GgufModel) -> None:
    for name in ("architecture", "kind", "block_count", "embedding_length", "expert_count", "expert_used_count"):
        getattr(model, name)
    for name in ("context_length", "quantization", "parameters", "has_chat_template", "is_embedding", "size_bytes"):
        getattr(model, name)
    fingerprint(model)
