"""An exchange in progress: what asyncio adds to `Exchange`. Both sides use it."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from ..core import wire
from .exchange import HEAR_S, PART_BYTES, Broken, Exchange

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from .sealing import Seal


# A data frame has one of these as its number; the last part of a body has LAST added.
BODY, TEXT, BYTES, ERRORS = 0, 2, 4, 6
LAST = 1
# Headers of a request that a node gets to see; who asks was decided by the key.
HEADERS = frozenset((b"accept", b"content-type", b"idempotency-key", b"if-none-match", b"last-event-id", b"range"))
# A word that is due is being sent: look again after this.
_LOOK_S = 1.0


class Conversation:
    """`publish` sends one message and returns False without a connection to the fabric; with `is_last`, the message is
    sent after the next connect. One task may receive at a time."""

    def __init__(self, seal: Seal, publish: Callable[..., Coroutine[Any, Any, bool]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._exchange = Exchange(seal, self._loop.time())
        self._publish = publish
        self._came: deque[tuple[wire.Frame, int]] = deque()
        self._something = asyncio.Event()
        self._room = asyncio.Event()
        # `_sending`: messages are published in the order of their numbers. `_turn`: senders wait for credit in turn.
        self._sending, self._turn = asyncio.Lock(), asyncio.Lock()
        self._over: Broken | None = None
        self._on_over: list[Callable[[Broken], object]] = []
        self._timer = self._loop.call_at(self._exchange.due(), self._look)
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def is_over(self) -> bool:
        return self._over is not None

    def heard(self, message: bytes) -> None:
        """A message for this exchange came from the fabric."""
        if self._over is not None:
            return
        try:
            found = self._exchange.receive(message, self._loop.time())
        except Broken as problem:
            self.lose(problem)
            return
        if found is not None:
            self._came.append(found)
            self._something.set()
        if self._exchange.may_send:
            self._room.set()

    def lose(self, problem: Broken) -> None:
        """Nothing more comes or goes. What came before can still be received."""
        if self._over is None:
            self._over = problem
            if not self._exchange.is_over:
                # Otherwise the other side may learn it only from our silence.
                self._spawn(self._publish(self._exchange.end(self._loop.time()), is_last=True))
            self._timer.cancel()
            self._something.set()
            self._room.set()
            for call in self._on_over:
                call(problem)

    def on_over(self, call: Callable[[Broken], object]) -> None:
        self._on_over.append(call)
        if self._over is not None:
            call(self._over)

    async def receive(self) -> wire.Frame:
        while not self._came:
            if self._over is not None:
                raise self._over
            self._something.clear()
            await self._something.wait()
        frame, size = self._came.popleft()
        if self._over is None:
            await self._say(lambda now: self._exchange.taken(size, now))
        return frame

    async def send(self, message: dict[str, Any]) -> None:
        await self._send(lambda now: self._exchange.control(message, now))

    async def send_body(self, number: int, raw: bytes, *, is_last: bool = True) -> None:
        """Bytes of any length, in parts. `is_last`: this is the end of what has the number."""
        for start in range(0, max(len(raw), 1), PART_BYTES):
            part = raw[start : start + PART_BYTES]
            mark = LAST if is_last and start + PART_BYTES >= len(raw) else 0
            await self._send(partial(self._exchange.data, number + mark, part))

    async def close(self, problem: dict[str, Any] | None = None) -> None:
        """End it, and say so."""
        if self._over is None:
            await self._say(lambda now: self._exchange.end(now, problem))
            self.lose(Broken("it was ended here", problem))

    async def _send(self, make: Callable[[float], bytes]) -> None:
        async with self._turn:
            while self._over is None and not self._exchange.may_send:
                self._room.clear()
                await self._room.wait()
            if self._over is None:
                await self._say(make)
        if self._over is not None:
            raise self._over

    async def _say(self, make: Callable[[float], bytes | None]) -> None:
        async with self._sending:
            if self._over is not None:
                return
            message = make(self._loop.time())
            if message is not None and not await self._publish(message):
                self.lose(Broken("the fabric cannot be reached"))

    def _look(self) -> None:
        now = self._loop.time()
        if self._exchange.is_silent(now):
            self.lose(Broken(f"no word for {HEAR_S:g} s"))
            return
        if self._exchange.owes_word(now):
            self._spawn(self._say(self._exchange.ping))
        self._timer = self._loop.call_at(max(self._exchange.due(), now + _LOOK_S), self._look)

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
