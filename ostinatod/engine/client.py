"""An HTTP client of one engine process, over its Unix socket."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx

Health = Literal["unreachable", "loading", "ready"]
SlotAction = Literal["save", "restore", "erase"]

PROBE_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Sampling:
    """None where it is not known."""

    temperature: float | None = None
    top_p: float | None = None


class EngineClient:
    """Probes answer within seconds or not at all; `forward` waits as long as a prompt takes to read.

    No header of a caller reaches the engine: some of them change how long it keeps generating.
    """

    def __init__(self, socket: Path) -> None:
        # Every request has a connection of its own: the engine closes one that has been idle for 5 s, and a request
        # that is sent on it just then is lost with it.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(socket), limits=limits),
            base_url="http://engine",
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            trust_env=False,
        )

    async def health(self) -> Health:
        """Whether the engine can answer requests."""
        try:
            response = await self._http.get("/health", timeout=PROBE_TIMEOUT_S)
        except httpx.TransportError:
            return "unreachable"
        return "ready" if response.status_code == 200 else "loading"

    async def get_json(self, path: str) -> Any | None:
        """The JSON at `path`; None where the engine has no such route, is still loading, or does not answer."""
        try:
            response = await self._http.get(path, timeout=PROBE_TIMEOUT_S)
            return response.json() if response.status_code == 200 else None
        except (httpx.TransportError, ValueError):
            return None

    async def routes(self) -> httpx.Response:
        """The engine's answer about its routing counts, whatever its status. Raises httpx.TransportError."""
        return await self._http.get("/ostinato/routes", timeout=PROBE_TIMEOUT_S)

    async def apply_residency(self, file: Path) -> httpx.Response:
        """Ask the engine to change to the set in a residency file; its answer, whatever its status.

        Copying experts takes as long as it takes. Raises httpx.TransportError.
        """
        return await self._http.post("/ostinato/residency", json={"path": str(file)})

    async def sampling(self) -> Sampling:
        """What the engine samples with where a request does not say; the model's file or arguments may set it."""
        props = await self.get_json("/props")
        settings = props.get("default_generation_settings") if isinstance(props, dict) else None
        params = settings.get("params") if isinstance(settings, dict) else None
        told = params if isinstance(params, dict) else {}
        return Sampling(_number(told.get("temperature")), _number(told.get("top_p")))

    async def act_on_slot(self, slot: int, action: SlotAction, file: str) -> httpx.Response:
        """Save a slot's prompt state to a file of the engine's own folder, restore it, or erase the slot.

        Takes as long as the disk does; waits for a slot that is at work. Raises httpx.TransportError.
        """
        return await self._http.post(f"/slots/{slot}", params={"action": action}, json={"filename": file})

    async def context_tokens(self) -> int | None:
        """The context that one request may use, as loaded; None where the engine does not tell."""
        props = await self.get_json("/props")
        settings = props.get("default_generation_settings") if isinstance(props, dict) else None
        context = settings.get("n_ctx") if isinstance(settings, dict) else None
        return context if isinstance(context, int) and context > 0 else None

    def forward(self, path: str, body: bytes) -> AbstractAsyncContextManager[httpx.Response]:
        """POST `body`; the response is read by the caller. Leaving the context closes the connection, which is what
        makes the engine stop. Raises httpx.TransportError when the engine is gone.
        """
        return self._http.stream("POST", path, content=body, headers={"Content-Type": "application/json"})

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()


def _number(value: Any) -> float | None:
    # The engine holds 32 bits: 0.95 comes as 0.949999988079071.
    return round(value, 6) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
