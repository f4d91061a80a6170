"""What the relay tells of each request while it happens: the seam for request logs, sessions and routing statistics.

`EngineRelay` is handed a list of observers, empty by default, and calls them in order from the event loop:

    queued ── admitted ── first_byte ─┬─ finished
       │          │            │      ├─ failed
       └──────────┴────────────┴──────┴─ cancelled

`queued` comes first and exactly one of the three on the right comes last, whatever happens between. Only `admitted` may
wait; the other calls must return at once. An observer that raises is logged and does not touch the answer.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ostinatod.errors import OstinatoError
from ostinatod.loaded import Lease
from ostinatod.store.records import ModelRecord

log = logging.getLogger(__name__)

Dialect = Literal["openai", "responses", "anthropic", "ollama"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request on its way through the daemon."""

    id: str
    """Unique; POST /ostinato/cancel ends the request by it."""
    record: ModelRecord
    dialect: Dialect
    path: str
    """As the client asked for it."""
    request: Mapping[str, Any]
    """What the engine is sent, before numbers are clamped to the loaded context: in chat completions' words whatever
    the dialect (`messages`, `tools`, `tool_choice`, `response_format`, `max_tokens`), with what the client said of its
    session (`metadata`, `prompt_cache_key`, `user`); a completion has `prompt`, an embedding `input` instead of
    `messages`."""
    headers: Mapping[str, str]
    """The client's, with lower-case names, without those that carry secrets."""
    stream: bool
    started_at_s: float
    """Wall clock."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What the engine reports with a finished answer; None where it does not tell."""

    prompt_tokens: int | None
    """The whole prompt, reused part included."""
    cached_tokens: int | None
    """Prompt tokens that were not read again."""
    output_tokens: int | None
    finish_reason: str | None
    """stop, length or tool_calls."""
    prompt_ms: float | None
    """Time the engine spent on reading the rest of the prompt."""
    decode_ms: float | None


class RelayObserver(Protocol):
    """See the module's diagram."""

    def queued(self, exchange: Exchange) -> None:
        """The request was accepted and waits for its model or its turn."""

    async def admitted(self, exchange: Exchange, lease: Lease) -> None:
        """Its turn has come and the model is ready; it is forwarded when this returns."""

    def first_byte(self, exchange: Exchange) -> None:
        """The engine's answer begins; keep-alives do not count."""

    def finished(self, exchange: Exchange, figures: Figures) -> None:
        """The whole answer was handed over."""

    def failed(self, exchange: Exchange, error: OstinatoError) -> None:
        """The client was told of `error` instead of an answer, or in the middle of one."""

    def cancelled(self, exchange: Exchange) -> None:
        """The client left, or the request was cancelled by its id."""


class Exchanges:
    """The requests in flight, each with the means to cancel it, and those who watch them."""

    def __init__(self, observers: Sequence[RelayObserver] = ()) -> None:
        self._observers = tuple(observers)
        self._cancels: dict[str, Callable[[], None]] = {}

    def enter(self, exchange: Exchange, cancel: Callable[[], None]) -> None:
        """A request begins; `cancel` ends it with an error that its client is told."""
        self._cancels[exchange.id] = cancel
        self.tell(lambda observer: observer.queued(exchange))

    def leave(self, exchange: Exchange, last_call: Callable[[RelayObserver], None]) -> None:
        """A request has ended, as `last_call` tells the observers."""
        self._cancels.pop(exchange.id, None)
        self.tell(last_call)

    def cancel(self, exchange_id: str) -> bool:
        """Cancel a request; False if none of that id is in flight."""
        cancel = self._cancels.get(exchange_id)
        if cancel is None:
            return False
        cancel()
        return True

    def tell(self, call: Callable[[RelayObserver], None]) -> None:
        """Make one of the calls that return at once."""
        for observer in self._observers:
            with _logged(observer):
                call(observer)

    async def admit(self, exchange: Exchange, lease: Lease) -> None:
        """Tell that the request is about to be forwarded, and wait for those who prepare something."""
        for observer in self._observers:
            with _logged(observer):
                await observer.admitted(exchange, lease)


@contextmanager
def _logged(observer: RelayObserver) -> Iterator[None]:
    try:
        yield
    except Exception:
        log.exception("observer_failed observer=%s", type(observer).__name__)


def new_exchange_id() -> str:
    """Sorts by time of creation, to the millisecond."""
    return f"req-{time.time_ns() // 1_000_000:012x}{uuid.uuid4().hex[:8]}"
