"""Answers that end when the client leaves: the two ASGI building blocks of everything that takes long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ostinatod.api.errors import error_response, native_body
from ostinatod.errors import OstinatoError

ENDING_PATIENCE_S = 1.0
"""For work that is ending by itself when its client leaves."""


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Return when the tasks have ended, cancelling those that have not."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def run_until_disconnect(
    receive: Receive, work: Awaitable[None], is_ending: Callable[[], bool] = lambda: False
) -> None:
    """Run `work`; cancel it as soon as the client has gone. Returns when it has ended either way.

    is_ending   whether the client has what it came for: then the work gets ENDING_PATIENCE_S to end by itself
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if is_ending():
            await asyncio.wait({working}, timeout=ENDING_PATIENCE_S)
    finally:
        await cancel_and_wait(working, watching)
    if not working.cancelled():
        working.result()


class NdjsonResponse(Response):
    """One JSON object per line, each sent at once.

    The status is decided by the first line: an OstinatoError before it is an ordinary error answer, a later one is the
    last line of the stream.
    """

    media_type = "application/x-ndjson"

    def __init__(self, lines: AsyncGenerator[Mapping[str, Any], None]) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no", "Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await run_until_disconnect(receive, self._send_lines(scope, receive, send))

    async def _send_lines(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        try:
            async with aclosing(self._lines) as lines:
                async for line in lines:
                    if not started:
                        started = True
                        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    await send({"type": "http.response.body", "body": _encode(line), "more_body": True})
        except OstinatoError as error:
            if not started:
                await error_response(error, scope["path"])(scope, receive, send)
                return
            await send({"type": "http.response.body", "body": _encode(native_body(error)), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _encode(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"
