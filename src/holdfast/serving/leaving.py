"""How a server is told to leave."""

from __future__ import annotations

import asyncio
import signal
from contextlib import nullcontext
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


def on_signals(told: Callable[[int], object]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, told, number)


class Server(uvicorn.Server):
    """Leaves when it is told to, and lets us clean up: uvicorn's own way is to die of the signal."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()
