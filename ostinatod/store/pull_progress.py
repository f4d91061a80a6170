"""What a pull tells whoever watches it: never backwards, and not more often than a display can show."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ostinatod.store.records import ProgressCallback, PullProgress
from ostinatod.store.variants import RemoteFile

_EVERY_S = 0.1


class PullReporter:
    """Turns the byte counts of single files into progress of the whole pull."""

    def __init__(self, on_progress: ProgressCallback) -> None:
        self._on_progress = on_progress
        self._totals: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._last_s = float("-inf")

    def expect(self, files: Sequence[RemoteFile]) -> None:
        """Fixes what the pull consists of."""
        self._totals = {file.path: file.size_bytes for file in files}
        self._done = dict.fromkeys(self._totals, 0)

    def status(self, status: str, file: RemoteFile | None = None, **detail: str | int) -> None:
        """Reports a step at once."""
        path = file.path if file else None
        self._on_progress(
            PullProgress(
                status=status,
                file=path,
                completed_bytes=self._done.get(path, 0) if path else 0,
                total_bytes=self._totals.get(path, 0) if path else 0,
                all_completed_bytes=sum(self._done.values()),
                all_total_bytes=sum(self._totals.values()),
                detail=detail,
            )
        )

    def downloaded(self, file: RemoteFile, done_bytes: int) -> None:
        """Reports how much of a file is here."""
        self._done[file.path] = max(self._done[file.path], min(done_bytes, file.size_bytes))
        if self._is_due(done_bytes >= file.size_bytes):
            self.status("downloading", file)

    def verified(self, file: RemoteFile, done_bytes: int) -> None:
        """Reports how much of a file has been compared with its checksum."""
        if self._is_due(done_bytes >= file.size_bytes):
            self.status("verifying", file, verified_bytes=done_bytes)

    def _is_due(self, is_last: bool) -> bool:
        now_s = time.monotonic()
        if not is_last and now_s - self._last_s < _EVERY_S:
            return False
        self._last_s = now_s
        return True
