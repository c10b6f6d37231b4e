"""The view's side: exchanges with nodes, and an ASGI application that is somewhere else."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from ..errors import HoldfastError, NodeRefused, NodeTwice, NodeUnreachable
from ..server.responses import Unauthenticated
from . import sealing
from .conversation import HEADERS, Contents, Conversation, as_text, fetched, get
from .exchange import FORGOTTEN, OPEN_HEAD, OPENED_HEAD, REVOKED, Broken
from .fabric import Fabric

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from starlette.types import Message, Receive, Scope, Send

    from ..core import wire
    from ..server.tokens import Caller
    from .fabric import Address
    from .joining import Node, Viewing


_OPEN_S = 10.0
# The server reports at once that a node is not subscribed; it may be just reconnecting, so it is asked once more.
_AGAIN_S = 0.5
# Two answers to one handshake within this time mean a copied home; later, it may be a replay to a restarted process. A
# process that did not answer before is used when no other has answered for `_AGAIN_S`.
_SECOND_S = 5.0
_REVOKED_CODE = 1008
# Nodes are not trusted: only these events and headers are passed on, and messages have a limit.
_EVENTS = ("http.response.start", "websocket.accept", "websocket.close", "websocket.http.response.start")
_ANSWER_HEADERS = frozenset(
    b"accept-ranges allow cache-control content-disposition content-encoding content-length content-range content-type "
    b"etag location retry-after www-authenticate holdfast-cursor holdfast-offset holdfast-size".split()
)
_MESSAGE_BYTES = 16 << 20


class Calls:
    """Opens exchanges with nodes over one fabric."""

    def __init__(self, viewing: Viewing) -> None:
        self._viewing = viewing
        self.fabric: Fabric | None = None
        # Writes to the audit of this home, in a server.
        self.note: Callable[..., None] = lambda *_, **__: None
        # Other processes of this home are views too; each has its own subjects.
        self._name = f"{viewing.name}.{secrets.token_hex(8)}"
        self._opening: dict[str, asyncio.Queue[bytes | None]] = {}
        self._open: dict[str, tuple[str, Conversation]] = {}
        # Handshakes of the last seconds: the node, and which of its processes answered.
        self._answered: dict[str, tuple[str, sealing.Opening, str]] = {}
        # The process of each node that answers; None if two do.
        self._answering: dict[str, str | None] = {}

    def through(self, address: Address) -> Fabric:
        """Use the fabric at this address, as a context; exchanges are opened over it."""
        self.fabric = Fabric(address, "v", self._name, self._heard, self._lost)
        return self.fabric

    def _heard(self, exchange: str, message: bytes | None, _reply: str) -> None:
        if exchange in self._opening:
            self._opening[exchange].put_nowait(message)
        elif message is not None and not self._is_second(exchange, message) and exchange in self._open:
            self._open[exchange][1].heard(message)

    def _is_second(self, exchange: str, message: bytes) -> bool:
        """True if another process with the node's key answered the same handshake: its home was copied."""
        if exchange not in self._answered or not message.startswith(OPENED_HEAD):
            return False
        name, opening, first = self._answered[exchange]
        try:
            _, said = opening.finish(message.removeprefix(OPENED_HEAD))
        except sealing.BadSeal:
            return False
        if str(said.get("instance")) == first:
            return False
        self._answering[name] = None
        self._lose(Broken("two nodes have this key", NodeTwice(name, True).to_json()), name)
        return True

    def _lost(self) -> None:
        self._lose(Broken("the fabric was lost"))

    def _lose(self, problem: Broken, node: str | None = None) -> None:
        for name, talk in list(self._open.values()):
            if node in (None, name):
                talk.lose(problem)

    async def forgotten(self, node: str) -> None:
        """End everything that is open with the node, and tell it why."""
        for name, talk in list(self._open.values()):
            if name == node:
                await talk.close({"code": FORGOTTEN, "message": "the view has forgotten this node"})

    async def open(self, name: str, within_s: float | None = None) -> Conversation:
        """Open a new exchange. On NodeUnreachable and NodeTwice nothing was requested of the node."""
        node = self._viewing.node(name)
        answer = await self._greet(node, within_s or _OPEN_S)
        if answer is None:
            await asyncio.sleep(_AGAIN_S)
            answer = await self._greet(node, within_s or _OPEN_S)
        if answer is None:
            raise NodeUnreachable(name, "not connected", False)
        talk, instance = answer
        if self._answering.get(name) != instance:
            # A copy of its home may answer too.
            await asyncio.sleep(_AGAIN_S)
            if talk.is_over and self._answering.get(name, instance) is None:
                raise NodeTwice(name, False)
            self._answering[name] = instance
        return talk

    def _over(self, node: str, exchange: str, problem: Broken) -> None:
        self._open.pop(exchange, None)
        if (problem.problem or {}).get("code") == REVOKED:
            self.note("revoked_by_node", node=node)

    async def _greet(self, node: Node, within_s: float) -> tuple[Conversation, str] | None:
        fabric = self.fabric
        if fabric is None or not fabric.ready.is_set():
            raise NodeUnreachable(node.name, "no fabric" if fabric is None else f"no fabric: {fabric.problem}", False)
        exchange = secrets.token_hex(16)
        address = fabric.address
        reply = address.subject("v", self._name, exchange)
        subject = address.subject("n", node.name, exchange)
        facts: dict[str, Any] = {"exchange": exchange, "node": node.name, "view": self._viewing.name, "reply": reply}
        # Every machine that has the key of the node learns it from this.
        facts["is_copied"] = self._answering[node.name] is None if node.name in self._answering else None
        opening = sealing.Opening(self._viewing.key, node.public, facts)
        answers: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._opening[exchange] = answers
        try:
            if not await fabric.publish(subject, OPEN_HEAD + opening.message, reply):
                raise NodeUnreachable(node.name, "no fabric", False)
            async with asyncio.timeout(within_s):
                answer = await answers.get()
        except TimeoutError:
            raise NodeUnreachable(node.name, "no answer", False) from None
        finally:
            del self._opening[exchange]
        if answer is None:
            return None
        if not answer.startswith(OPENED_HEAD):
            # It answered while it had no connection, and reports the end of that exchange now.
            raise NodeUnreachable(node.name, "its answer was lost", False)
        try:
            seal, said = opening.finish(answer.removeprefix(OPENED_HEAD))
        except sealing.BadSeal:
            raise NodeRefused(node.name, "another key answers under its name") from None
        talk = Conversation(seal, partial(fabric.publish, subject))
        self._open[exchange] = node.name, talk
        instance = str(said.get("instance"))
        self._answered[exchange] = node.name, opening, instance
        asyncio.get_running_loop().call_later(_SECOND_S, self._answered.pop, exchange)
        talk.on_over(lambda problem: self._over(node.name, exchange, problem))
        while not answers.empty():
            # A refusal follows the answer at once and may be queued already.
            self._heard(exchange, answers.get_nowait(), "")
        return talk, instance


