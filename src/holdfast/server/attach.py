"""One client that is attached over a WebSocket, and the messages of both sides.

Nothing is queued for it. The bytes that it has not shown yet are counted; above a limit its runner is not read, so that
a client that falls behind gets a gap and the screen again, from the runner.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, NamedTuple, Protocol

from starlette.websockets import WebSocketDisconnect

from ..core import wire
from ..core.vt.cursor import COLS_MAX, ROWS_MAX
from ..errors import BadArgument, BadRequest, HoldfastError, NotFound, Removed, Unreachable
from ..model.events import Bell, Clients, Data, Exit, Gap, Init, Mode, Refused, Size, Written
from ..model.options import CHOICE, NUMBER, SWITCH, TEXT
from ..sessions import inputs
from ..sessions.segments import STREAMS
from ..sessions.start_request import check_size
from ..terminal.attached import Restored
from .endpoints import read_query, takes
from .observers import Observing
from .responses import LOST, PIECE_BYTES, problem

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Literal

    from starlette.datastructures import QueryParams
    from starlette.websockets import WebSocket

    from ..model.events import Event
    from ..sessions.aio import AsyncSession
    from ..sessions.attach import AsyncAttachment
    from .app import App
    from .observers import Feeds

    Role = Literal["control", "observe"]


# What a client asks for when it attaches, and with each message: the fields by their names and limits.


# A screen with more is not sent in one message.
_HISTORY_ROWS_MAX = 10_000
_OFFSET_MAX = 1 << 53
_WHAT = ("data", "b64", "keys", "paste", "submit")
# Besides these, an input has an `id`.
_BESIDE = {"keys": ("delay_ms",), "paste": ("bracketed", "raw", "piece"), "submit": ("enter_delay_ms",)}
_FIELDS: dict[str, tuple[str, ...]] = {
    "resize": ("rows", "cols", "cell", "visible"),
    "focus": ("focused",),
    "observe": (),
    "detach": (),
    "ack": ("offset",),
    "ping": ("t",),
}


_QUERY = (
    takes("from", TEXT, "screen (default), start, now, or an offset to continue from.", high=16),
    takes("history_rows", NUMBER, "Rows above the first screen.", high=_HISTORY_ROWS_MAX),
    takes("lag", CHOICE, "What a client that is far behind gets: on pipes all there is.", words=("skip", "exact")),
    takes("stream", CHOICE, "Of pipes: stdout (default) or stderr.", words=STREAMS),
    takes("rows", NUMBER, "Of the client's terminal.", low=1, high=ROWS_MAX),
    takes("cols", NUMBER, "Of the client's terminal.", low=1, high=COLS_MAX),
    takes("visible", SWITCH, "Whether a person can see it."),
    takes("role", CHOICE, "What the client may do; a ticket has its own.", words=("control", "observe")),
    takes("ticket", TEXT, "Instead of a token."),
)


class AttachParams(NamedTuple):
    """The query of an attach."""

    since: Literal["screen", "start", "now"] | int
    stream: str
    history_rows: int | None
    lag: Literal["skip", "exact"]
    size: tuple[int, int] | None
    visible: bool
    role: Role | None


def attach_params(given: QueryParams, *, tty: bool) -> AttachParams:
    query = read_query(given, _QUERY)
    stream = query.get("stream", "tty" if tty else "stdout")
    if (stream == "tty") != tty:
        has = "tty alone" if tty else "stdout and stderr"
        raise BadArgument("stream", f"the session has {has}", "leave it out")
    since = query.get("from", "screen")
    if since not in ("screen", "start", "now"):
        if not (since.isascii() and since.isdigit() and int(since) < _OFFSET_MAX):
            raise BadArgument("from", f"{since!a} is neither screen, start, now nor an offset")
        since = int(since)
    rows, cols = query.get("rows"), query.get("cols")
    if (rows is None) != (cols is None):
        raise BadArgument("rows" if rows is None else "cols", "is missing", "a size has both")
    size = None if rows is None or cols is None else (rows, cols)
    lag, visible = query.get("lag", "skip" if tty else "exact"), query.get("visible", True)
    return AttachParams(since, stream, query.get("history_rows"), lag, size, visible, query.get("role"))


def check_fields(message: Message) -> None:
    """Check that the type exists and has these fields. A misspelt field would otherwise be ignored silently."""
    kind = message["type"]
    if kind == "input":
        given = [name for name in _WHAT if name in message]
        if len(given) != 1:
            raise BadRequest(f"an input has exactly one of {', '.join(_WHAT)}", "send one message for each")
        known: tuple[str, ...] = ("id", given[0], *_BESIDE.get(given[0], ()))
    elif kind in _FIELDS:
        known = _FIELDS[kind]
    else:
        raise BadRequest(f"no message is called {kind[:40]!r}", f"one of input, {', '.join(_FIELDS)}")
    unknown = sorted(message.keys() - {"type", *known})
    if unknown:
        fix = f"it has {', '.join(known)}" if known else "it has none"
        raise BadRequest(f"`{kind}` has no field {unknown[0][:40]!r}", fix)


def input_of(message: Message, enter_delay_ms: int) -> bytes | list[dict[str, Any]]:
    """The bytes, or the parts that the runner encodes by the modes in force when they are written."""
    if "data" in message:
        data = message["data"]
        return data if isinstance(data, bytes) else text_of(message, "data").encode("utf-8", "surrogatepass")
    if "b64" in message:
        raw = wire.from_text(message["b64"])
        if raw is None:
            raise BadArgument("b64", "is not base64 with its padding")
        return raw
    if "keys" in message:
        return inputs.of_keys(keys_of(message), message.get("delay_ms", 0))
    if "paste" in message:
        (part,) = inputs.of_paste(
            text_of(message, "paste"), message.get("bracketed", "auto"), flag_of(message, "raw", default=False)
        )
        return [{**part, "piece": message["piece"]} if "piece" in message else part]
    return inputs.of_submit(text_of(message, "submit"), message.get("enter_delay_ms", enter_delay_ms))


def cell_of(message: Message) -> tuple[int, int] | None:
    """The width and height of a cell in pixels."""
    cell = message.get("cell")
    if cell is None:
        return None
    if not isinstance(cell, list) or len(cell) != 2 or not all(type(each) is int for each in cell):
        raise BadArgument("cell", "is not a width and height in pixels", "such as [9, 18]")
    return cell[0], cell[1]


def flag_of(message: Message, name: str, *, default: bool) -> bool:
    value = message.get(name, default)
    if not isinstance(value, bool):
        raise BadArgument(name, "is neither true nor false")
    return value


def whole_number(message: Message, name: str) -> int:
    value = message.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _OFFSET_MAX:
        raise BadArgument(name, f"{str(value)[:40]!r} is not a whole number below 2^53")
    return value


def keys_of(message: Message) -> list[str]:
    keys = message["keys"]
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise BadArgument("keys", "is not a list of key names", 'such as ["C-c", "Enter"]')
    return keys


def text_of(message: Message, name: str) -> str:
    value = message[name]
    if not isinstance(value, str):
        raise BadArgument(name, "is not text")
    return value


# The two encodings of the messages between an attached client and the server, without any I/O.
#
# `holdfast.v1` has the frames of the runners' protocol, one a binary message and without their length;
# `holdfast.v1.json` has text, with bytes in base64. The facts are the same, so the code that serves a client knows
# neither.


if TYPE_CHECKING:
    # Bytes may stand in it; a `data` message has an `offset` and `data`, and input its bytes under `data` too.
    Message = dict[str, Any]

_FIX = "the types of messages and their fields are in docs/guides/attach-over-websocket.md"
# In JSON some frames have other names.
_SPELLED = {"mode": "mode_changed", "size": "resized", "exit": "session_ended"}


class Dialect(Protocol):
    """`spell` a message for the client, and `read` one of its own; BadRequest for an invalid one."""

    name: str

    def spell(self, message: Message) -> str | bytes: ...

    def read(self, received: str | bytes) -> Message: ...


class Binary:
    name = "holdfast.v1"

    def spell(self, message: Message) -> bytes:
        if message["type"] == "data":
            return wire.data(message["offset"], message["data"])[wire.LENGTH_BYTES :]
        return wire.control(_in_text(message))[wire.LENGTH_BYTES :]

    def read(self, received: str | bytes) -> Message:
        if isinstance(received, str):
            raise BadRequest(f"{self.name} has binary messages only", _FIX)
        try:
            frame = wire.frame(received)
        except wire.BadFrame as problem:
            raise BadRequest(str(problem), _FIX) from None
        if isinstance(frame, dict):
            return frame
        number, data = frame
        return {"type": "input", "id": number or None, "data": data}


class Json:
    name = "holdfast.v1.json"

    def spell(self, message: Message) -> str:
        spelled = {**_in_text(message), "type": _SPELLED.get(message["type"], message["type"])}
        if message["type"] == "exit":
            spelled["exit_code"] = spelled.pop("code")
        # In ASCII, because half characters of a title or a path cannot be sent otherwise.
        return json.dumps(spelled, separators=(",", ":"))

    def read(self, received: str | bytes) -> Message:
        if isinstance(received, bytes):
            raise BadRequest(f"{self.name} has text messages only", _FIX)
        try:
            return wire.message(received.encode("utf-8", "surrogatepass"))
        except wire.BadFrame as problem:
            raise BadRequest(str(problem), _FIX) from None


DIALECTS: tuple[Dialect, ...] = (Binary(), Json())


def chosen(offered: Iterable[str]) -> Dialect:
    """The first dialect that a client offers and we support."""
    known = {dialect.name: dialect for dialect in DIALECTS}
    for name in offered:
        if name in known:
            return known[name]
    names = " or ".join(known)
    raise BadRequest("no supported subprotocol", f"offer {names} in Sec-WebSocket-Protocol")


def _in_text(message: Message) -> Message:
    return {key: wire.as_text(value) if isinstance(value, bytes) else value for key, value in message.items()}


# One client that is attached over a WebSocket: a cursor into the log like any other, with this server as its host.


# In base64 it is within the default message limit of clients.
_SCREEN_BYTES = 700 << 10
_LEAVE_S = 1.0
# A person waits for it: a runner that does not answer within this time is reported as unreachable.
_REACHED_S = 4.0

_ENDED, _LEAVING, _REVOKED, _FAILED, _REMOVED = 1000, 1001, 1008, 1011, 4404


async def attend(
    app: App, socket: WebSocket, session: AsyncSession, params: AttachParams, role: Role, label: str
) -> None:
    """From the upgrade, which is refused if nothing can be shown, to the end of the connection."""
    dialect = chosen(socket.scope["subprotocols"])
    try:
        async with asyncio.timeout(_REACHED_S):
            attachment = await _attached(session, params, role, label, app.feeds)
    except TimeoutError:
        raise Unreachable(session.id, session.runner_pid, _REACHED_S) from None
    async with attachment:
        await socket.accept(dialect.name)
        await Viewer(app, socket, dialect, session, attachment, params, role).run(socket.state.caller.revoked)


async def _attached(
    session: AsyncSession, params: AttachParams, role: Role, label: str, feeds: Feeds
) -> AsyncAttachment | Observing:
    feed = await feeds.join(session, params.stream) if role == "observe" else None
    if feed is None:
        return await session.attach(
            role=role,
            since=params.since,
            history_rows=params.history_rows,
            lag=params.lag,
            size=params.size,
            kind="web",
            label=label,
            visible=params.visible,
        )
    observing = Observing(feeds, feed, params)
    try:
        await observing.begin(params.since)
    except BaseException:
        await feeds.leave(feed)
        raise
    return observing


class Viewer:
    """The two directions of one connection."""

    def __init__(
        self,
        app: App,
        socket: WebSocket,
        dialect: Dialect,
        session: AsyncSession,
        attachment: AsyncAttachment | Observing,
        params: AttachParams,
        role: Role,
    ) -> None:
        self._app = app
        self._metrics = app.metrics
        self._socket = socket
        self._dialect = dialect
        self._session = session
        self._attachment = attachment
        self._spelled = attachment.spelled if isinstance(attachment, Observing) else _spelled
        self._since, self._stream = params.since, params.stream
        self._role = role
        # The amount that a browser can have received and not drawn without becoming sluggish.
        self._unacked_bytes = app.config.server_unacked_bytes
        self._restored: Restored | None = None
        self._begun = asyncio.Event()
        # By the number that the runner answers: the client's own id for it.
        self._inputs: dict[int, object] = {}
        self._sent_to = self._shown_to = 0
        self._shown = asyncio.Event()
        self._is_leaving = False
        self._all_sent = asyncio.Event()

    async def run(self, revoked: asyncio.Event) -> None:
        # Set also while we do not read, because the session takes no more input.
        lost: asyncio.Event = self._socket.scope["extensions"][LOST]
        ways = (
            self._send_all(),
            self._receive_all(),
            _when(self._app.leaving, _LEAVING, "shutting-down"),
            _when(lost, None, ""),
            _when(revoked, _REVOKED, "revoked"),
            self._begin_in_time(),
        )
        tasks = [asyncio.ensure_future(way) for way in ways]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            code, reason = next(task for task in tasks if task in done).result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if code is not None:
            await self._close(code, reason)

    async def _begin_in_time(self) -> tuple[int | None, str]:
        """End a connection whose first message cannot be sent: nothing is shown, and its client does not read."""
        most = self._app.config.server_attach_time
        try:
            async with asyncio.timeout(most):
                await self._begun.wait()
        except TimeoutError:
            return _FAILED, f"timeout (server.attach_time is {most:g})"
        await asyncio.Event().wait()
        raise AssertionError

    async def _close(self, code: int, reason: str) -> None:
        try:
            await self._socket.close(code, reason)
        except (RuntimeError, WebSocketDisconnect):
            pass  # the other end was faster

    # From the session to the client.

    async def _send_all(self) -> tuple[int | None, str]:
        try:
            while True:
                events = await self._attachment.wait()
                if not events:
                    self._all_sent.set()
                    return _ENDED, "detached" if self._is_leaving else "ended"
                for event in events:
                    await self._pass_on(event)
        except WebSocketDisconnect:
            return None, ""
        except HoldfastError as error:
            await self._send_message(error_message(error))
            return (_REMOVED if isinstance(error, (Removed, NotFound)) else _FAILED), error.code

    async def _pass_on(self, event: Event) -> None:
        if isinstance(event, Written):
            self._metrics.add("input_bytes_total", "web", event.bytes)
        if self._is_leaving:
            return
        restored = self._restored
        if isinstance(event, Init):
            self._restored = Restored(event)
            await self._begin_if_whole()
        elif isinstance(event, Data):
            if restored is not None:
                restored.take(event)
                await self._begin_if_whole()
            else:
                await self._send_data(event)
        elif isinstance(event, Gap):
            if restored is not None and restored.miss(event):
                await self._begin_if_whole()
            else:
                self._metrics.add("ws_skips_total", count=event.reason == "skipped")
                await self._send_message({"type": "gap", "from": event.begin, "to": event.end, "reason": event.reason})
        elif isinstance(event, Exit):
            await self._send_message(await self._exit(event))
        elif not isinstance(event, Written) or event.id in self._inputs:
            await self._send_message(self._message(event))

    async def _begin_if_whole(self) -> None:
        restored = self._restored
        if restored is None or not restored.is_whole:
            return
        self._restored = None
        init = restored.init
        # The client already has what scrolled out, from the first time.
        rows = 0 if self._begun.is_set() else self._attachment.history_rows
        # For a terminal of the session's own size, which `init` gives: what follows is output for that size.
        tty = self._stream == "tty"
        screen = await asyncio.to_thread(restored.paint, init.size, rows, _SCREEN_BYTES) if tty else b""
        self._sent_to = self._shown_to = init.at
        if isinstance(self._attachment, Observing):
            end, state = self._attachment.end, self._attachment.state
        else:
            seen = await self._session.refresh()
            end, state = seen.ends.get(self._stream, init.at), seen.state
        resumed = not self._begun.is_set() and init.at == self._since and not init.restore
        await self._send_message(
            {
                "type": "init",
                "at": init.at,
                "screen": screen or None,
                "exact": init.exact,
                "stream": self._stream,
                "size": list(init.size) if tty else None,
                "modes": None if init.state is None else modes(init.state),
                "title": None if init.state is None else init.state["labels"]["title"],
                "role": self._role,
                "client": init.client_id,
                "clients": init.clients,
                "instance": self._app.instance,
                "resumed": resumed,
                "end": max(end, init.at),
                "state": state,
            }
        )
        self._begun.set()

    async def _send_data(self, data: Data) -> None:
        for at in range(0, len(data.data), PIECE_BYTES):
            piece = data.data[at : at + PIECE_BYTES]
            while self._sent_to + len(piece) - self._shown_to > self._unacked_bytes:
                self._shown.clear()
                await self._shown.wait()
                if self._is_leaving:
                    return
            self._sent_to = data.offset + at + len(piece)
            await self._send(self._spelled(self._dialect, data.offset + at, piece))
            self._metrics.add("ws_sent_bytes_total", count=len(piece))

    def _message(self, event: Event) -> Message:
        if isinstance(event, Mode):
            return {"type": "mode", "offset": event.offset, "modes": modes(event.state)}
        if isinstance(event, Size):
            return {"type": "size", "rows": event.rows, "cols": event.cols, "by": event.by}
        if isinstance(event, Clients):
            return {"type": "clients", "clients": event.clients, "sizes": event.sizes_by}
        if isinstance(event, Written):
            return {"type": "written", "id": self._inputs.pop(event.id), "bytes": event.bytes}
        if isinstance(event, Refused):
            if event.id in self._inputs:
                return {"type": "written", "id": self._inputs.pop(event.id), "problem": problem(event.error)}
            return error_message(event.error)
        assert isinstance(event, Bell)
        return {"type": "bell", "text": event.text}

    async def _exit(self, event: Exit) -> Message:
        seen = await self._session.refresh()
        return {
            "type": "exit",
            "code": event.code,
            "signal": event.signal,
            "cause": event.cause,
            "by": None if seen.exit is None else seen.exit.by,
            "status": seen.status,
            "end": seen.ends.get(self._stream),
            "output_complete": event.output_complete,
            "output_open": event.output_open,
            "survivors": [] if seen.exit is None else seen.exit.to_json()["survivors"],
        }

    async def _send_message(self, message: Message) -> None:
        await self._send(self._dialect.spell(message))

    async def _send(self, spelled: str | bytes) -> None:
        if isinstance(spelled, str):
            await self._socket.send_text(spelled)
        else:
            await self._socket.send_bytes(spelled)

    # From the client to the session.

    async def _receive_all(self) -> tuple[int | None, str]:
        try:
            while True:
                received = await self._socket.receive()
                if received["type"] == "websocket.disconnect":
                    return None, ""
                # Everything else is sent to the client after the screen.
                await self._begun.wait()
                text = received.get("text")
                if await self._receive(received["bytes"] if text is None else text):
                    return _ENDED, "detached"
        except WebSocketDisconnect:
            return None, ""

    async def _receive(self, received: str | bytes) -> bool:
        """Returns whether the client wants to leave."""
        message: Message = {}
        try:
            message = self._dialect.read(received)
            check_fields(message)
            if message["type"] == "detach":
                await self._detach()
                return True
            await self._act(message)
        except HoldfastError as error:
            if message.get("type") == "input" and message.get("id") is not None:
                await self._send_message({"type": "written", "id": message["id"], "problem": problem(error)})
            else:
                await self._send_message(error_message(error))
        return False

    async def _act(self, message: Message) -> None:
        kind = message["type"]
        attachment = self._attachment
        if kind == "ack":
            self._shown_to = max(self._shown_to, min(whole_number(message, "offset"), self._sent_to))
            self._shown.set()
            return
        if kind == "ping":
            await self._send_message({"type": "pong", "t": message.get("t")})
            return
        if kind == "input":
            typed = input_of(message, round(self._app.config.terminal_enter_delay * 1000))
            number = attachment.send(typed) if isinstance(typed, bytes) else attachment.send_parts(typed)
            if message.get("id") is not None:
                self._inputs[number] = message["id"]
        elif kind == "resize":
            visible = flag_of(message, "visible", default=True)
            rows, cols = check_size((whole_number(message, "rows"), whole_number(message, "cols")))
            attachment.resize(rows, cols, cell=cell_of(message), visible=visible)
        elif kind == "focus":
            attachment.focus(flag_of(message, "focused", default=True))
        else:
            attachment.observe()
            self._role = "observe"
        # What the session does not accept is not read from the client either.
        await attachment.drain()

    async def _detach(self) -> None:
        """The runner hangs up once it has read what was typed before; what it sends meanwhile is dropped."""
        self._is_leaving = True
        self._shown.set()
        try:
            self._attachment.detach()
            async with asyncio.timeout(_LEAVE_S):
                await self._attachment.drain()
                await self._all_sent.wait()
        except (HoldfastError, TimeoutError):
            pass  # the runner is gone


async def _when(happened: asyncio.Event, code: int | None, reason: str) -> tuple[int | None, str]:
    await happened.wait()
    return code, reason


def _spelled(dialect: Dialect, offset: int, data: bytes) -> str | bytes:
    return dialect.spell({"type": "data", "offset": offset, "data": data})


def error_message(error: HoldfastError) -> Message:
    return {**problem(error), "type": "error", "code": error.code}


_MOUSE = {9: "press", 1000: "buttons", 1002: "drag", 1003: "any"}


def modes(state: dict[str, Any]) -> dict[str, Any]:
    """The part of a terminal's state that a client acts on."""
    dec = set(state["modes"]["dec"])
    screen = 1 if state["alt"] else 0
    return {
        "appCursorKeys": 1 in dec,
        "appKeypad": 66 in dec,
        "bracketedPasteMode": 2004 in dec,
        "focusEvents": 1004 in dec,
        "mouse": next((name for number, name in sorted(_MOUSE.items(), reverse=True) if number in dec), None),
        "alternateScreen": state["alt"],
        "cursorVisible": 25 in dec,
        "kittyKeyboard": state["keys"]["kitty"][screen][-1],
    }
