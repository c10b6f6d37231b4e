"""The node's side of the fabric: each exchange asks this home's own server, or carries the bytes of a link.

A view is known by its key. What its caller claims to be is cut down to what this node grants that view.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..core.processes import SESSION_VARIABLE
from ..errors import Busy, HoldfastError, Unsupported
from ..server.responses import HANG_UP, LOST, ScopeMissing
from . import sealing
from .conversation import BODY, BYTES, ERRORS, HEADERS, LAST, TEXT, Conversation
from .exchange import FORGOTTEN, HEAD, OPEN, OPENED, REVOKED, Broken
from .fabric import Fabric

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any

    from starlette.types import Message, Receive, Scope, Send

    from ..server.tokens import Caller
    from .fabric import Address
    from .joining import Joined, View

    # Serves one request whose caller is known: the gate without Host and Origin.
    Serve = Callable[[Scope, Receive, Send], Awaitable[None]]


_log = logging.getLogger("holdfast.nodes")

EXCHANGES, EXCHANGES_OF_A_VIEW = 128, 64
# A view that opened an exchange asks for something within this time.
_FIRST_S = 10.0
# A revoked view is told why its connections close, and has this long to hear it.
_REVOKED_S = 0.5
_READ_BYTES = 64 << 10
# More than any server lets a client send at once (`frame_bytes`).
_MESSAGE_BYTES = 64 << 20
_ERRORS_BYTES = 4 << 10
_LOGIN_DIRECTORY = os.path.expanduser("~")


@dataclass(eq=False)
class _Open:
    view: str
    fabric: Fabric
    talk: Conversation
    caller: Caller | None = None


class Offering:
    """What this home offers through each fabric. `caller_for(view, claims)` makes the caller of a request."""

    def __init__(
        self,
        joined: Joined,
        serve: Serve,
        caller_for: Callable[[View, dict[str, Any]], Caller],
        arrive: list[str],
        note: Callable[..., None],
    ) -> None:
        self._joined = joined
        self._serve = serve
        self._caller_for = caller_for
        self._arrive = arrive
        self._note = note
        # One for each process: two nodes with one key are seen by it.
        self.instance = secrets.token_hex(8)
        self._open: dict[str, _Open] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def through(self, address: Address, name: str) -> Fabric:
        """The fabric at this address, to be entered; views reach this home under that name."""
        fabric = Fabric(address, "n", name, lambda *heard: self._heard(fabric, *heard), lambda: self._lost(fabric))
        return fabric

    def _heard(self, fabric: Fabric, exchange: str, message: bytes | None, _reply: str) -> None:
        if message is None:
            return
        if exchange in self._open:
            self._open[exchange].talk.heard(message)
        elif len(message) > HEAD.size and message[0] == OPEN:
            self._spawn(self._opened(fabric, exchange, message[HEAD.size :]))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _lost(self, fabric: Fabric) -> None:
        """Its connection broke: messages may have been lost."""
        for each in list(self._open.values()):
            if each.fabric is fabric:
                each.talk.lose(Broken("the fabric was lost"))

    async def revoked(self, views: set[str]) -> None:
        """End what these views have open: attaches are closed as those of a revoked token."""
        ending = [each for each in self._open.values() if each.view in views]
        for each in ending:
            if each.caller is not None:
                each.caller.revoked.set()
        if ending:
            await asyncio.sleep(_REVOKED_S)
        for each in ending:
            await each.talk.close({"code": REVOKED, "message": "the node no longer trusts this view"})

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _opened(self, fabric: Fabric, exchange: str, message: bytes) -> None:
        view = self._joined.view_of(message[: sealing.KEY_ID_BYTES])
        if view is None or view.fabric != fabric.address or exchange in self._open:
            return  # a stranger gets no answer
        try:
            more = {"instance": self.instance}
            seal, answer, said = sealing.answer(self._joined.key, view.public, message, more)
        except sealing.BadSeal:
            return
        if said.get("exchange") != exchange or said.get("node") != view.node:
            return
        subject = str(said.get("reply"))
        if not subject.startswith(fabric.address.subject("v", view.name, "")) or not subject.isprintable():
            return
        publish = partial(fabric.publish, subject)
        talk = Conversation(seal, publish)
        of_view = sum(each.view == view.name for each in self._open.values())
        refusal = _too_many(len(self._open), of_view)
        if refusal is not None:
            await publish(HEAD.pack(OPENED, 0) + answer)
            await talk.close(refusal.to_json())
            return
        # Registered before the view can send more.
        this = self._open[exchange] = _Open(view.name, fabric, talk)
        await publish(HEAD.pack(OPENED, 0) + answer)
        talk.on_over(partial(self._over, view.name))
        try:
            await self._attend(view, this)
        except Broken:
            pass
        except HoldfastError as problem:
            await talk.close(problem.to_json())
        except Exception:  # noqa: BLE001
            _log.exception("an exchange with view %s failed", view.name)
        finally:
            del self._open[exchange]
            with suppress(Broken):
                await talk.close()

    def _over(self, view: str, problem: Broken) -> None:
        if (problem.problem or {}).get("code") == FORGOTTEN:
            self._note("forgotten_by_view", view=view)

    async def _attend(self, view: View, this: _Open) -> None:
        talk = this.talk
        try:
            async with asyncio.timeout(_FIRST_S):
                first = await talk.receive()
        except TimeoutError:
            return
        kind = first["type"] if isinstance(first, dict) else None
        if kind in ("http", "websocket"):
            assert isinstance(first, dict)
            this.caller = self._caller_for(view, first.get("caller") or {})
            served = _Served(talk, first, this.caller, view.name)
            talk.on_over(served.over)
            await served.run(self._serve)
        elif kind == "far":
            assert isinstance(first, dict)
            if view.scope != "manage":
                raise ScopeMissing("manage")
            await _carry(talk, [*self._arrive, str(first.get("digest")), str(int(first.get("size") or 0))])
        elif kind == "visit":
            from .visiting import visited

            assert isinstance(first, dict)
            caller = self._caller_for(view, {"scope": first.get("scope"), "label": "visit"})
            argv, environment = await visited(self._serve, caller, view.name, view.node, first)
            await _carry(talk, argv, environment)
        else:
            raise Unsupported(f"the service {kind!a}")


def _too_many(all: int, of_view: int) -> Busy | None:
    if of_view >= EXCHANGES_OF_A_VIEW:
        return Busy(f"this view has {EXCHANGES_OF_A_VIEW} exchanges open (exchanges_of_a_view)")
    if all >= EXCHANGES:
        return Busy(f"this node has {EXCHANGES} exchanges open (exchanges)")
    return None


# The service `http`: ASGI events of one request or one WebSocket, one to one.


class _Served:
    def __init__(self, talk: Conversation, asked: dict[str, Any], caller: Caller, view: str) -> None:
        self._talk = talk
        self._parts = bytearray()
        self._gone = asyncio.Event()
        self._ending: asyncio.Future[None] | None = None
        self._events: asyncio.Queue[Message] = asyncio.Queue(maxsize=1)
        kind = str(asked["type"])
        self._is_socket = kind == "websocket"
        path = str(asked.get("path"))
        headers = [
            (str(name).encode("latin-1", "replace"), str(value).encode("latin-1", "replace"))
            for name, value in asked.get("headers") or ()
        ]
        self._scope: Scope = {
            "type": kind,
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "wss" if self._is_socket else "https",
            "path": path,
            "raw_path": path.encode("utf-8", "replace"),
            "query_string": str(asked.get("query") or "").encode("latin-1", "replace"),
            "root_path": "",
            "headers": [each for each in headers if each[0].lower() in HEADERS],
            "subprotocols": [str(each) for each in asked.get("subprotocols") or ()],
            "client": None,
            "server": None,
            "extensions": {
                LOST: self._gone,
                HANG_UP: self._hang_up,
                **({"websocket.http.response": {}} if self._is_socket else {}),
            },
            "state": {"caller": caller, "peer": f"view:{view}"},
        }
        if not self._is_socket:
            self._scope["method"] = str(asked.get("method"))

    def _hang_up(self) -> None:
        """Half of an answer must not look like the whole: it ends without its last part."""
        self._ending = asyncio.ensure_future(self._talk.close())

    def over(self, _problem: Broken) -> None:
        """The exchange ended. `_hear` may not notice: it does not receive while the session takes no input."""
        self._gone.set()

    async def run(self, serve: Serve) -> None:
        hearing = asyncio.ensure_future(self._hear())
        try:
            if self._is_socket:
                await self._events.put({"type": "websocket.connect"})
            await serve(self._scope, self._events.get, self._send)
        finally:
            hearing.cancel()
            with suppress(asyncio.CancelledError, Broken):
                await hearing

    async def _hear(self) -> None:
        """What the view sends, as events. Its end is the end of the connection."""
        try:
            while True:
                frame = await self._talk.receive()
                event = self._event(frame)
                if event is not None:
                    await self._events.put(event)
        except Broken:
            while True:
                gone = (
                    {"type": "websocket.disconnect", "code": 1006} if self._is_socket else {"type": "http.disconnect"}
                )
                await self._events.put(gone)

    def _event(self, frame: Any) -> Message | None:
        if isinstance(frame, dict):
            if frame["type"] == "disconnect" and self._is_socket:
                code = frame.get("code")
                return {"type": "websocket.disconnect", "code": code if isinstance(code, int) else 1005}
            return None
        number, raw = frame
        if number == BODY or number == BODY + LAST:
            return {"type": "http.request", "body": raw, "more_body": number == BODY}
        self._parts += raw
        if len(self._parts) > _MESSAGE_BYTES:
            raise Broken("a message that is too large")
        if not number & LAST:
            return None
        whole = bytes(self._parts)
        self._parts.clear()
        if number == TEXT + LAST:
            return {"type": "websocket.receive", "text": whole.decode("utf-8", "replace"), "bytes": None}
        return {"type": "websocket.receive", "bytes": whole, "text": None}

    async def _send(self, event: Message) -> None:
        talk, kind = self._talk, event["type"]
        try:
            if kind in ("http.response.body", "websocket.http.response.body"):
                await talk.send_body(BODY, event.get("body", b""), is_last=not event.get("more_body", False))
            elif kind == "websocket.send":
                text = event.get("text")
                raw = event["bytes"] if text is None else text.encode("utf-8", "replace")
                await talk.send_body(BYTES if text is None else TEXT, raw)
            else:
                headers = [
                    [name.decode("latin-1"), value.decode("latin-1")] for name, value in event.get("headers", ())
                ]
                plain = {name: event[name] for name in ("status", "code", "reason", "subprotocol") if name in event}
                await talk.send({"type": kind, "headers": headers, **plain})
        except Broken:
            raise OSError("the view is gone") from None


# The service `far`: the bytes of a link, to a far end that starts as after a login.


async def _carry(talk: Conversation, argv: list[str], more: dict[str, str] | None = None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != SESSION_VARIABLE} | (more or {})
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=environment,
        cwd=_LOGIN_DIRECTORY,
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    stdin, stdout, stderr = child.stdin, child.stdout, child.stderr

    async def inwards() -> None:
        with suppress(Broken, OSError):
            while True:
                frame = await talk.receive()
                if not isinstance(frame, dict):
                    stdin.write(frame[1])
                    await stdin.drain()
        stdin.close()

    async def outwards() -> None:
        while raw := await stdout.read(_READ_BYTES):
            await talk.send_body(BYTES, raw)

    moving = asyncio.ensure_future(inwards())
    try:
        await outwards()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_S):
                await child.wait()
        errors = (await stderr.read(_ERRORS_BYTES)) if child.returncode is not None else b""
        await talk.send_body(ERRORS, errors)
        await talk.send({"type": "exit", "code": child.returncode})
    finally:
        moving.cancel()
        if child.returncode is None:
            child.kill()
        await child.wait()


def far_end() -> list[str]:
    """The first words of a far end on this machine; the digest and the size of the code follow."""
    boot = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "places", "boot.py")
    return [sys.executable, "-I", "-S", boot]
