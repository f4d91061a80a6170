"""What a decode step and a prefill cost behind contexts of several depths: no session, but their tokens."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ostinatod.bench.placed_model import PlacedModel

UNTIMED_STEPS = 16


def sweep(
    model: PlacedModel,
    tokens: Iterator[int],
    depths: Sequence[int],
    lengths: Sequence[int],
    decode_tokens: int,
    repeats: int,
    until: float = float("inf"),
) -> Iterator[dict[str, Any]]:
    """For each depth, ascending: median milliseconds of a decode step, and of prefills of each length.

    tokens   what is read, without an end
    repeats  prefills of each length, after one that is not counted
    until    unix time after which no depth is begun

    The context is read once and grows from depth to depth.
    """

    def next_tokens(count: int) -> list[int]:
        return list(itertools.islice(tokens, count))

    read = 0
    for depth in sorted(depths):
        if time.time() >= until:
            return
        model.rewind(read)
        model.read(next_tokens(depth - read))
        read = depth
        before = _cold_routes(model)
        steps = [model.decode([token]) for token in next_tokens(decode_tokens + UNTIMED_STEPS)]
        cold = _cold_routes(model) - before
        prefill = {}
        for length in lengths:
            times = []
            for _ in range(repeats + 1):
                model.rewind(depth)
                times.append(model.read(next_tokens(length)))
            prefill[str(length)] = round(statistics.median(times[1:]), 3)
        yield {
            "context": depth,
            "decode_ms": round(statistics.median(steps[UNTIMED_STEPS:]), 4),
            "prefill_ms": prefill,
            "cold_routes_per_token": round(cold / len(steps), 2),
        }


def _cold_routes(model: PlacedModel) -> int:
    return sum(device.cold_routes for device in model.devices())
