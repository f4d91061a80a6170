from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ostinatod.routing_log.attribution import EngineLedger, counted_tokens
from ostinatod.routing_log.counts import Counts, RouteCounts
from tests.unit.routing_log.conftest import counts

K = 2


def test_a_request_alone_takes_all_that_was_counted_since() -> None:
    ledger = EngineLedger()
    ledger.read(counts(20, 10))
    first = ledger.take_all()
    ledger.read(counts(26, 14))
    second = ledger.take_all()
    assert first is not None
    assert second is not None
    assert first.prefill[:, 1].tolist() == [20, 20]
    assert (second.prefill[:, 1].tolist(), second.decode[:, 1].tolist()) == ([6, 6], [4, 4])


def test_nothing_is_known_before_the_counters_were_read() -> None:
    assert EngineLedger().take_all() is None
    assert EngineLedger().take_share(1, 1, K) is None


def test_a_second_request_that_ended_with_the_same_reading_takes_zeros() -> None:
    ledger = EngineLedger()
    ledger.read(counts(20, 10))
    ledger.take_all()
    rest = ledger.take_all()
    assert rest is not None
    assert rest.routes == 0


def test_two_at_once_share_by_tokens_and_leave_nothing() -> None:
    ledger = EngineLedger()
    # 30 tokens were read and 10 written, K routes each on the same expert: 60 and 20 routes per layer.
    ledger.read(counts(60, 20))
    first = ledger.take_share(10, 8, K)
    last = ledger.take_all()
    assert first is not None
    assert last is not None
    assert (first.prefill[:, 1].tolist(), first.decode[:, 1].tolist()) == ([20, 20], [16, 16])
    assert (last.prefill[:, 1].tolist(), last.decode[:, 1].tolist()) == ([40, 40], [4, 4])


def test_a_request_of_unknown_length_leaves_all_to_the_others() -> None:
    ledger = EngineLedger()
    ledger.read(counts(60, 20))
    cancelled = ledger.take_share(None, None, K)
    last = ledger.take_all()
    assert cancelled is not None
    assert last is not None
    assert cancelled.routes == 0
    assert last.routes == 160


def test_what_one_leaves_is_added_to_what_is_counted_next() -> None:
    ledger = EngineLedger()
    ledger.read(counts(60, 0))
    ledger.take_share(10, 0, K)
    ledger.read(counts(64, 6))
    rest = ledger.take_all()
    assert rest is not None
    assert (rest.prefill[:, 1].tolist(), rest.decode[:, 1].tolist()) == ([44, 44], [6, 6])


def test_counters_that_went_back_are_a_new_engines() -> None:
    ledger = EngineLedger()
    ledger.read(counts(60, 20))
    ledger.take_all()
    ledger.read(counts(70, 4))
    taken = ledger.take_all()
    assert taken is not None
    assert (taken.prefill[0, 1], taken.decode[0, 1]) == (70, 4)


def test_an_announced_restart_counts_from_zero_even_if_the_new_counters_are_higher() -> None:
    ledger = EngineLedger()
    ledger.read(counts(60, 20))
    ledger.restarted()
    ledger.read(counts(61, 21))
    taken = ledger.take_all()
    assert taken is not None
    assert taken.prefill[0, 1] == 61


def test_counters_of_another_shape_replace_what_was_open() -> None:
    ledger = EngineLedger()
    ledger.read(counts(60, 20))
    ledger.read(counts(5, 0, experts=8))
    taken = ledger.take_all()
    assert taken is not None
    assert taken.prefill.shape == (2, 8)


def test_the_layer_that_saw_most_tells_how_many_tokens_were_counted() -> None:
    # The last layer of a prefill computes only the tokens whose logits are wanted.
    assert counted_tokens(np.array([[6, 4], [2, 0]]), K) == 5.0
    assert counted_tokens(np.zeros((0, 0), np.int64), K) == 0.0


@given(
    arrays.arrays(np.int64, (2, 3, 5), elements=st.integers(0, 1000)),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), max_size=4),
    st.integers(0, 8),
)
def test_shares_are_never_negative_and_add_up_to_what_was_counted(
    counted: Counts, requests: list[tuple[int, int]], k: int
) -> None:
    ledger = EngineLedger()
    ledger.read(RouteCounts((0, 1, 2), counted[0], counted[1]))
    shares = [ledger.take_share(new, out, k) for new, out in requests] + [ledger.take_all()]
    found = [share for share in shares if share is not None]
    assert all(share.prefill.min() >= 0 and share.decode.min() >= 0 for share in found)
    assert np.array_equal(sum(share.prefill for share in found), counted[0])
    assert np.array_equal(sum(share.decode for share in found), counted[1])
