"""The dashboard's client: everything it shows, in one round of requests over one connection.

A part that the daemon does not have (an older one, or a model that has no counts) is Unavailable with the reason, so
that one missing part never hides the others. An answer that has not changed since the last round is not parsed again
and keeps its identity.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

import httpx

from ostinatod import client_dashboard_reading as reading
from ostinatod.client import DaemonClient, error_of
from ostinatod.client_dashboard_values import Part, Reading, Unavailable
from ostinatod.client_json import Json, json_object, json_objects
from ostinatod.client_values import ModelListing, model_listing
from ostinatod.errors import DaemonUnreachable, OstinatoError

PART_TIMEOUT_S = 4.0
"""A dashboard that waits longer shows the past."""

PartName = Literal["listings", "requests", "sessions", "routes", "residency", "plan", "profile", "logs"]

ABOUT_A_MODEL: frozenset[PartName] = frozenset({"routes", "residency", "plan"})
"""Parts that are told of one model."""
_NO_MODEL = Unavailable("no model is loaded", "Load one: ostinato load MODEL")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a round asks for beside the status; `model` None means whichever is loaded first."""

    parts: frozenset[PartName]
    model: str | None = None
    log_source: str = "daemon"
    log_lines: int = 200


class DashboardClient(DaemonClient):
    """Reads and acts for the dashboard. `clock` gives the wall clock in seconds."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(base_url, api_key=api_key, transport=transport)
        self._clock = clock
        self._read: dict[str, tuple[bytes, Any]] = {}

    def read(self, wanted: Wanted) -> Reading:
        """One round. Raises DaemonUnreachable, or what the status itself is refused with."""
        daemon = self._get("/ostinato/status", reading.daemon_state)
        model = wanted.model or next((entry.name for entry in daemon.models), None)
        parts = {name: self._part(name, model, wanted) for name in sorted(wanted.parts)}
        return Reading(at_s=self._clock(), daemon=daemon, **parts)

    def cancel(self, request_id: str) -> bool:
        """Stop a request; whether it was still running."""
        return bool(self._request("POST", "/ostinato/cancel", {"id": request_id}).get("was_running"))

    def _part(self, name: PartName, model: str | None, wanted: Wanted) -> Part[Any]:
        if name in ABOUT_A_MODEL and model is None:
            return _NO_MODEL
        about = f"?model={quote(model or '', safe='')}"
        source = quote(wanted.log_source, safe="")
        asked: dict[PartName, tuple[str, Callable[[Json], Any]]] = {
            "listings": ("/api/tags", _listings),
            "requests": ("/ostinato/requests?limit=50", reading.requests_of),
            "sessions": ("/ostinato/sessions?limit=50", reading.sessions_of),
            "routes": (f"/ostinato/routes{about}", reading.routes_of),
            "residency": (f"/ostinato/residency{about}", reading.residency_of),
            "plan": (f"/ostinato/plan{about}", reading.plan_of),
            "profile": ("/ostinato/profile", dict),
            "logs": (f"/ostinato/logs?source={source}&lines={wanted.log_lines}", reading.log_lines),
        }
        path, parse = asked[name]
        try:
            return self._get(path, parse)
        except DaemonUnreachable:
            raise
        except OstinatoError as error:
            return Unavailable(error.message, error.hint)

    def _get(self, path: str, parse: Callable[[Json], Any]) -> Any:
        with self._reading_errors():
            answer = self._http.get(path, timeout=PART_TIMEOUT_S)
        content = answer.content
        if not answer.is_success:
            raise _refusal(path, answer)
        seen = self._read.get(path)
        if seen is not None and seen[0] == content:
            return seen[1]
        value = parse(json_object(_decoded(content)))
        self._read[path] = (content, value)
        return value

    @contextmanager
    def _reading_errors(self) -> Iterator[None]:
        try:
            with self._connection_errors():
                yield
        except DaemonUnreachable as error:
            if isinstance(error.__cause__, httpx.ReadTimeout):
                raise DaemonUnreachable(
                    f"the daemon at {self.base_url} did not answer within {PART_TIMEOUT_S:.0f} s",
                    hint="See what it does: ostinato status",
                ) from error
            raise


def _refusal(path: str, answer: httpx.Response) -> OstinatoError:
    error = error_of(_decoded(answer.content), answer.status_code)
    # A daemon without the endpoint answers 404 or 405 in the words of its router, which no person understands.
    if answer.status_code in (404, 405) and error.kind == "invalid_request_error":
        return OstinatoError(
            f"this daemon is older than the dashboard: it has no {path.partition('?')[0]}",
            hint="Start the newer one: ostinato stop --daemon, then ostinato serve",
        )
    return error


def _decoded(content: bytes) -> object:
    """The JSON in `content`; None for what is no JSON."""
    try:
        return json.loads(content)
    except ValueError:
        return None


def _listings(answer: Json) -> tuple[ModelListing, ...]:
    return tuple(model_listing(entry) for entry in json_objects(answer.get("models")))
