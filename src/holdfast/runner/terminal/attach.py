"""Attached clients: each is a cursor into the log, with at most one started frame.

At the end of the log it is handed the chunk just read; before that it reads the segments. Nothing is queued for it, so
a client that stops reading costs nothing and slows no other.
"""

from __future__ import annotations

import time

from ...core import clock, wire
from ...core.records import TTY
from ...core.wire import Problem
from .pty import Sizing, size_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..endpoint import Client
    from .terminal import Terminal


# One data frame from the log. Also what a client that lags costs in memory while it is sent.
_PIECE_BYTES = 256 << 10
# A terminal this far behind is shown the screen as it is now. One with backpressure never falls that far behind.
_LAG_MAX_BYTES = 4 << 20
_FAR_BEHIND_BYTES = 1 << 20
# A client above its share of the input queue is not read from until the command has caught up.
_SHARE_BYTES = 256 << 10
_LABEL_CHARACTERS = 256
_HISTORY_ROWS = 1000
_FOCUS = {b"\x1b[I": True, b"\x1b[O": False}


class AttachedClient:
    def __init__(self, terminal: Terminal, client: Client, id: str, request: dict[str, Any]) -> None:
        self._terminal = terminal
        self._client = client
        self._request = wire.number_of(request)
        self.id = id
        self.role = request.get("role") or "control"
        self._lag = request.get("lag") or "skip"
        # True if the command waits for this client, as it would for the reader of a pipe. The request calls it `hold`.
        self.backpressure = request.get("hold") is True
        rows = request.get("history_rows")
        self._history_rows: int = _HISTORY_ROWS if rows is None else rows
        self.kind = request.get("kind") or "cli"
        label = request.get("label")
        self.label = label[:_LABEL_CHARACTERS] if isinstance(label, str) else client.author
        self.sizing = Sizing(id, control=self.role == "control", visible=request.get("visible", True) is not False)
        self.sizing.touched = terminal.touch()
        # What it said at attach; it counts from its first `resize`.
        self.claim = size_of(request["size"]) if request.get("size") is not None else None
        self.focused = False
        self.attached_at = clock.now_text()
        self.last_input_at: str | None = None
        # When its user last typed or looked, on the monotonic clock.
        self._seen_at: float | None = None
        self._queued = 0
        self._ranges: list[list[int]] = []
        self._at = 0
        self._due: dict[str, bool] = {}
        # How many of the terminal's changes of size were sent to this client.
        self._resizes_sent = 0
        self._exit_sent = False
        self._leaving = False

    def presence(self) -> dict[str, Any]:
        size = self.sizing.size or self.claim
        return {
            "id": self.id,
            "kind": self.kind,
            "role": self.role,
            "label": self.label,
            "size": size and list(size),
            "visible": self.sizing.visible,
            "focused": self.focused,
            "attached_at": self.attached_at,
            "last_input_at": self.last_input_at,
        }

    @property
    def is_person(self) -> bool:
        return self.kind != "agent"

    def idle_s(self) -> float | None:
        """For how long its person neither typed nor looked; None for an agent or an observer."""
        if self.role != "control" or not self.is_person or self._seen_at is None:
            return None
        return 0.0 if self.focused else time.monotonic() - self._seen_at

    # Out.

    def on_output(self, offset: int, chunk: bytes) -> None:
        known = self._resizes_sent == self._terminal.resizes_count
        if self._at == offset and known and not self._ranges and not self._client.has_unsent:
            self._at += len(chunk)
            self._client.send_bytes(wire.data(offset, chunk))
        else:
            self.pump()

    def notify(self, what: str) -> None:
        """Notify the client that something other than the output has changed: `mode`, `clients`, `bell`. The frame
        is sent after the data it belongs to, with the state at that moment, and once however often it changed
        meanwhile."""
        if self._is_notified:
            self._due[what] = True

    @property
    def _is_notified(self) -> bool:
        """Nothing follows the exit, unless a descendant still prints."""
        return not self._exit_sent or self._terminal.is_printed_to

    def pump(self) -> None:
        """Send as long as the client accepts data."""
        while not self._client.closed and not self._client.has_unsent and self._send_next():
            pass
        if self.backpressure:
            self._terminal.caught_up()

    @property
    def is_far_behind(self) -> bool:
        return self._terminal.end_offset - self._at > min(_FAR_BEHIND_BYTES, self._terminal.log.piece_bytes)

    def leave(self) -> None:
        """The runner leaves: send what is there, then close the connection."""
        self._leaving = True
        self.pump()

    def begin(self, begin: object) -> None:
        terminal = self._terminal
        first, end = terminal.first_offset, terminal.end_offset
        if begin == "screen":
            self._start_over()
        elif begin == "now":
            self._init(terminal.tracker.ground)
        elif begin == "start":
            self._init(first)
        elif isinstance(begin, int) and not isinstance(begin, bool) and begin >= 0:
            if begin > end:
                raise Problem("offset-ahead", f"the log ends at {end}", end=end, offset=begin)
            if begin < first:
                self._gap(begin, first, "dropped")
                self._resume_at(first)
            elif self._lag == "skip" and end - begin > _LAG_MAX_BYTES:
                self._gap(begin, terminal.tracker.ground, "skipped")
                self._start_over()
            else:
                self._init(begin)
        else:
            raise Problem("bad-argument", "`from` is screen, start, now or an offset", argument="from")

    def _resume_at(self, offset: int) -> None:
        """After a gap: a terminal is shown the screen again, a raw reader gets what there is."""
        if self._lag == "skip":
            self._start_over()
        else:
            self._init(offset)

    def _start_over(self) -> None:
        plan = self._terminal.plan(self._history_rows)
        self._ranges = [[part["from"], part["to"]] for part in plan["ranges"] if part["from"] < part["to"]]
        self._init(self._terminal.tracker.ground, restore=plan["ranges"], exact=plan["exact"])

    def _init(self, at: int, restore: list[dict[str, Any]] | None = None, exact: bool = True) -> None:
        terminal = self._terminal
        self._at = at
        begin = min([part["from"] for part in restore or ()], default=at)
        self._due.clear()
        self._resizes_sent = terminal.resizes_count
        self._client.send(
            {
                "type": "init",
                "id": self._request,
                "client": self.id,
                "at": at,
                "size": [terminal.tty.rows, terminal.tty.cols],
                "state": terminal.tracker.snapshot(),
                "restore": restore or [],
                "resizes": terminal.resizes_since(begin),
                "exact": exact,
                "clients": terminal.presences(),
                "sizes": terminal.sized_by,
                "status": terminal.status(),
            }
        )

    def _send_next(self) -> bool:
        if self._ranges:
            return self._send_restore()
        size = self._terminal.next_size_after(self._resizes_sent) if self._is_notified else None
        if size is not None and size[0] <= self._at:
            return self._send_size(*size)
        if self._at < self._terminal.end_offset:
            return self._send_log(_PIECE_BYTES if size is None else min(_PIECE_BYTES, size[0] - self._at))
        if self._due:
            what = next(iter(self._due))
            del self._due[what]
            self._client.send(self._terminal.news(what))
            return True
        return self._send_end()

    def _send_restore(self) -> bool:
        current = self._ranges[0]
        begin, end = current
        at, payload = self._terminal.log.read(TTY, begin, min(_PIECE_BYTES, end - begin))
        payload = payload[: max(0, end - at)]
        if begin < self._terminal.first_offset:
            # Dropped in the meantime: another start is nearer now.
            self._gap(begin, end, "dropped")
            self._start_over()
            return True
        if at != begin or not payload:
            # The disk refused these, or they were removed: the screen is drawn from what there is.
            resumes_at = at if payload else end
            self._client.send({"type": "gap", "from": begin, "to": resumes_at, "reason": "disk"})
            current[0] = resumes_at
            if resumes_at >= end:
                self._ranges.pop(0)
            return True
        current[0] += len(payload)
        if current[0] >= end:
            self._ranges.pop(0)
        self._client.send_bytes(wire.data(at, payload))
        return True

    def _send_size(self, _offset: int, rows: int, cols: int, by: str | None, number: int) -> bool:
        """Send the new size; what was printed for it comes after."""
        self._resizes_sent = number
        self._client.send({"type": "size", "rows": rows, "cols": cols, "by": by})
        return True

    def _send_log(self, limit: int) -> bool:
        terminal = self._terminal
        end = terminal.end_offset
        if self._lag == "skip" and not self.backpressure and end - self._at > _LAG_MAX_BYTES:
            self._gap(self._at, terminal.tracker.ground, "skipped")
            self._start_over()
            return True
        at, payload = terminal.log.read(TTY, self._at, limit)
        if not payload or at > self._at:
            to = at if payload else end
            self._gap(self._at, to, "dropped" if self._at < terminal.first_offset else "disk")
            self._resume_at(to)
            return True
        self._at += len(payload)
        self._client.send_bytes(wire.data(at, payload))
        return True

    def _send_end(self) -> bool:
        exit = self._terminal.exit_frame()
        if exit is not None and not self._exit_sent:
            self._exit_sent = True
            self._client.send(exit)
            return True
        if self._leaving:
            self._client.close_after_sending()
        return False

    def _gap(self, begin: int, end: int, reason: str) -> None:
        self._ranges = []
        self._client.send({"type": "gap", "from": begin, "to": end, "reason": reason})

    # In.

    def receive(self, message: dict[str, Any] | tuple[int, bytes]) -> None:
        if isinstance(message, tuple):
            # A data frame is raw input; its offset is the number that `written` answers.
            number, unit = message
            request: dict[str, Any] = {"type": "input", "id": number or None, "parts": [{"raw": unit}]}
        else:
            request = message
        try:
            handler = _HANDLERS.get(request["type"])
            if handler is None:
                kind = request["type"][:80]
                raise Problem("unsupported", f"`{kind}` is not for an attached client", feature=kind)
            handler(self, request)
        except Problem as problem:
            self._client.send(wire.error(request, problem.code, str(problem), **problem.facts))

    def _input(self, request: dict[str, Any]) -> None:
        self._must_control()
        terminal = self._terminal
        parts: Any = request.get("parts")
        number = wire.number_of(request)
        focus = _FOCUS.get(_raw(parts))
        if focus is not None and terminal.tracker.focus_events:
            self._focus_is(focus)
            if number is not None:
                self._client.send({"type": "written", "id": number, "bytes": 0, "warnings": []})
            return
        size, warnings = terminal.check_input(parts)
        self.sizing.touched = terminal.touch()
        self.last_input_at = clock.now_text()
        self._seen_at = time.monotonic()
        self._note_person()
        terminal.settle_size()
        self._queued += size

        def taken(_whole: bool, count: int) -> None:
            self._queued -= size
            self._client.pause_reading(self._queued > _SHARE_BYTES)
            if number is not None:
                self._client.send({"type": "written", "id": number, "bytes": count, "warnings": warnings})

        terminal.type(parts, size, self._client.author, taken)
        self._client.pause_reading(self._queued > _SHARE_BYTES)

    def _resize(self, request: dict[str, Any]) -> None:
        self._must_control()
        if request.get("rows") is not None or request.get("cols") is not None:
            self.sizing.size = size_of([request.get("rows"), request.get("cols")])
            self.sizing.cell = _cell(request.get("cell"))
            self.sizing.touched = self._terminal.touch()
            self._note_person()
        if "visible" in request:
            self.sizing.visible = request["visible"] is not False
        self._terminal.settle_size()
        self._terminal.notify_all("clients")

    def _focus(self, request: dict[str, Any]) -> None:
        self._focus_is(request.get("focused") is not False)

    def _focus_is(self, focused: bool) -> None:
        """The command is told about the first gain and the last loss: one client that leaves never takes the focus from
        the rest."""
        before = self._terminal.is_focused()
        self.focused = focused
        self._seen_at = time.monotonic()
        if self.role == "control":
            self._terminal.focus_changed(before)
        self._terminal.notify_all("clients")

    def _observe(self, _request: dict[str, Any]) -> None:
        before = self._terminal.is_focused()
        self.role = "observe"
        self.sizing.control = False
        self._terminal.focus_changed(before)
        self._terminal.settle_size()
        self._terminal.notify_all("clients")

    def _detach(self, _request: dict[str, Any]) -> None:
        self._client.close_after_sending()

    def _ping(self, request: dict[str, Any]) -> None:
        self._client.send({**wire.reply(request), "status": self._terminal.status()})

    def _note_person(self) -> None:
        if self.is_person:
            self._terminal.person_at = time.monotonic()

    def _must_control(self) -> None:
        if self.role != "control":
            raise Problem("observe-only", "this client observes: it can neither type nor resize", client=self.id)


_HANDLERS = {
    "input": AttachedClient._input,
    "resize": AttachedClient._resize,
    "focus": AttachedClient._focus,
    "observe": AttachedClient._observe,
    "detach": AttachedClient._detach,
    "ping": AttachedClient._ping,
}


def _raw(parts: Any) -> bytes:
    """The bytes of a call that is one part of raw input."""
    alone = parts[0] if isinstance(parts, list) and len(parts) == 1 else None
    raw = alone.get("raw") if isinstance(alone, dict) else None
    return raw if isinstance(raw, bytes) else b""


def _cell(value: object) -> tuple[int, int] | None:
    if isinstance(value, list) and len(value) == 2 and all(type(each) is int and 1 <= each <= 1000 for each in value):
        return value[0], value[1]
    return None
