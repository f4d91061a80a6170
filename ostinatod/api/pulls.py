"""Downloads in progress.

Clients that ask for the same reference watch one download; when the last of them leaves, it is cancelled, and what was
fetched stays for the next attempt.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator

from ostinatod.api.state import ModelStore
from ostinatod.store.records import ModelRecord, PullProgress

log = logging.getLogger(__name__)


class _Pull:
    """One download in a thread, and the latest step of it. A slow watcher skips steps; it never slows the download."""

    def __init__(self, store: ModelStore, reference: str) -> None:
        self._loop = asyncio.get_running_loop()
        self.cancelled = threading.Event()
        self.watchers = 0
        self.latest: PullProgress | None = None
        self.changed = asyncio.Event()
        self.outcome: asyncio.Future[ModelRecord] = asyncio.ensure_future(
            asyncio.to_thread(store.pull, reference, self._on_progress, self.cancelled)
        )
        self.outcome.add_done_callback(self._on_end)

    def _on_progress(self, progress: PullProgress) -> None:
        try:
            self._loop.call_soon_threadsafe(self._publish, progress)
        except RuntimeError:
            # The daemon is gone; so is everybody who could watch.
            self.cancelled.set()

    def _publish(self, progress: PullProgress) -> None:
        self.latest = progress
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def _on_end(self, outcome: asyncio.Future[ModelRecord]) -> None:
        if not outcome.cancelled():
            # Read, so that a failure which nobody watches any more is not reported as forgotten.
            outcome.exception()
        self.changed.set()


class Pulls:
    """Every download of this daemon."""

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._pulls: dict[str, _Pull] = {}

    async def watch(self, reference: str) -> AsyncGenerator[PullProgress, None]:
        """Steps of the download, which is started if it is not running; ends when it is registered.

        Raises what the store raises. The store's own final step is not passed on.
        """
        pull = self._pulls.get(reference)
        if pull is None or pull.cancelled.is_set():
            if pull is not None:
                # It is ending and still holds its files; a second one must not write beside it.
                await asyncio.wait({pull.outcome})
            pull = self._pulls.get(reference)
            if pull is None or pull.cancelled.is_set():
                pull = self._pulls[reference] = _Pull(self._store, reference)
                log.info("pull_started reference=%s", reference)
        pull.watchers += 1
        try:
            told: PullProgress | None = None
            while True:
                changed = pull.changed
                if pull.latest is not None and pull.latest is not told:
                    told = pull.latest
                    if told.status != "success":
                        yield told
                    continue
                if pull.outcome.done():
                    break
                await changed.wait()
            pull.outcome.result()
        finally:
            pull.watchers -= 1
            if pull.outcome.done():
                self._forget(reference, pull)
            elif pull.watchers == 0:
                log.info("pull_cancelled reference=%s", reference)
                pull.cancelled.set()
                pull.outcome.add_done_callback(lambda _: self._forget(reference, pull))

    async def close(self) -> None:
        """Cancel every download and wait for the threads."""
        pulls = list(self._pulls.values())
        for pull in pulls:
            pull.cancelled.set()
        if pulls:
            await asyncio.wait({pull.outcome for pull in pulls})

    def _forget(self, reference: str, pull: _Pull) -> None:
        if self._pulls.get(reference) is pull:
            del self._pulls[reference]
