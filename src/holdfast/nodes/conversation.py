"""An exchange in progress: what asyncio adds to `Exchange`, and events of ASGI as its frames. Both sides use it."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from ..core import jsontext, wire
from .exchange import HEAR_S, PART_BYTES, Broken, Exchange

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable
    from typing import Any

    from starlette.types import Message, Receive, Scope, Send

    from .sealing import Seal


# A data frame has one of these as its number; the last part of a body has LAST added.
BODY, TEXT, BYTES, ERRORS = 0, 2, 4, 6
LAST = 1
# Headers of a request that a node gets to see; who asks was decided by the key.
HEADERS = frozenset((b"accept", b"content-type", b"idempotency-key", b"if-none-match", b"last-event-id", b"range"))
_WITH_BODY = ("http.request", "http.response.body", "websocket.http.response.body")
# Limit of an answer that is read as a whole.
_ANSWER_MAX_BYTES = 16 << 20
# A keep-alive message that is due is being sent: check again after this.
_LOOK_S = 1.0


class Contents:
    """The other side of `send_content`: a part of a body is passed on, the parts of a message are joined."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts = bytearray()

    def add(self, number: int, raw: bytes) -> dict[str, Any] | None:
        """`body` and `more_body`, or `text` and `bytes`; None for a message that is not complete."""
        if number in (BODY, BODY + LAST):
            return {"body": raw, "more_body": number == BODY}
        self._parts += raw
        if len(self._parts) > self._max_bytes:
            raise Broken("a message is too large")
        if not number & LAST:
            return None
        whole = bytes(self._parts)
        self._parts.clear()
        if number == TEXT + LAST:
            return {"text": whole.decode("utf-8", "replace"), "bytes": None}
        return {"text": None, "bytes": whole}


def as_text(headers: Iterable[tuple[bytes, bytes]]) -> list[list[str]]:
    return [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers]


async def get(application: Callable[[Scope, Receive, Send], Awaitable[None]], scope: Scope, send: Send) -> None:
    """One request without a body; the events of its answer go to `send`."""
    requests = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        if not requests:
            await asyncio.Event().wait()
        return requests.pop()

    await application(scope, receive, send)


async def fetched(
    application: Callable[[Scope, Receive, Send], Awaitable[None]], scope: Scope
) -> tuple[int, dict[str, Any]]:
    """The status and the JSON of the answer to one request without a body."""
    status, body = 0, bytearray()

    async def send(event: Message) -> None:
        nonlocal status
        if event["type"] == "http.response.start":
            status = event["status"]
        else:
            body.extend(event.get("body", b""))
            if len(body) > _ANSWER_MAX_BYTES:
                raise ValueError(f"it is longer than {_ANSWER_MAX_BYTES} bytes")

    await get(application, scope, send)
    found = jsontext.read_finite(bytes(body))
    return status, found if isinstance(found, dict) else {}


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
        """Take a message for this exchange from the fabric."""
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
        """The connection is lost: nothing more is sent or received. What arrived before can still be taken."""
        if self._over is None:
            self._over = problem
            if not self._exchange.is_over:
                # Otherwise the other side may learn of it only from our silence.
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
        """Send bytes of any length, in parts. `is_last`: this is the end of the body with this number."""
        for start in range(0, max(len(raw), 1), PART_BYTES):
            part = raw[start : start + PART_BYTES]
            mark = LAST if is_last and start + PART_BYTES >= len(raw) else 0
            await self._send(partial(self._exchange.data, number + mark, part))

    async def send_content(self, event: Message) -> None:
        """The body, the text or the bytes of an event of ASGI."""
        if event["type"] in _WITH_BODY:
            await self.send_body(BODY, event.get("body", b""), is_last=not event.get("more_body", False))
        elif event.get("text") is not None:
            await self.send_body(TEXT, event["text"].encode("utf-8", "replace"))
        else:
            await self.send_body(BYTES, event["bytes"])

    async def close(self, problem: dict[str, Any] | None = None) -> None:
        """End the exchange, and tell the other side."""
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
            self.lose(Broken(f"no message for {HEAR_S:g} s"))
            return
        if self._exchange.owes_word(now):
            self._spawn(self._say(self._exchange.ping))
        self._timer = self._loop.call_at(max(self._exchange.due(), now + _LOOK_S), self._look)

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
