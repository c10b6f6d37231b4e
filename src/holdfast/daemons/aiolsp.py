"""A language server for asyncio: its answers come to the loop, only the writing waits in a thread."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from ..errors import Timeout
from .lsp import REQUEST_S

if TYPE_CHECKING:
    from typing import Any

    from .diagnostics import Diagnostics
    from .lsp import LanguageServer


class AsyncLanguageServer:
    def __init__(self, server: LanguageServer) -> None:
        self._server = server
        self.id = server.id
        self.server = server.server

    def __repr__(self) -> str:
        return f"<AsyncLanguageServer {self.server} {self.id} {self.state}>"

    @property
    def state(self) -> str:
        return self._server.state

    @property
    def open_requests(self) -> int:
        return self._server.open_requests

    @property
    def restarts(self) -> int:
        return self._server.restarts

    @property
    def capabilities(self) -> dict[str, Any]:
        return self._server.capabilities

    @property
    def diagnostics(self) -> Diagnostics:
        return self._server.diagnostics

    async def request(self, method: str, params: Any = None, *, timeout: float | None = REQUEST_S) -> Any:
        until = None if timeout is None else time.monotonic() + timeout
        await self.wait_running(timeout)
        number, answer = self._server.enter(method)
        try:
            left_s = None if until is None else max(0.0, until - time.monotonic())
            await asyncio.to_thread(self._server.send, number, method, params, left_s)
            async with asyncio.timeout(None if until is None else max(0.0, until - time.monotonic())):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise Timeout(f"the answer of {self.server} to {method}", timeout or 0.0) from None
        finally:
            if not answer.done() or answer.cancelled():
                # Also where the caller was cancelled: the server need not go on with it.
                await asyncio.to_thread(self._server.abandon, number)

    async def notify(self, method: str, params: Any = None, *, timeout: float | None = REQUEST_S) -> None:
        await asyncio.to_thread(self._server.notify, method, params, timeout=timeout)

    async def wait_running(self, timeout: float | None = REQUEST_S) -> None:
        await asyncio.to_thread(self._server.wait_running, timeout)

    async def stop(self, by: str | None = None) -> None:
        await asyncio.to_thread(self._server.stop, by)
