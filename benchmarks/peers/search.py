"""The best setting of one engine in a given amount of GPU memory, found by running it.

First the setting with the least GPU memory says what the engine needs besides experts; then as many experts as fit go
to the GPU; then each option is changed alone, in turn, and kept when the request got faster (coordinate descent). A
setting known to be good can take the place of the first, which is run after all where that one fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.protocol import ModelShape, Options, Peer


@dataclass(frozen=True, slots=True)
class Request:
    """What the search makes fast: a turn of an agent after a tool call."""

    new_tokens: int = 511
    output_tokens: int = 100

    def milliseconds(self, figures: dict[str, Any]) -> float:
        """Of this request by measured figures: the prefill and each output token after the first."""
        prefill: float = figures["prefill_ms"][str(self.new_tokens)]
        decode: float = figures["decode_ms"]
        return prefill + (self.output_tokens - 1) * decode


@dataclass(frozen=True, slots=True)
class Outcome:
    """One setting that ran or failed."""

    peer: str
    options: Options
    figures: dict[str, Any] | None
    error: str = ""
    """The engine's own words where it failed."""
    wall_s: float = 0.0

    def used(self) -> int | None:
        """GPU memory in bytes."""
        return None if self.figures is None else self.figures["gpu_bytes"]


def best(outcomes: list[Outcome], request: Request, budget_bytes: int) -> Outcome | None:
    """The fastest one that ran within the memory; unmeasured memory counts as within."""
    within = [o for o in outcomes if o.figures is not None and (o.used() or 0) <= budget_bytes]
    return min(within, key=lambda o: request.milliseconds(o.figures or {}), default=None)


def search(
    peer: Peer,
    shape: ModelShape,
    budget_bytes: int,
    request: Request,
    run: Callable[[Options], Outcome],
    max_runs: int,
    start: Options | None = None,
) -> Iterator[Outcome]:
    """Yields every outcome, in the order they ran; at most `max_runs`.

    start   options known to be good, which are run first in place of the least memory
    """
    seen: list[Outcome] = []

    def tried(options: Options) -> bool:
        return len(seen) >= max_runs or any(o.options == options for o in seen)

    def once(options: Options) -> Iterator[Outcome]:
        if not tried(options):
            seen.append(run(options))
            yield seen[-1]

    def fit(outcome: Outcome) -> Iterator[Outcome]:
        """The same options with what the memory has room for, and once more where that was a wrong guess."""
        for _ in range(2):
            used = outcome.used()
            if used is None:
                return
            options = peer.fitted(shape, outcome.options, used, budget_bytes)
            if tried(options):
                return
            yield from once(options)
            outcome = seen[-1]

    least = {name: values[0] for name, values in peer.choices.items()} | peer.least(shape)
    yield from once(least | (start or {}))
    if seen and seen[-1].figures is None:
        yield from once(least)
    if seen and seen[-1].figures is not None:
        yield from fit(seen[-1])
    for name, values in peer.choices.items():
        for value in values:
            fastest = best(seen, request, budget_bytes)
            if fastest is None:
                return
            options = {**fastest.options, name: value}
            if not tried(options):
                yield from once(options)
                yield from fit(seen[-1])
