"""The node's side of the fabric: each exchange asks this home's own server, or carries the bytes of a link.

A view is known by its key. What its caller claims to be is limited to what this node grants that view.
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
from urllib.parse import quote

from uvicorn.protocols.utils import ClientDisconnected

from .. import __version__
from ..core import jsontext
from ..core.processes import ROLE_VARIABLE, SESSION_VARIABLE, VISIT_VARIABLE
from ..errors import Busy, DamagedRecord, HoldfastError, NotFound, Unsupported
from ..home import Home
from ..server.responses import HANG_UP, LOST, ScopeMissing
from . import sealing
from .conversation import BYTES, ERRORS, HEADERS, Contents, Conversation, as_text, fetched
from .exchange import FORGOTTEN, OPEN_HEAD, OPENED_HEAD, REVOKED, Broken
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

# The most that is open at a time, of all views and of one. A link lasts as long as its session, so links are counted
# apart from requests.
_LIMITS = {"exchanges": 128, "exchanges_of_a_view": 64, "links": 128, "links_of_a_view": 64}
_LINK_FIX = "stop a session that this view started there, or `hold rm` one that it visits: each has a link"
# A view that opened an exchange sends a request within this time.
_FIRST_S = 10.0
# A revoked view is told why its connections close, and has this long to read it.
_REVOKED_S = 0.5
_READ_BYTES = 64 << 10
# More than any server lets a client send at once (`frame_bytes`).
_MESSAGE_BYTES = 64 << 20
_ERRORS_BYTES = 4 << 10
_REFERENCE_CHARACTERS = 256
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The program of a far end that visits a session.
_VISIT = [sys.executable, "-I", "-S", "-X", "utf8", os.path.join(_PACKAGE, "runner", "__main__.py"), "visit"]
_LOGIN_DIRECTORY = os.path.expanduser("~")


@dataclass(eq=False)
class _Open:
    view: str
    fabric: Fabric
    talk: Conversation
    caller: Caller | None = None
    is_link: bool = False


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
        # One for each process: views notice two nodes with one key by it.
        self.instance = secrets.token_hex(8)
        self._open: dict[str, _Open] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def through(self, address: Address, name: str) -> Fabric:
        """Use the fabric at this address, as a context; views reach this home by that name."""
        fabric = Fabric(address, "n", name, lambda *heard: self._heard(fabric, *heard), lambda: self._lost(fabric))
        return fabric

    def _heard(self, fabric: Fabric, exchange: str, message: bytes | None, _reply: str) -> None:
        if message is None:
            return
        if exchange in self._open:
            self._open[exchange].talk.heard(message)
        elif message.startswith(OPEN_HEAD):
            self._spawn(self._opened(fabric, exchange, message.removeprefix(OPEN_HEAD)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _lost(self, fabric: Fabric) -> None:
        """The connection of a fabric broke: messages may have been lost."""
        for each in list(self._open.values()):
            if each.fabric is fabric:
                each.talk.lose(Broken("the fabric was lost"))

    async def revoked(self, views: set[str]) -> None:
        """End what these views have open, because they may do less from now on; attached clients are closed as with a
        revoked token."""
        ending = [each for each in self._open.values() if each.view in views]
        for each in ending:
            if each.caller is not None:
                each.caller.revoked.set()
        if ending:
            await asyncio.sleep(_REVOKED_S)
        for each in ending:
            await each.talk.close(
                {"code": REVOKED, "message": "the node no longer trusts this view, or reduced its scope"}
            )

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _opened(self, fabric: Fabric, exchange: str, message: bytes) -> None:
        try:
            view = self._joined.view_of(message[: sealing.KEY_ID_BYTES])
        except DamagedRecord:
            return  # the server has logged it, and trusts no view
        if view is None or view.fabric != fabric.address or exchange in self._open:
            return  # unknown keys get no answer
        try:
            more = {"instance": self.instance}
            seal, answer, said = sealing.answer(self._joined.key, view.public, message, more)
        except sealing.BadSeal:
            return
        if said.get("exchange") != exchange or said.get("node") != view.node:
            return
        self._joined.note_copied(view, said.get("is_copied"))
        subject = str(said.get("reply"))
        if not subject.startswith(fabric.address.subject("v", view.name, "")) or not subject.isprintable():
            return
        publish = partial(fabric.publish, subject)
        talk = Conversation(seal, publish)
        try:
            self._check_limits(view, "exchanges")
        except Busy as refusal:
            await publish(OPENED_HEAD + answer)
            await talk.close(refusal.to_json())
            return
        # Registered before the view can send more.
        this = self._open[exchange] = _Open(view.name, fabric, talk)
        await publish(OPENED_HEAD + answer)
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

    def _check_limits(self, view: View, kind: str) -> None:
        views = [each.view for each in self._open.values() if each.is_link == (kind == "links")]
        counts = {f"{kind}_of_a_view": views.count(view.name), kind: len(views)}
        for key, count in counts.items():
            limit = _LIMITS[key]
            if count >= limit:
                of = "this node" if key == kind else "this view"
                refusal = Busy(f"{of} has {limit} {kind} open ({key} is {limit})")
                refusal.facts |= {"key": key, "limit": limit}
                refusal.fix = _LINK_FIX if kind == "links" else refusal.fix
                raise refusal

    def _count_link(self, view: View, this: _Open) -> None:
        self._check_limits(view, "links")
        this.is_link = True

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
            self._count_link(view, this)
            await _carry(talk, [*self._arrive, str(first.get("digest")), str(int(first.get("size") or 0))])
        elif kind == "visit":
            assert isinstance(first, dict)
            self._count_link(view, this)
            caller = self._caller_for(view, {"scope": first.get("scope"), "label": "visit"})
            await _carry(talk, _VISIT, await _visited(self._serve, caller, view, str(first.get("session"))))
        else:
            raise Unsupported(f"the service {str(kind)[:40]!a}", __version__, of="the node")


# The service `http`: ASGI events of one request or one WebSocket, one to one.


class _Served:
    def __init__(self, talk: Conversation, asked: dict[str, Any], caller: Caller, view: str) -> None:
        self._talk = talk
        self._contents = Contents(_MESSAGE_BYTES)
        self._gone = asyncio.Event()
        self._ending: asyncio.Future[None] | None = None
        self._events: asyncio.Queue[Message] = asyncio.Queue(maxsize=1)
        self._is_socket = asked["type"] == "websocket"
        headers = [
            (str(name).encode("latin-1", "replace"), str(value).encode("latin-1", "replace"))
            for name, value in asked.get("headers") or ()
        ]
        self._scope = _scope(str(asked.get("path")), caller, view)
        self._scope["query_string"] = str(asked.get("query") or "").encode("latin-1", "replace")
        self._scope["headers"] = [each for each in headers if each[0].lower() in HEADERS]
        self._scope["extensions"] = {LOST: self._gone, HANG_UP: self._hang_up}
        if self._is_socket:
            self._scope.update(type="websocket", scheme="wss")
            self._scope["subprotocols"] = [str(each) for each in asked.get("subprotocols") or ()]
            self._scope["extensions"]["websocket.http.response"] = {}
        else:
            self._scope["method"] = str(asked.get("method"))

    def _hang_up(self) -> None:
        """A part of an answer must not look like the whole: it ends without its last part."""
        self._ending = asyncio.ensure_future(self._talk.close())

    def over(self, _problem: Broken) -> None:
        """The exchange ended. `_hear` may not notice: it does not receive while the session accepts no input."""
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
        """The view's messages, as events. Their end is the end of the connection."""
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
        content = self._contents.add(*frame)
        if content is None:
            return None
        return {"type": "http.request" if "body" in content else "websocket.receive", **content}

    async def _send(self, event: Message) -> None:
        talk, kind = self._talk, event["type"]
        try:
            if kind.endswith(".body") or kind == "websocket.send":
                await talk.send_content(event)
            else:
                headers = as_text(event.get("headers", ()))
                plain = {name: event[name] for name in ("status", "code", "reason", "subprotocol") if name in event}
                await talk.send({"type": kind, "headers": headers, **plain})
        except Broken:
            raise ClientDisconnected from None


