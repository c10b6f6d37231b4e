"""One connection of a server that has no protocol of its own: the head of a request comes in time, or it is closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio
    from typing import Any

    from starlette.types import ASGIApp, Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

    from .door import Door

# In the extensions of a scope: called when its request has shown a valid token.
PROVEN = "holdfast.proven"
HEADER_BYTES = 16 * 1024
HEADER_S = 10.0


class Waiting(H11Protocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = _with_proof(self.app, self)
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEADER_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # uvicorn has None here until the first request.
        before: RequestResponseCycle | None = self.cycle
        if self._timer is None and before is not None and before.response_complete:
            self._timer = self.loop.call_later(HEADER_S, self.transport.abort)
        super().data_received(data)
        if self.cycle is not before:
            self._came()

    def _came(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _with_proof(app: Any, connection: Waiting) -> ASGIApp:
    def proven() -> None:
        door: Door = connection.server_state.door  # type: ignore[attr-defined]
        door.authenticated(connection.transport)

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "extensions": {**scope.get("extensions", {}), PROVEN: proven}}, receive, send)

    return wrapped
