"""The gate before every handler: refuses what a web page could send through the user's browser, and oversized bodies.

Checked in this order: Host (DNS rebinding), Origin (cross-site requests; handlers must not run at all, which CORS
headers alone do not achieve), content type (forms and text/plain reach a server without a preflight), length.
Pure ASGI, so that streams pass untouched.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ostinatod.api.errors import BodyTooLarge, Forbidden, UnsupportedMediaType, error_response
from ostinatod.errors import ConfigError, OstinatoError

BODY_LIMIT_BYTES = 64 * 1024**2

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_PREFLIGHT_AGE_S = 600


class Gate:
    """Raises ConfigError for an origin that would let in every page."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        allowed_hosts: Sequence[str],
        allowed_origins: Sequence[str],
        body_limit_bytes: int = BODY_LIMIT_BYTES,
    ) -> None:
        if "*" in allowed_origins:
            raise ConfigError(
                "allowed_origins: '*' would let every web page use the models",
                hint="List the origins, such as http://localhost:3000 or vscode-webview://*",
            )
        self._app = app
        self._hosts = frozenset(host.lower() for host in allowed_hosts)
        self._origins = tuple(origin.lower().rstrip("/") for origin in allowed_origins)
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
            self._check_sender(headers, origin)
            if scope["method"] == "OPTIONS" and origin and "access-control-request-method" in headers:
                await _preflight(headers, origin)(scope, receive, send)
                return
            self._check_body(scope["method"], headers)
        except OstinatoError as error:
            if scope["type"] == "http":
                await error_response(error, scope["path"])(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})
            return
        await self._app(scope, self._limited(receive), _allowing(send, origin) if origin else send)

    def _check_sender(self, headers: Headers, origin: str | None) -> None:
        host = headers.get("host", "")
        if not self._is_allowed_host(host):
            raise Forbidden(
                f"the Host header {host!r} is not this daemon's",
                hint="Use localhost, or list the name: OSTINATO_ALLOWED_HOSTS",
            )
        if origin is not None and not self._is_allowed_origin(origin):
            raise Forbidden(
                f"requests from the origin {origin} are not allowed",
                hint="List it if you trust it: OSTINATO_ALLOWED_ORIGINS",
            )

    def _check_body(self, method: str, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._body_limit_bytes:
            raise self._too_large()
        if method in _SAFE_METHODS or (length == "0" and "transfer-encoding" not in headers):
            return
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
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
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

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