class FarApp:
    """The server of a node as an application of ours: every request is one exchange. The first one may use an exchange
    that is open already."""

    def __init__(self, calls: Calls, node: str, is_open: Conversation | None = None) -> None:
        self._calls = calls
        self._node = node
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send, *, path: str, caller: Caller) -> None:
        talk, self._is_open = self._is_open or await self._calls.open(self._node), None
        try:
            await _Request(talk, self._calls, self._node).run(scope, receive, send, path, caller)
        finally:
            with suppress(Broken):
                await talk.close()


class _Request:
    def __init__(self, talk: Conversation, calls: Calls, node: str) -> None:
        self._talk = talk
        self._calls = calls
        self._node = node
        self._contents = Contents(_MESSAGE_BYTES)
        self._is_answered = False
        self._prefix = ""

    async def run(self, scope: Scope, receive: Receive, send: Send, path: str, caller: Caller) -> None:
        is_socket = scope["type"] == "websocket"
        headers = as_text(each for each in scope["headers"] if each[0].lower() in HEADERS)
        asked = {"type": scope["type"], "path": path, "query": scope["query_string"].decode("latin-1")}
        asked |= {"headers": headers, "caller": caller.claims()}
        asked |= {"subprotocols": scope["subprotocols"]} if is_socket else {"method": scope["method"]}
        try:
            await self._talk.send(asked)
        except Broken as problem:
            raise self._as_error(problem) from None
        asking = asyncio.gather(self._ask(receive), self._end_when_revoked(caller))
        try:
            await self._answer(send)
        except Broken as problem:
            if is_socket and self._is_answered and _is_distrust(problem):
                await send({"type": "websocket.close", "code": _REVOKED_CODE, "reason": "revoked"})
                return
            raise self._as_error(problem) from None
        finally:
            asking.cancel()
            with suppress(asyncio.CancelledError, Broken):
                await asking

    async def _end_when_revoked(self, caller: Caller) -> None:
        await caller.revoked.wait()
        await self._talk.close(Unauthenticated("the token was revoked").to_json())

    async def _ask(self, receive: Receive) -> None:
        talk = self._talk
        while True:
            event = await receive()
            kind = event["type"]
            if kind in ("http.request", "websocket.receive"):
                await talk.send_content(event)
            elif kind == "websocket.disconnect":
                await talk.send({"type": "disconnect", "code": event.get("code")})
                return
            elif kind == "http.disconnect":
                await talk.close()
                return

    async def _answer(self, send: Send) -> None:
        """The node's events, up to the last."""
        while True:
            frame = await self._talk.receive()
            try:
                event = self._event(frame)
            except (KeyError, TypeError, ValueError):
                raise Broken("its answer is invalid") from None
            if event is None:
                continue
            self._is_answered = True
            await send(event)
            if event["type"] == "websocket.close":
                if event["code"] == _REVOKED_CODE:
                    self._calls.note("revoked_by_node", node=self._node)
                return
            if event.get("more_body") is False:
                return

    def _event(self, frame: wire.Frame) -> Message | None:
        """One ASGI event, checked; None for a part of one."""
        if isinstance(frame, dict):
            kind = frame["type"]
            if kind not in _EVENTS:
                raise ValueError(kind)
            if kind == "websocket.close":
                return {"type": kind, "code": int(frame["code"]), "reason": str(frame.get("reason") or "")[:120]}
            headers = [(str(name).lower().encode("latin-1"), str(v).encode("latin-1")) for name, v in frame["headers"]]
            event: Message = {"type": kind, "headers": [each for each in headers if each[0] in _ANSWER_HEADERS]}
            if kind == "websocket.accept":
                protocol = frame.get("subprotocol")
                return {**event, "subprotocol": None if protocol is None else str(protocol), "headers": []}
            self._prefix = kind.removesuffix("http.response.start")
            status = int(frame["status"])
            if not 200 <= status < 600 or any(byte in value for _, value in headers for byte in b"\r\n\0"):
                raise ValueError(status)
            return {**event, "status": status}
        content = self._contents.add(*frame)
        if content is None:
            return None
        return {"type": f"{self._prefix}http.response.body" if "body" in content else "websocket.send", **content}

    def _as_error(self, problem: Broken) -> HoldfastError:
        if problem.problem is not None:
            return HoldfastError.from_wire(problem.problem)
        return NodeUnreachable(self._node, str(problem), True)


def _is_distrust(problem: Broken) -> bool:
    return (problem.problem or {}).get("code") in (REVOKED, FORGOTTEN, Unauthenticated.code)


async def ask(
    calls: Calls, node: str, path: str, caller: Caller, query: str, send: Send, is_open: Conversation | None = None
) -> None:
    """One `GET` of a node; the events of its answer go to `send`."""
    await get(partial(FarApp(calls, node, is_open), path=path, caller=caller), _scope(query), send)


async def fetch(
    calls: Calls, node: str, path: str, caller: Caller, query: str = "", is_open: Conversation | None = None
) -> tuple[int, dict[str, Any]]:
    """The status and the JSON of the answer to one `GET` of a node."""
    return await fetched(partial(FarApp(calls, node, is_open), path=path, caller=caller), _scope(query))


def _scope(query: str) -> Scope:
    return {"type": "http", "method": "GET", "headers": [], "query_string": query.encode()}
