"""The gate before every handler: refuses callers without a key, what a web page could send, and oversized bodies.

Checked in this order: API key (where keys are in use; without one a caller learns nothing else, `/health` excepted),
Host (DNS rebinding), Origin (cross-site requests; handlers must not run at all, which CORS headers alone do not
achieve), content type (forms, text/plain and none at all reach a server without a preflight), length. Pure ASGI, so
that streams pass untouched.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ostinatod.api.errors import BodyTooLarge, Forbidden, UnsupportedMediaType, error_response
from ostinatod.errors import ConfigError, OstinatoError, Unauthorized

log = logging.getLogger(__name__)

BODY_LIMIT_BYTES = 64 * 1024**2

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_PREFLIGHT_AGE_S = 600
_OPEN_PATH = "/health"
_EDITOR_ORIGINS = ("vscode-webview://*", "vscode-file://*")
"""Panels of extensions in an editor, which may do more than ask a model. No browser gives a page such an origin."""


class Keys(Protocol):
    """Who may use the daemon."""

    @property
    def required(self) -> bool: ...
    @property
    def exposed(self) -> bool: ...
    def accepts(self, secret: str | None) -> bool: ...


class Gate:
    """Without `keys` everybody on this machine is let in. Raises ConfigError for an origin that admits every page."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        allowed_hosts: Sequence[str],
        allowed_origins: Sequence[str],
        keys: Keys | None = None,
        body_limit_bytes: int = BODY_LIMIT_BYTES,
    ) -> None:
        if "*" in allowed_origins:
            raise ConfigError(
                "allowed_origins: '*' would let every web page use the models",
                hint="List the origins, such as http://localhost:3000",
            )
        self._app = app
        self._keys = keys
        self._hosts = frozenset(host.lower() for host in allowed_hosts)
        self._origins = (*_EDITOR_ORIGINS, *(origin.lower().rstrip("/") for origin in allowed_origins))
        self._body_limit_bytes = body_limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        try:
            if scope["type"] != "http":
                raise Forbidden("only HTTP is served here")
            if self._is_welcome_preflight(scope["method"], headers, origin):
                await _preflight(headers, origin or "")(scope, receive, send)
                return
            self._check_sender(scope, headers, origin)
            self._check_body(scope["method"], headers)
        except OstinatoError as error:
            if scope["type"] == "http":
                await _refusal(error, scope["path"])(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})
            return
        send_on = _allowing(send, origin) if origin else send
        # A client that leaves before its body has come is nobody's fault, and nobody is left to be told anything.
        with suppress(ClientDisconnect):
            await self._app(_with_json_type(scope, headers), self._limited(receive), send_on)

    def _is_welcome_preflight(self, method: str, headers: Headers, origin: str | None) -> bool:
        """Browsers send no key ahead, so that preflights of listed origins are answered without one."""
        asks = method == "OPTIONS" and origin is not None and "access-control-request-method" in headers
        return asks and self._is_allowed_origin(origin or "") and self._is_allowed_host(headers.get("host", ""))

    def _check_sender(self, scope: Scope, headers: Headers, origin: str | None) -> None:
        # A page that reaches this machine under a name of its own cannot know a key.
        if not self._has_key(scope, headers) and not self._is_allowed_host(headers.get("host", "")):
            raise Forbidden(
                f"the Host header {headers.get('host', '')!r} is not this daemon's",
                hint="Use localhost, or list the name: OSTINATO_ALLOWED_HOSTS",
            )
        if origin is not None and not self._is_allowed_origin(origin):
            raise Forbidden(
                f"requests from the origin {origin} are not allowed",
                hint="List it if you trust it: OSTINATO_ALLOWED_ORIGINS",
            )

    def _has_key(self, scope: Scope, headers: Headers) -> bool:
        """Whether a key was needed and there. Raises Unauthorized where it was needed and is missing."""
        if self._keys is None or not self._keys.required:
            return False
        if any(self._keys.accepts(key) for key in _keys_in(headers)):
            return True
        if scope["path"] == _OPEN_PATH and scope["method"] in _SAFE_METHODS:
            return False
        log.warning("unauthorized client=%s path=%r", (scope.get("client") or ("",))[0], scope["path"][:100])
        raise Unauthorized(
            "an API key is required, and the one that came is not known here",
            hint="Send it as Authorization: Bearer KEY or as x-api-key: KEY",
        )

    def _check_body(self, method: str, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._body_limit_bytes:
            raise self._too_large()
        if method in _SAFE_METHODS or (length == "0" and "transfer-encoding" not in headers):
            return
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json" and (content_type or _is_from_browser(headers)):
            raise UnsupportedMediaType(
                f"expected Content-Type: application/json, found {content_type or 'none'}",
                hint="With curl: -H 'Content-Type: application/json'",
            )
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise UnsupportedMediaType("compressed bodies are not accepted", hint="Send the JSON as it is")

    def _is_allowed_host(self, host: str) -> bool:
        name = _host_name(host)
        if name in self._hosts or host.lower() in self._hosts or name == "localhost":
            return True
        exposed = self._keys is not None and self._keys.exposed
        try:
            # Addresses are never the result of rebinding a name.
            return ipaddress.ip_address(name).is_loopback or exposed
        except ValueError:
            return exposed and name == socket.gethostname().lower()

    def _is_allowed_origin(self, origin: str) -> bool:
        found = origin.lower()
        return any(
            found.startswith(allowed[:-1]) if allowed.endswith("://*") else found == allowed
            for allowed in self._origins
        )

    def _limited(self, receive: Receive) -> Receive:
        received_bytes = 0

        async def limited() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > self._body_limit_bytes:
                raise self._too_large()
            return message

        return limited

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"the body is larger than {self._body_limit_bytes // 1024**2} MiB")


def _is_from_browser(headers: Headers) -> bool:
    return "origin" in headers or any(name.startswith("sec-fetch-") for name in headers)


def _with_json_type(scope: Scope, headers: Headers) -> Scope:
    """litellm sends Ollama's requests without a content type; the handlers read what has passed as JSON."""
    if "content-type" in headers:
        return scope
    return {**scope, "headers": [*scope["headers"], (b"content-type", b"application/json")]}


def _keys_in(headers: Headers) -> tuple[str | None, str | None]:
    """Some clients send a dummy in one place and the key in the other."""
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else None, headers.get("x-api-key")


def _refusal(error: OstinatoError, path: str) -> Response:
    response = error_response(error, path)
    if isinstance(error, Unauthorized):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _preflight(headers: Headers, origin: str) -> Response:
    return Response(
        status_code=204,
        headers={
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": "GET, HEAD, POST, DELETE, OPTIONS",
            "Access-Control-Allow-Headers": headers.get("access-control-request-headers", "content-type"),
            "Access-Control-Max-Age": str(_PREFLIGHT_AGE_S),
            "Vary": "Origin",
        },
    )


def _allowing(send: Send, origin: str) -> Send:
    async def allowing(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Access-Control-Allow-Origin"] = origin
            headers.add_vary_header("Origin")
        await send(message)

    return allowing
