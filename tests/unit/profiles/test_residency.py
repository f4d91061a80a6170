from __future__ import annotations

import dataclasses
import os
import re
import shutil
import struct
import subprocess
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinatod.profiles.errors import PlanError, ResidencyError, ResidencyMismatch
from ostinatod.profiles.residency import (
    MAX_EXPERTS,
    MAX_LAYERS,
    ExpertLayout,
    Residency,
    decode_residency,
    encode_residency,
    hot_lists,
    read_residency,
    write_residency,
)

KERNELS_PATCH = Path(__file__).parents[3] / "kernels_patch"
LAYOUT = ExpertLayout("ab" * 32, (1, 2, 5), 8)
RESIDENCY = Residency(LAYOUT, 7, 1_750_000_000, {"method": "frequency", "sessions": ["s1"]}, ((0, 3, 7), (), (1, 2)))

# Offsets of docs/residency-file.md.
VERSION, HEADER, FILE, FINGERPRINT, GENERATION, CREATED, LAYERS, EXPERTS, PROVENANCE, N_HOT, BODY = (
    *(8, 12, 16, 24, 56, 64, 72, 76, 80, 84, 88),
)


def sealed(content: bytes) -> bytes:
    """`content` with its size and checksum made right: what is refused then is refused for its meaning."""
    sized = content[:FILE] + struct.pack("<Q", len(content) + 4) + content[FILE + 8 :]
    return sized + struct.pack("<I", zlib.crc32(sized))


def content_of(residency: Residency) -> bytes:
    return encode_residency(residency)[:-4]


def patched(offset: int, layout: str, value: int) -> bytes:
    """The example with one value overwritten, and sealed again."""
    content = bytearray(content_of(RESIDENCY))
    struct.pack_into(layout, content, offset, value)
    return sealed(bytes(content))


def reason(data: bytes) -> str:
    with pytest.raises(ResidencyError) as refused:
        decode_residency(data)
    return refused.value.message


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def residencies(draw: st.DrawFn) -> Residency:
    n_experts = draw(st.integers(1, 24) | st.just(MAX_EXPERTS))
    layers = tuple(sorted(draw(st.sets(st.integers(0, MAX_LAYERS - 1), min_size=1, max_size=5))))
    hot = tuple(
        tuple(sorted(draw(st.sets(st.integers(0, n_experts - 1), max_size=min(n_experts, 24))))) for _ in layers
    )
    return Residency(
        layout=ExpertLayout(draw(st.binary(min_size=32, max_size=32)).hex(), layers, n_experts),
        generation=draw(st.integers(1, 2**63 - 1)),
        created_at_s=draw(st.integers(0, 2**63 - 1)),
        provenance=draw(st.dictionaries(st.text(), json_values, max_size=3)),
        hot=hot,
    )


@given(residencies())
def test_what_was_written_is_read_back(residency: Residency) -> None:
    assert decode_residency(encode_residency(residency)) == residency


@given(residencies(), st.data())
@settings(max_examples=200)
def test_a_change_of_any_one_byte_is_refused(residency: Residency, data: st.DataObject) -> None:
    raw = bytearray(encode_residency(residency))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ResidencyError):
        decode_residency(bytes(raw))


def test_every_bit_of_the_example_counts() -> None:
    raw = encode_residency(RESIDENCY)
    for bit in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ResidencyError):
            decode_residency(bytes(flipped))


def test_a_file_cut_at_any_byte_is_refused_with_both_sizes() -> None:
    raw = encode_residency(RESIDENCY)
    for size in range(len(raw)):
        expected = "at least 92 bytes" if size < 92 else f"{len(raw)} bytes"
        assert reason(raw[:size]) == f"file: expected {expected}, found {size}"


def test_bytes_after_the_end_are_refused() -> None:
    raw = encode_residency(RESIDENCY)
    assert reason(raw + b"\0") == f"file: expected {len(raw)} bytes, found {len(raw) + 1}"
    # Counted in by the size and the checksum, they still belong to no layer.
    assert reason(sealed(content_of(RESIDENCY) + b"\0\0")) == "layers: expected nothing after the last, found 2 bytes"


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ResidencyError):
        decode_residency(data)


