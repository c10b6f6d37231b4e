"""One client that is attached over a WebSocket: a cursor into the log like any other, with this server as its host.

Nothing is queued for it. What it has not shown yet is counted, and beyond a limit its runner is simply not read, so
that one which falls behind is given a gap and the screen anew, by the runner.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.websockets import WebSocketDisconnect

from ..errors import HoldfastError, NotFound, Removed, Unreachable
from ..host.tty import check_size
from ..model.attach import Bell, Clients, Data, Exit, Gap, Init, Mode, Refused, Size, Written
from ..terminal.restored import Restored
from . import wishes
from .dialects import chosen
from .gate import LOST
from .problems import problem, refuse

if TYPE_CHECKING:
    from typing import Any, Literal

    from starlette.websockets import WebSocket

    from ..host.aio import AsyncSession
    from ..host.attach import AsyncAttachment
    from ..model.attach import Event
    from .dialects import Dialect, Message

    Role = Literal["control", "observe"]

# What a browser can have received and not drawn without becoming sluggish.
_UNSHOWN_BYTES = 512 << 10
_DATA_BYTES = 64 << 10
# In base64 it is within what clients take for one message by default.
_SCREEN_BYTES = 700 << 10
_LEAVE_S = 1.0
# A person waits for it: a runner that does not answer within this is said to be unreachable.
_REACHED_S = 4.0

_ENDED, _LEAVING, _FAILED, _REMOVED = 1000, 1001, 1011, 4404


async def attend(
    socket: WebSocket,
    session: AsyncSession,
    *,
    role: Role,
    label: str,
    instance: str,
    enter_delay_ms: int,
    leaving: asyncio.Event,
) -> None:
    """From the upgrade, which is refused where nothing can be shown, to the end of the connection."""
    try:
        dialect = chosen(socket.scope["subprotocols"])
        wished = wishes.wishes_of(socket.query_params)
        async with asyncio.timeout(_REACHED_S):
            attachment = await session.attach(
                role=role,
                since=wished.since,
                history_rows=wished.history_rows,
                lag=wished.lag,
                size=wished.size,
                kind="web",
                label=label,
                visible=wished.visible,
            )
    except TimeoutError:
        await refuse(socket, Unreachable(session.id, session.runner_pid, _REACHED_S))
        return
    except HoldfastError as error:
        await refuse(socket, error)
        return
    async with attachment:
        await socket.accept(dialect.name)
        await Viewer(socket, dialect, session, attachment, wished, role, instance, enter_delay_ms).run(leaving)


class Viewer:
    """The two directions of one connection."""

    def __init__(
        self,
        socket: WebSocket,
        dialect: Dialect,
        session: AsyncSession,
        attachment: AsyncAttachment,
        wished: wishes.Wishes,
        role: Role,
        instance: str,
        enter_delay_ms: int,
    ) -> None:
        self._socket = socket
        self._dialect = dialect
        self._session = session
        self._attachment = attachment
        self._since = wished.since
        self._role = role
        self._instance = instance
        self._enter_delay_ms = enter_delay_ms
        self._restored: Restored | None = None
        self._begun = asyncio.Event()
        # By the number that the runner answers: what the client calls it.
        self._inputs: dict[int, object] = {}
        self._sent_to = self._shown_to = 0
        self._shown = asyncio.Event()
        self._is_leaving = False
        self._told_all = asyncio.Event()

    async def run(self, leaving: asyncio.Event) -> None:
        # Told also while we do not listen, because the session takes no more of what the client typed.
        lost: asyncio.Event = self._socket.scope["extensions"][LOST]
        ways = (self._tell_all(), self._hear_all(), _when(leaving, _LEAVING, "shutting-down"), _when(lost, None, ""))
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

    async def _close(self, code: int, reason: str) -> None:
        try:
            await self._socket.close(code, reason)
        except (RuntimeError, WebSocketDisconnect):
            pass  # it was quicker

    # What the session tells.

    async def _tell_all(self) -> tuple[int | None, str]:
        try:
            while True:
                events = await self._attachment.wait()
                if not events:
                    self._told_all.set()
                    return _ENDED, "detached" if self._is_leaving else "ended"
                for event in events:
                    await self._pass_on(event)
        except WebSocketDisconnect:
            return None, ""
        except HoldfastError as error:
            await self._say(_error(error))
            return (_REMOVED if isinstance(error, (Removed, NotFound)) else _FAILED), error.code

    async def _pass_on(self, event: Event) -> None:
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
                await self._say({"type": "gap", "from": event.begin, "to": event.end, "reason": event.reason})
        elif isinstance(event, Exit):
            await self._say(await self._exit(event))
        elif not isinstance(event, Written) or event.id in self._inputs:
            await self._say(self._message(event))

    async def _begin_if_whole(self) -> None:
        restored = self._restored
        if restored is None or not restored.is_whole:
            return
        self._restored = None
        init = restored.init
        # What scrolled out it has from the first time.
        rows = 0 if self._begun.is_set() else self._attachment.history_rows
        # For a terminal of the session's own size, which `init` tells: what follows is output for that size.
        screen = await asyncio.to_thread(restored.paint, init.size, rows, _SCREEN_BYTES)
        self._sent_to = self._shown_to = init.at
        seen = await self._session.refresh()
        resumed = not self._begun.is_set() and init.at == self._since and not init.restore
        await self._say(
            {
                "type": "init",
                "at": init.at,
                "screen": screen or None,
                "exact": init.exact,
                "size": list(init.size),
                "modes": None if init.state is None else modes(init.state),
                "title": None if init.state is None else init.state["labels"]["title"],
                "role": self._role,
                "client": init.client_id,
                "clients": init.clients,
                "instance": self._instance,
                "resumed": resumed,
                "end": seen.ends.get("tty", init.at),
                "state": seen.state,
            }
        )
        self._begun.set()

    async def _send_data(self, data: Data) -> None:
        for at in range(0, len(data.data), _DATA_BYTES):
            piece = data.data[at : at + _DATA_BYTES]
            while self._sent_to + len(piece) - self._shown_to > _UNSHOWN_BYTES:
                self._shown.clear()
                await self._shown.wait()
                if self._is_leaving:
                    return
            self._sent_to = data.offset + at + len(piece)
            await self._say({"type": "data", "offset": data.offset + at, "data": piece})

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
            return _error(event.error)
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
            "end": seen.ends.get("tty"),
            "output_complete": event.output_complete,
            "output_open": event.output_open,
            "survivors": [] if seen.exit is None else seen.exit.to_json()["survivors"],
        }

    async def _say(self, message: Message) -> None:
        spelled = self._dialect.spell(message)
        if isinstance(spelled, str):
            await self._socket.send_text(spelled)
        else:
            await self._socket.send_bytes(spelled)

    # What the client says.

    async def _hear_all(self) -> tuple[int | None, str]:
        try:
            while True:
                received = await self._socket.receive()
                if received["type"] == "websocket.disconnect":
                    return None, ""
                # Whatever is said to it comes behind the screen.
                await self._begun.wait()
                text = received.get("text")
                if await self._hear(received["bytes"] if text is None else text):
                    return _ENDED, "detached"
        except WebSocketDisconnect:
            return None, ""

    async def _hear(self, received: str | bytes) -> bool:
        """Whether it wants to leave."""
        message: Message = {}
        try:
            message = self._dialect.read(received)
            wishes.check(message)
            if message["type"] == "detach":
                await self._detach()
                return True
            await self._obey(message)
        except HoldfastError as error:
            if message.get("type") == "input" and message.get("id") is not None:
                await self._say({"type": "written", "id": message["id"], "problem": problem(error)})
            else:
                await self._say(_error(error))
        return False

    async def _obey(self, message: Message) -> None:
        kind = message["type"]
        attachment = self._attachment
        if kind == "ack":
            self._shown_to = max(self._shown_to, min(wishes.whole(message, "offset"), self._sent_to))
            self._shown.set()
            return
        if kind == "ping":
            await self._say({"type": "pong", "t": message.get("t")})
            return
        if kind == "input":
            typed = wishes.input_of(message, self._enter_delay_ms)
            number = attachment.send(typed) if isinstance(typed, bytes) else attachment.send_parts(typed)
            if message.get("id") is not None:
                self._inputs[number] = message["id"]
        elif kind == "resize":
            visible = wishes.flag(message, "visible", default=True)
            rows, cols = check_size((wishes.whole(message, "rows"), wishes.whole(message, "cols")))
            attachment.resize(rows, cols, cell=wishes.cell_of(message), visible=visible)
        elif kind == "focus":
            attachment.focus(wishes.flag(message, "focused", default=True))
        else:
            attachment.observe()
            self._role = "observe"
        # What the session does not take is not read from the client either.
        await attachment.drain()

    async def _detach(self) -> None:
        """The runner hangs up once it has read what was typed before, and what it says meanwhile is for nobody."""
        self._is_leaving = True
        self._shown.set()
        try:
            self._attachment.detach()
            async with asyncio.timeout(_LEAVE_S):
                await self._attachment.drain()
                await self._told_all.wait()
        except (HoldfastError, TimeoutError):
            pass  # there is nobody to take leave of


async def _when(happened: asyncio.Event, code: int | None, reason: str) -> tuple[int | None, str]:
    await happened.wait()
    return code, reason


def _error(error: HoldfastError) -> Message:
    return {**problem(error), "type": "error", "code": error.code}


_MOUSE = {9: "press", 1000: "buttons", 1002: "drag", 1003: "any"}


def modes(state: dict[str, Any]) -> dict[str, Any]:
    """What a client acts on, of a terminal's state."""
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