def _scope(path: str, caller: Caller, view: str) -> Scope:
    """The ASGI scope, as of a request over TLS from a known caller."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "https",
        "path": path,
        "raw_path": path.encode("utf-8", "replace"),
        "query_string": b"",
        "root_path": "",
        "headers": [],
        "client": None,
        "server": None,
        "extensions": {LOST: asyncio.Event(), HANG_UP: lambda: None},
        "state": {"caller": caller, "peer": f"view:{view}"},
    }


async def _visited(serve: Serve, caller: Caller, view: View, ref: str) -> dict[str, str]:
    """The variables of a far end for a session that the view names. Our own server looks it up, with the rights of that
    view."""
    if not ref or "/" in ref or len(ref) > _REFERENCE_CHARACTERS:
        raise NotFound(ref[:80])
    scope = {**_scope(f"/v1/sessions/{quote(ref)}", caller, view.name), "method": "GET"}
    status, row = await fetched(serve, scope)
    if status in (404, 410):
        raise NotFound(ref)
    if status != 200:
        problem = {"code": row.get("code"), "message": row.get("detail"), "fix": row.get("fix")}
        raise HoldfastError.from_wire(problem)
    visit = {"home": Home().path, "id": row["id"], "scope": caller.scope, "view": view.name, "node": view.node}
    return {VISIT_VARIABLE: jsontext.write(visit), ROLE_VARIABLE: "runner"}


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
        # asyncio reports its end only when its pipes have been read to their ends.
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_S):
                for pipe_end in (stdout, stderr):
                    while await pipe_end.read(_READ_BYTES):
                        pass
                await child.wait()


def far_end() -> list[str]:
    """The first words of a far end on this machine; the digest and the size of the code follow."""
    return [sys.executable, "-I", "-S", os.path.join(_PACKAGE, "places", "boot.py")]