FIRST_LAYER = BODY + len(b'{"method":"frequency","sessions":["s1"]}')
# Layer 1 has three hot experts of 2 bytes, layer 2 none, each after 8 bytes of its own.
SECOND_LAYER = FIRST_LAYER + 8 + 6
THIRD_LAYER = SECOND_LAYER + 8


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"GGUF" + encode_residency(RESIDENCY)[4:], "magic: expected 4f53545245534944, found 4747554645534944"),
        (patched(VERSION, "<I", 2), "version: expected 1, found 2"),
        (patched(HEADER, "<I", 96), "header: expected 88 bytes, found 96"),
        (encode_residency(RESIDENCY)[:-4] + b"\0\0\0\0", r"checksum: expected [0-9a-f]{8}, found 00000000"),
        (patched(GENERATION, "<Q", 0), "generation: expected a number from 1 to 9223372036854775807, found 0"),
        (patched(CREATED, "<Q", 1 << 63), "created_at: expected a number from 0 to .*, found 9223372036854775808"),
        (patched(LAYERS, "<I", 0), "layers: expected a number from 1 to 4096, found 0"),
        (patched(LAYERS, "<I", 2), "layers: expected nothing after the last, found 12 bytes"),
        (patched(LAYERS, "<I", 4), "layer entry 3: expected 8 bytes, found 0"),
        (patched(EXPERTS, "<I", 0), "experts: expected a number from 1 to 65536, found 0"),
        (patched(EXPERTS, "<I", 7), "layer 1: expected experts below 7, found 7"),
        (patched(PROVENANCE, "<I", 1 << 31), "provenance: expected at most 74 bytes, found 2147483648"),
        (patched(BODY, "<B", ord("[")), "provenance: expected a JSON object, found Expecting .*"),
        (patched(N_HOT, "<I", 6), "hot experts: expected 5, found 6"),
        (patched(FIRST_LAYER, "<I", 4096), "layer entry 0: expected a layer below 4096, found 4096"),
        (patched(FIRST_LAYER + 4, "<I", 18), "layer entry 0: expected at most 13 hot experts, found 18"),
        (patched(SECOND_LAYER, "<I", 1), "layer entry 1: expected a layer above 1, found 1"),
        (patched(THIRD_LAYER, "<I", 1), "layer entry 2: expected a layer above 2, found 1"),
        (patched(FIRST_LAYER + 10, "<H", 8), "layer 1: expected experts below 8, found 8"),
        (patched(FIRST_LAYER + 10, "<H", 0), "layer 1: expected an expert above 0, found 0"),
        (patched(FIRST_LAYER + 12, "<H", 2), "layer 1: expected an expert above 3, found 2"),
    ],
)
def test_a_file_is_refused_with_what_was_expected_and_found(data: bytes, expected: str) -> None:
    assert re.fullmatch(expected, reason(data))


@pytest.mark.parametrize("provenance", [b"", b"[1]", b'{"a":NaN}', b'{"a":"\xff"}', b"{" * 20_000])
def test_provenance_that_is_not_a_json_object_is_refused(provenance: bytes) -> None:
    head = bytearray(content_of(RESIDENCY))
    struct.pack_into("<I", head, PROVENANCE, len(provenance))
    assert reason(sealed(bytes(head[:BODY]) + provenance + bytes(head[FIRST_LAYER:]))).startswith("provenance: ")


@pytest.mark.parametrize("provenance", [{"a": float("nan")}, {"a": object()}, {"a": "x" * (1 << 20)}])
def test_provenance_that_could_not_be_read_back_is_not_written(provenance: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ResidencyError, match="provenance"):
        write_residency(tmp_path / "r", dataclasses.replace(RESIDENCY, provenance=provenance))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"generation": 0},
        {"created_at_s": -1},
        {"hot": ((0,), ())},
        {"hot": ((0,), (), (8,))},
        {"hot": ((0,), (), (-1,))},
        {"hot": ((0,), (), (1, 1))},
        {"hot": ((0,), (), (2, 1))},
    ],
)
def test_a_set_that_no_reader_would_take_cannot_be_made(change: dict[str, Any]) -> None:
    with pytest.raises(ResidencyError, match=r"expected .*, found "):
        dataclasses.replace(RESIDENCY, **change)


