from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ostinatod.routing_log.counts import Counts, decode_counts, encode_counts, read_engine_counts


@given(
    arrays.arrays(
        np.int64,
        st.tuples(st.integers(0, 5), st.integers(0, 9)),
        elements=st.one_of(st.just(0), st.integers(0, 300), st.integers(0, 2**63 - 1)),
    )
)
def test_every_array_comes_back_as_it_was(counts: Counts) -> None:
    layers = tuple(range(3, 3 + counts.shape[0]))
    found_layers, found = decode_counts(encode_counts(layers, counts))
    assert found_layers == layers
    assert found.shape == counts.shape
    assert np.array_equal(found, counts)


def test_a_sparse_array_takes_little_room() -> None:
    counts = np.zeros((43, 256), np.int64)
    counts[:, ::16] = 3
    # 43 x 16 counts of one byte and a bitmap of 43 x 32 bytes, both regular; the plain array takes 88,064.
    assert len(encode_counts(tuple(range(43)), counts)) < 200


def test_negative_counts_and_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="0 or more, found -1"):
        encode_counts((0,), np.full((1, 2), -1))
    with pytest.raises(ValueError, match="2 layers"):
        encode_counts((0, 1), np.zeros((1, 2), np.int64))


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"not zlib",
        zlib.compress(b""),
        zlib.compress(b"\x01\x02"),
        zlib.compress(b"\x02" + bytes(6)),
        zlib.compress(b"\x01\xff\xff\xff\xff\xff\xff"),
        zlib.compress(b"\x01\x01\x00\x04\x00\x00\x00\x00\x00"),
        zlib.compress(b"\x01\x01\x00\x04\x00\x00\x00\x00\x00\xc0\x01"),
        zlib.compress(b"\x01\x01\x00\x04\x00\x00\x00\x00\x00\x00\x01"),
        encode_counts((0, 1), np.ones((2, 4), np.int64))[:-7],
    ],
)
def test_a_damaged_blob_is_refused(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="damaged"):
        decode_counts(damaged)


def answer(**changes: Any) -> bytes:
    told = {"layers": [1, 2], "n_experts": 3, "prefill": [[1, 2, 3], [4, 5, 6]], "decode": [[0, 0, 0], [7, 0, 0]]}
    return json.dumps({**told, **changes}).encode()


def test_the_engines_answer_is_read() -> None:
    counts = read_engine_counts(answer())
    assert counts is not None
    assert counts.layers == (1, 2)
    assert counts.prefill.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert counts.decode.tolist() == [[0, 0, 0], [7, 0, 0]]
    assert counts.routes == 28


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"error":{"message":"routes are not counted"}}',
        answer(n_experts=4),
        answer(layers=3),
        answer(prefill=[[1, 2, 3], [4, 5, -6]]),
        answer(prefill=[[1, 2, 3], [4, 5, 2**63]]),
        answer(decode=[[1, 2, 3]]),
    ],
)
def test_anything_else_is_no_counts(body: bytes) -> None:
    assert read_engine_counts(body) is None
