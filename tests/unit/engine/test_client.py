"""The client of one engine, against a server that closes connections as the engine's own does."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ostinatod.engine.client import EngineClient


def test_a_connection_that_the_engine_is_about_to_close_is_not_used_again(tmp_path: Path) -> None:
    # The engine closes a connection that was idle for 5 s; a request that arrives just then is lost with it.
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        await reader.read(1)
        writer.close()

    async def ask_twice() -> list[int]:
        server = await asyncio.start_unix_server(serve_one, tmp_path / "engine.sock")
        client = EngineClient(tmp_path / "engine.sock")
        statuses = []
        for _ in range(2):
            async with client.forward("/v1/chat/completions", b"") as response:
                await response.aread()
                statuses.append(response.status_code)
        await client.aclose()
        server.close()
        return statuses

    assert asyncio.run(ask_twice()) == [200, 200]