@pytest.mark.parametrize(
    "change",
    [{"fingerprint": "AB" * 32}, {"layers": ()}, {"layers": (2, 1)}, {"layers": (-1,)}, {"n_experts": 65537}],
)
def test_a_layout_that_no_model_has_cannot_be_made(change: dict[str, Any]) -> None:
    with pytest.raises(ResidencyError, match=r"expected .*, found "):
        dataclasses.replace(LAYOUT, **change)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"fingerprint": "cd" * 32}, f"fingerprint: expected {'cd' * 32}, found {'ab' * 32}"),
        ({"layers": (1, 2)}, "layers: expected 2, found 3"),
        ({"layers": (1, 2, 4)}, "layer entry 2: expected layer 4, found layer 5"),
        ({"n_experts": 16}, "experts: expected 16, found 8"),
    ],
)
def test_the_set_of_another_model_is_refused_by_file_and_reason(
    change: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "7.residency"
    write_residency(path, RESIDENCY)
    assert read_residency(path, LAYOUT) == RESIDENCY
    with pytest.raises(ResidencyMismatch) as refused:
        read_residency(path, dataclasses.replace(LAYOUT, **change))
    assert refused.value.message == f"{path}: {expected}"
    assert isinstance(refused.value, PlanError)


def test_a_write_replaces_the_file_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "current.residency"
    write_residency(path, RESIDENCY)
    before = path.open("rb")
    with before:
        newer = dataclasses.replace(RESIDENCY, generation=8)
        write_residency(path, newer)
        assert decode_residency(before.read()) == RESIDENCY
    assert read_residency(path) == newer
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_keeps_the_file_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "current.residency"
    write_residency(path, RESIDENCY)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_residency(path, dataclasses.replace(RESIDENCY, generation=8))
    assert read_residency(path) == RESIDENCY
    assert list(tmp_path.iterdir()) == [path]


def test_masks_and_lists_say_the_same() -> None:
    mask = RESIDENCY.mask()
    assert mask.shape == (3, 8)
    assert mask.sum() == RESIDENCY.n_hot == 5
    assert mask[0].tolist() == [True, False, False, True, False, False, False, True]
    assert hot_lists(mask) == RESIDENCY.hot


def test_a_large_model_s_set_is_small_and_read_at_once(tmp_path: Path) -> None:
    layout = ExpertLayout("ab" * 32, tuple(range(94)), 256)
    hot = hot_lists(np.random.default_rng(5).random((94, 256)) < 0.44)
    path = tmp_path / "large.residency"
    write_residency(path, Residency(layout, 1, 0, {}, hot))
    start = time.thread_time()  # which other work on the machine does not add to
    residency = read_residency(path, layout)
    elapsed_s = time.thread_time() - start
    assert residency.hot == hot
    # 88 + 2 for the header and "{}", 94 * 8 for the layers, 2 for each hot expert, 4 for the checksum.
    assert path.stat().st_size == 88 + 2 + 94 * 8 + 2 * residency.n_hot + 4
    assert elapsed_s < 0.1  # about 1 ms


# ---- The engine's reader, by itself and under sanitizers ---------------------------------------------------------


@pytest.fixture(scope="module")
def fuzz_reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler: the engine's reader is not tested")
    program = tmp_path_factory.mktemp("fuzz") / "fuzz-residency"
    sources = [KERNELS_PATCH / "tests" / "fuzz-residency.cpp", KERNELS_PATCH / "overlay" / "ostinato" / "residency.cpp"]
    command = [compiler, "-std=c++17", "-O1", f"-I{KERNELS_PATCH / 'overlay'}", *map(str, sources), "-o", str(program)]
    # Some installations come without the sanitizers' libraries; the program's own checks run there all the same.
    for sanitizers in (["-fsanitize=address,undefined", "-fno-sanitize-recover=all"], []):
        done = subprocess.run([*command, *sanitizers], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr
    return program


FuzzReader = Callable[..., tuple[int, int]]


@pytest.fixture
def mutate(fuzz_reader: Path, tmp_path: Path) -> FuzzReader:
    """Feeds each set, mutated, to the engine's reader; how many mutants it accepted and refused."""

    def run(rounds: int, *sets: Residency) -> tuple[int, int]:
        files = []
        for number, residency in enumerate(sets):
            files.append(tmp_path / f"{number}.residency")
            write_residency(files[-1], residency)
        done = subprocess.run([fuzz_reader, str(rounds), *files], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        found = re.fullmatch(r"accepted (\d+) refused (\d+)\n", done.stdout)
        assert found, done.stdout
        return int(found[1]), int(found[2])

    return run


def test_the_engine_s_reader_takes_what_python_writes(mutate: FuzzReader) -> None:
    other = Residency(ExpertLayout("00" * 32, (0,), MAX_EXPERTS), 2**63 - 1, 2**63 - 1, {}, ((MAX_EXPERTS - 1,),))
    assert mutate(1, RESIDENCY, other) == (2, 0)


def test_no_mutation_makes_the_engine_s_reader_fail(mutate: FuzzReader) -> None:
    accepted, refused = mutate(20_000, RESIDENCY)
    assert accepted + refused == 20_000
    # Both outcomes are well represented: mutants with repaired checksums get past the frame.
    assert refused > 10_000
    assert accepted > 100
