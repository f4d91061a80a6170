"""A client of the daemon's HTTP API for the command line and the dashboard: synchronous, with typed answers.

Errors come back as the class of `ostinatod.errors` that the daemon raised, so that its exit code holds on this side
too; no answer at all is DaemonUnreachable. Proxy variables are ignored: the daemon is here, or named outright.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

import httpx

from ostinatod import client_values as values
from ostinatod.client_json import Json, json_object, json_objects
from ostinatod.client_streams import DONE, ndjson_lines, sse_data
from ostinatod.client_values import ChatDelta, ChatEnd
from ostinatod.errors import (
    ConfigError,
    DaemonUnreachable,
    EngineBusy,
    EngineDied,
    OstinatoError,
    PullError,
    RequestError,
)
from ostinatod.store.records import PullProgress

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 60.0

_USUAL = httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
_PATIENT = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
"""A long prompt or a slow disk may keep a stream silent for minutes, and an engine ends only after its answers."""

_START_HINT = "Start it: ostinato serve"
_ERRNO = re.compile(r"^\[Errno -?\d+\] ")
"""A number for programs before the system's words."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One chat completion. `options` are further fields of the OpenAI request, such as temperature."""

    model: str
    messages: tuple[Mapping[str, str], ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    session_id: str | None = None
    """Lets the daemon keep the conversation where its prompt is already read."""


class DaemonClient:
    """Talks to the daemon at `base_url`. Every method may raise the errors of `ostinatod.errors`."""

    def __init__(
        self, base_url: str, *, api_key: str | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.base_url = base_url
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # The daemon speaks plain HTTP. A context that trusts nobody spares each command the reading of every
        # certificate authority, which takes longer than the request.
        nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            self._http = httpx.Client(
                base_url=base_url,
                headers=headers,
                timeout=_USUAL,
                transport=transport,
                trust_env=False,
                verify=nobody,
            )
        except httpx.InvalidURL as error:
            raise ConfigError(f"expected an address such as 127.0.0.1:11435, found {base_url}: {error}") from error

    def __enter__(self) -> DaemonClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def is_up(self, *, timeout_s: float = CONNECT_TIMEOUT_S) -> bool:
        """Whether the daemon answers; False if nobody does. Raises DaemonUnreachable if something else answers."""
        try:
            answer = self._http.get("/health", timeout=timeout_s)
        except httpx.TransportError:
            return False
        told = _json_or_none(answer.content)
        if answer.is_success and isinstance(told, dict) and told.get("status") == "ok":
            return True
        raise DaemonUnreachable(
            f"something answers at {self.base_url}, but it is not Ostinato",
            hint="Choose another address: ostinato --host 127.0.0.1:PORT, or OSTINATO_HOST",
        )

    def version(self) -> values.DaemonVersion:
        """The versions of the daemon."""
        answer = self._request("GET", "/api/version")
        return values.DaemonVersion(api=str(answer.get("version", "")), ostinato=str(answer.get("ostinato", "")))

    def status(self) -> Json:
        """The daemon's own account of itself, as it tells it."""
        return self._request("GET", "/ostinato/status")

    def models(self) -> tuple[values.ModelListing, ...]:
        """Every registered model."""
        entries = json_objects(self._request("GET", "/api/tags").get("models"))
        return tuple(values.model_listing(entry) for entry in entries)

    def running(self) -> tuple[values.RunningModel, ...]:
        """Every model that has an engine."""
        entries = json_objects(self._request("GET", "/api/ps").get("models"))
        return tuple(values.running_model(entry) for entry in entries)

    def show(self, model: str) -> values.ModelDetails:
        """What is known about a model. Raises ModelNotFound."""
        return values.model_details(model, self._request("POST", "/api/show", {"model": model}))

    def add(self, path: str, name: str | None = None) -> values.ModelListing:
        """Register a local .gguf file, split set or directory (an absolute path) where it is."""
        return values.model_listing(self._request("POST", "/ostinato/add", {"path": path, "name": name}))

    def delete(self, model: str) -> int:
        """Remove a name; the bytes this freed, 0 if another name uses the same files."""
        answer = self._request("DELETE", "/api/delete", {"model": model}, timeout=_PATIENT)
        return int(answer.get("freed_bytes") or 0)

    def prune(self, paths: Sequence[str] | None = None, *, dry_run: bool = False) -> values.Pruned:
        """Delete what no model needs, of `paths` if they are given; `dry_run` only tells what would go."""
        body = {"paths": None if paths is None else list(paths), "dry_run": dry_run}
        return values.pruned(self._request("POST", "/ostinato/prune", body, timeout=_PATIENT))

    def copy(self, source: str, destination: str) -> None:
        """Give a model a further name."""
        self._request("POST", "/api/copy", {"source": source, "destination": destination})

    def unload(self, model: str, *, force: bool = False) -> None:
        """Stop a model's engine, once its answers in progress have ended unless `force` breaks them off."""
        self._request("POST", "/ostinato/unload", {"model": model, "force": force}, timeout=_PATIENT)

    def shutdown(self) -> None:
        """Stop the daemon."""
        self._request("POST", "/ostinato/shutdown", {})

    def stats(self, model: str | None = None) -> Json:
        """Totals and percentiles of what is logged. Raises RoutingLogUnavailable if the log cannot be read."""
        query = f"?{urlencode({'model': model})}" if model else ""
        return self._request("GET", f"/ostinato/stats{query}")

    def forget(
        self, *, model: str | None = None, session: str | None = None, before: float | None = None
    ) -> tuple[int, int]:
        """Delete from the routing log what fits all conditions, everything without any: (sessions, requests).

        before   Unix seconds
        """
        body = {"model": model, "session": session, "before": before}
        answer = self._request("POST", "/ostinato/forget", body, timeout=_PATIENT)
        return int(answer.get("sessions") or 0), int(answer.get("requests") or 0)

    def plan(self, model: str) -> Json:
        """What was learned about a model, what is proposed, and every set it was given."""
        return self._request("GET", f"/ostinato/plan?{urlencode({'model': model})}")

    def change_plan(self, model: str, action: str) -> Json:
        """ "apply" the proposal, or "undo" to the set before. Raises PlanUnavailable where there is none.

        Takes as long as the engine needs to end its requests where it has to be restarted.
        """
        return self._request("POST", "/ostinato/plan", {"model": model, "action": action}, timeout=_PATIENT)

    def pull(self, model: str) -> Generator[PullProgress, None, None]:
        """Download a model, a step at a time; the last step is "success". Closing the generator stops the download.

        Raises PullError, also for a stream that ends before "success".
        """
        status = ""
        with closing(self._ndjson("/api/pull", {"model": model, "stream": True})) as steps:
            for step in steps:
                progress = values.pull_progress(step)
                status = progress.status
                yield progress
        if status != "success":
            raise PullError(
                f"the daemon ended the download of {model} early, while {status or 'starting'}",
                hint=f"Resume it: ostinato pull {model}",
            )

    def load(self, model: str, keep_alive_s: float | None = None) -> Generator[values.LoadProgress, None, None]:
        """Load a model, a step at a time; the last step is "ready". `keep_alive_s` None keeps the daemon's setting.

        Raises EngineError, also for a stream that ends before "ready".
        """
        body: dict[str, Any] = {"model": model}
        if keep_alive_s is not None:
            body["keep_alive"] = keep_alive_s
        status = ""
        with closing(self._ndjson("/ostinato/load", body)) as steps:
            for step in steps:
                progress = values.load_progress(step)
                status = progress.status
                yield progress
        if status != "ready":
            raise EngineDied(
                f"the daemon stopped loading {model} before it was ready", hint=f"Try again: ostinato load {model}"
            )

    def chat(self, request: ChatRequest) -> Generator[ChatDelta | ChatEnd, None, None]:
        """Stream one answer; the last item is a ChatEnd. Closing the generator stops the generation.

        Raises EngineDied for an answer that breaks off.
        """
        body = {
            **request.options,
            "model": request.model,
            "messages": list(request.messages),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"X-Session-Id": request.session_id} if request.session_id else {}
        finish_reason, used, timings, whole = "", values.Usage(), None, False
        with self._stream("/v1/chat/completions", body, headers) as response:
            for data in sse_data(response.iter_bytes()):
                if data == DONE:
                    whole = True
                    break
                chunk = _decode(data)
                if chunk.get("error") is not None:
                    raise error_of(chunk, 500)
                for choice in json_objects(chunk.get("choices") or []):
                    delta = json_object(choice.get("delta") or {})
                    text, reasoning = delta.get("content"), delta.get("reasoning_content")
                    if text or reasoning:
                        yield ChatDelta(text=text or "", reasoning=reasoning or "")
                    finish_reason = choice.get("finish_reason") or finish_reason
                if chunk.get("usage"):
                    used = values.usage(json_object(chunk["usage"]))
                if chunk.get("timings"):
                    timings = values.engine_timings(json_object(chunk["timings"]))
        if not whole:
            raise EngineDied("the answer broke off before it was complete", hint="See what runs: ostinato ps")
        yield ChatEnd(finish_reason, used, timings)

    def _request(self, method: str, path: str, body: Json | None = None, timeout: httpx.Timeout = _USUAL) -> Json:
        with self._connection_errors():
            answer = self._http.request(method, path, json=body, timeout=timeout)
        if not answer.is_success:
            raise error_of(_json_or_none(answer.content), answer.status_code, answer.headers.get("retry-after"))
        return _decode(answer.text) if answer.content.strip() else {}

    def _ndjson(self, path: str, body: Json) -> Generator[Json, None, None]:
        with self._stream(path, body, {}) as response:
            for line in ndjson_lines(response.iter_bytes()):
                step = _decode(line)
                if step.get("error") is not None:
                    raise error_of(step, 500)
                yield step

    @contextmanager
    def _stream(self, path: str, body: Json, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        with (
            self._connection_errors(),
            self._http.stream("POST", path, json=body, headers=dict(headers), timeout=_PATIENT) as response,
        ):
            if not response.is_success:
                raise error_of(
                    _json_or_none(response.read()), response.status_code, response.headers.get("retry-after")
                )
            yield response

    @contextmanager
    def _connection_errors(self) -> Iterator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            why = _ERRNO.sub("", str(error)) or type(error).__name__
            raise DaemonUnreachable(f"no daemon answers at {self.base_url}: {why}", hint=_START_HINT) from error
        except httpx.TimeoutException as error:
            raise DaemonUnreachable(
                f"the daemon at {self.base_url} did not answer within {ANSWER_TIMEOUT_S:.0f} s", hint=_START_HINT
            ) from error
        except httpx.TransportError as error:
            raise DaemonUnreachable(
                f"the daemon at {self.base_url} closed the connection before it had answered: {error}",
                hint="See whether it still runs: ostinato status",
            ) from error


def error_of(answer: object, status: int, retry_after: str | None = None) -> OstinatoError:
    """The error that an answer tells of, in either dialect: OpenAI's object, or text with `kind` and `hint`."""
    fields = answer if isinstance(answer, dict) else {}
    told = fields.get("error")
    if isinstance(told, dict):
        fields, told = told, told.get("message")
    kinds = _error_kinds()
    names = [fields.get(key) for key in ("code", "kind", "type")]
    found = next((kinds[name] for name in names if isinstance(name, str) and name in kinds), None)
    error_class = found or (RequestError if 400 <= status < 500 else OstinatoError)
    message = str(told or f"the daemon answered with HTTP status {status}")
    hint = str(fields["hint"]) if fields.get("hint") else None
    if issubclass(error_class, EngineBusy) and retry_after and retry_after.isdigit():
        return error_class(message, hint=hint, retry_after_s=int(retry_after))
    return error_class(message, hint=hint)


def _error_kinds() -> dict[str, type[OstinatoError]]:
    found: dict[str, type[OstinatoError]] = {}
    pending: list[type[OstinatoError]] = [OstinatoError]
    while pending:
        error_class = pending.pop()
        # A subclass without a kind of its own inherits its parent's and must not stand in for it.
        # Others derive classes of their own for what they answer, with other constructors.
        if error_class.__module__ == OstinatoError.__module__:
            found.setdefault(error_class.kind, error_class)
        pending.extend(error_class.__subclasses__())
    return found


def _decode(text: str) -> Json:
    try:
        return json_object(json.loads(text))
    except ValueError as error:
        raise OstinatoError(
            f"the daemon's answer is not JSON: {text[:80]!r}",
            hint="Compare the versions of client and daemon: ostinato version",
        ) from error


def _json_or_none(content: bytes) -> object:
    try:
        return json.loads(content)
    except ValueError:
        return None
