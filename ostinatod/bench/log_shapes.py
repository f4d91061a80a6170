"""The lengths of a user's own sessions, from the routing log: token counts only, which is all that it holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, get_args

from ostinatod.bench.sessions import Kind
from ostinatod.routing_log.reader import latest_requests
from ostinatod.routing_log.records import LoggedRequest

MOST_REQUESTS = 20_000
"""Requests of the log that are looked at, the newest ones."""


def logged_shapes(fingerprint: str | None = None) -> list[dict[str, Any]]:
    """Id and turns (kind, reused, new, output) of the logged sessions, the newest first.

    fingerprint  of a model; sessions of all models where it is None

    Raises RoutingLogUnavailable for a log that cannot be read.
    """
    return shapes_of(latest_requests(fingerprint=fingerprint, limit=MOST_REQUESTS))


def shapes_of(requests: Sequence[LoggedRequest]) -> list[dict[str, Any]]:
    """Sessions of requests that come newest first; side requests, failures and unknown lengths are left out."""
    by_session: dict[str, list[LoggedRequest]] = defaultdict(list)
    for request in requests:
        lengths = (request.new_tokens, request.reused_tokens, request.output_tokens)
        known = request.session is not None and None not in lengths and request.output_tokens
        if known and request.status == "ok" and request.kind in get_args(Kind):
            by_session[request.session or ""].append(request)
    return [_shape(session, turns[::-1]) for session, turns in by_session.items()]


def _shape(session: str, requests: Sequence[LoggedRequest]) -> dict[str, Any]:
    turns = [(item.kind, item.reused_tokens, item.new_tokens, item.output_tokens) for item in requests]
    return {"id": session, "turns": turns}
