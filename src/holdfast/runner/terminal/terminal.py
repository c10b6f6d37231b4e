"""The terminal of a session: the PTY, the state of the screen, the keyboard, attached clients, and the size.

The order of one read: log, tracker, replies, clients. No client sees a byte that a reader of the log cannot read.
"""

from __future__ import annotations

from ...core import processes
from ...core.kernel_signals import NUMBERS
from ...core.loop import Alarm
from ...core.records import TTY
from ...core.vt.tracker import Tracker
from ...core.wire import Problem
from .. import status
from ..features.needs_input.feature import Looking
from ..streams import ENDED
from .attach import AttachedClient
from .keyboard import Keyboard
from .marks import MarkFile
from .pty import choose

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..endpoint import Client
    from ..session import Session
    from .keyboard import Part
    from .pty import Tty


# At most one SIGWINCH in this time, however fast a window is dragged.
_RESIZE_PAUSE_S = 0.05
_RESIZES_MAX = 1024


class Terminal:
    def __init__(self, session: Session, tty: Tty) -> None:
        asked, environment = session.spec["tty"], session.environment
        self._session = session
        self.log = session.log
        self.tty = tty
        self.tracker = Tracker(
            tty.rows,
            tty.cols,
            version=status.VERSION,
            colors=asked["colors"],
            colorfgbg=environment.get("COLORFGBG"),
            term=environment["TERM"],
            clipboard=asked["clipboard"],
        )
        self._marks = MarkFile(session.directory, session.runner_log.write)
        self._policy = asked["size_policy"]
        self._attachments: list[AttachedClient] = []
        self._last_client_number = 0
        self._touches = 0
        self._ring = ""
        # How often something was typed, and when a person last typed or resized, on the monotonic clock.
        self.inputs_count = 0
        self.person_at = float("-inf")
        # Called whenever the screen has been inspected.
        self.looked: Callable[[], None] = lambda: None
        # The latest changes of size, at most 1,024: offset, rows, columns, which client decided.
        self._resizes: list[tuple[int, int, int, str | None]] = []
        self.resizes_count = 0
        self._next_resize = Alarm(session.loop, self.settle_size)
        self.sized_by: str | None = None
        self._note_size()
        self._marks.keep(self.tracker.take_marks())
        self.begin()

    # Output.

    @property
    def first_offset(self) -> int:
        return self.log.first(TTY)

    @property
    def end_offset(self) -> int:
        return self.log.end(TTY)

    def on_output(self, chunk: bytes) -> None:
        """These bytes are in the log."""
        tracker = self.tracker
        tracker.feed(chunk)
        self._answer()
        marks = tracker.take_marks()
        if marks:
            self._marks.keep(marks)
        if self._attachments:
            offset = self.end_offset - len(chunk)
            for attachment in list(self._attachments):
                attachment.on_output(offset, chunk)
        self._looking.printed(chunk)

    def _answer(self) -> None:
        replies = self.tracker.take_replies()
        if replies:
            self.keyboard.answer(replies)

    def turn(self) -> None:
        """Send what changed in this turn of the loop, once."""
        if self._attachments and self.tracker.take_news():
            self.notify_all("mode")

    def command_left(self, *, may_come_again: bool) -> None:
        self._looking.stop()
        self.keyboard.abandon(ENDED)
        if not may_come_again:
            self.tty.close_slave()

    def begin(self) -> None:
        """An attempt begins. All attempts share one terminal."""
        session, asked = self._session, self._session.spec["tty"]
        self.keyboard = Keyboard(session.loop, self.tty, self.tracker, session.features.typed)
        self._looking = Looking(session.loop, self, session.tree, echoes=asked["echo"], prompts=asked.get("prompts"))

    def hang_up(self) -> None:
        """No other attempt follows: the rest of the output has an end."""
        self.tty.close_slave()
        self._session.outputs.read_buffered()

    def on_end_recorded(self) -> None:
        """The end is on record."""
        self._marks.end(self.tracker)
        for attachment in list(self._attachments):
            attachment.pump()

    def close(self) -> None:
        self.tty.close_slave()
        self.keyboard.abandon("the session is over")
        self._marks.close()

    # Clients.

    def attach(self, client: Client, request: dict[str, Any]) -> None:
        self._last_client_number += 1
        attachment = AttachedClient(self, client, f"c{self._last_client_number}", request)
        self._attachments.append(attachment)
        try:
            attachment.begin(request.get("from", "screen"))
        except BaseException:
            self._attachments.remove(attachment)
            raise
        client.attachment = attachment
        if attachment.backpressure:
            self._session.backpressure_changed()
        seen = request.get("terminal")
        if isinstance(seen, dict) and attachment.role == "control":
            self.tracker.client_colors(seen.get("foreground"), seen.get("background"))
            self._answer()
        for other in self._attachments:
            if other is not attachment:
                other.notify("clients")
                other.pump()
        attachment.pump()

    def gone(self, client: Client) -> None:
        left = client.attachment
        if not isinstance(left, AttachedClient):
            return
        client.attachment = None
        before = self.is_focused()
        self._attachments.remove(left)
        if left.backpressure:
            self._session.backpressure_changed()
        self.focus_changed(before)
        self.settle_size()
        self.notify_all("clients")

    @property
    def has_backpressure(self) -> bool:
        return any(attachment.backpressure for attachment in self._attachments)

    @property
    def is_far_behind(self) -> bool:
        """True if a client that the command waits for is too far behind."""
        return any(attachment.backpressure and attachment.is_far_behind for attachment in self._attachments)

    def caught_up(self) -> None:
        """A client that the command may be waiting for has read on."""
        self._session.outputs.look_again()

    def presences(self) -> list[dict[str, Any]]:
        return [attachment.presence() for attachment in self._attachments]

    def count_by_role(self) -> dict[str, int]:
        roles = [attachment.role for attachment in self._attachments]
        return {role: roles.count(role) for role in ("control", "observe")}

    def person_idle_s(self) -> float | None:
        """For how long no person with control typed or looked; None if no person has control."""
        idle = [each for each in (attachment.idle_s() for attachment in self._attachments) if each is not None]
        return round(min(idle), 1) if idle else None

    def ring(self, text: str) -> int:
        """Notify the attached people that something happened, here or elsewhere. Returns how many there are."""
        self._ring = text
        people = [attachment for attachment in self._attachments if attachment.is_person]
        for attachment in people:
            attachment.notify("bell")
            attachment.pump()
        return len(people)

    def notify_all(self, what: str) -> None:
        for attachment in list(self._attachments):
            attachment.notify(what)
            attachment.pump()

    def news(self, what: str) -> dict[str, Any]:
        """A frame about the current state."""
        if what == "mode":
            return {"type": "mode", "offset": self.tracker.offset, "state": self.tracker.snapshot()}
        if what == "bell":
            return {"type": "bell", "text": self._ring}
        return {"type": "clients", "clients": self.presences(), "sizes": self.sized_by}

    @property
    def is_printed_to(self) -> bool:
        """True if a process holds a writing end. After the exit that is a descendant of the command."""
        return self._session.outputs.are_open

    def exit_frame(self) -> dict[str, Any] | None:
        exit = self._session.exit
        if exit is None:
            return None
        facts = {part: exit[part] for part in ("code", "signal", "cause", "by")}
        return {"type": "exit", **facts, "output_complete": exit["complete"], "output_open": self.is_printed_to}

    def identity(self) -> dict[str, Any]:
        return {"path": self.tty.path, "device": self.tty.device}

    def facts(self) -> dict[str, Any]:
        """What `status` says of a terminal."""
        return {
            "size": [self.tty.rows, self.tty.cols],
            "clients": self.presences(),
            "title": self.tracker.title,
            "alt_screen": self.tracker.alt_screen,
            "replies_dropped": self.keyboard.replies_dropped,
            **self._looking.facts(),
        }

    def status(self) -> dict[str, Any]:
        return status.status(self._session)

    def plan(self, history_rows: int) -> dict[str, Any]:
        """The ranges of the log that restore the current screen. If old segments are being dropped, the ranges avoid
        those that are next: they would be gone before they are sent."""
        first = self.first_offset
        oldest = first + (self.end_offset - first) // 2 if first else 0
        plan = self._marks.plan(self.tracker, history_rows=history_rows, oldest=oldest)
        if any(self.log.has_gap(TTY, part["from"], part["to"]) for part in plan["ranges"]):
            plan["exact"] = False
        return plan

    def asks(self) -> dict[str, Any] | None:
        """What the command waits for, if it does."""
        needs: dict[str, Any] | None = self._looking.facts().get("needs_input")
        return needs

    def last_question(self) -> dict[str, Any] | None:
        """The same as the last look found it. A look can emit a signal: while one is emitted, none may begin."""
        return self._looking.last_question()

    def touch(self) -> int:
        self._touches += 1
        return self._touches

    # Focus.

    def is_focused(self) -> bool:
        return any(attachment.focused and attachment.role == "control" for attachment in self._attachments)

    def focus_changed(self, before: bool) -> None:
        now = self.is_focused()
        if now != before and self.tracker.focus_events and self.keyboard.is_open:
            self.keyboard.write(b"\x1b[I" if now else b"\x1b[O")

    # Input.

    def check_input(self, parts: object) -> tuple[int, list[str]]:
        """The size of the input, and warnings. What cannot be typed is refused as a whole, before its first byte."""
        if self._session.exit is not None or not self.keyboard.is_open:
            raise status.has_ended(self._session)
        if not isinstance(parts, list):
            raise Problem("bad-argument", "`parts` is a list of typed parts", argument="parts")
        return self.keyboard.check(parts)

    def type(self, parts: list[Part], size: int, author: str | None, taken: Callable[[bool, int], None]) -> None:
        self.note_input(author, size)
        self.keyboard.type(parts, taken)

    def interrupt(self, living: list[processes.Process]) -> None:
        """Type the interrupt key; if nothing can be typed, signal the foreground group."""
        if self.keyboard.interrupt():
            return
        foreground = self.tty.foreground()
        for process in living:
            if process.group == foreground:
                processes.send(process, NUMBERS["SIGINT"])

    def note_input(self, author: str | None, size: int) -> None:
        self.inputs_count += 1
        self._session.inputs.note(author, size, self.end_offset)
        self._looking.input()

    # Size.

    def settle_size(self) -> None:
        """Take the size that the clients want: the first change at once, later ones at intervals; the last one wins."""
        wanted = choose(self._policy, (attachment.sizing for attachment in self._attachments))
        if wanted is None:
            return
        (rows, cols), sizing = wanted
        if sizing.cell is not None:
            self.tracker.cell = sizing.cell
        self.sized_by = sizing.client
        if (rows, cols) != (self.tty.rows, self.tty.cols) and not self._next_resize.is_set:
            self._resize(rows, cols, sizing.cell)
            self._next_resize.set(_RESIZE_PAUSE_S)

    def resize(self, rows: int, cols: int) -> None:
        """Resize by a request: only if no client's size counts."""
        sizing = [each.sizing for each in self._attachments if each.sizing.control and each.sizing.visible]
        if self._policy != "fixed" and sizing:
            client = self.sized_by or sizing[-1].client
            message = f"client {client} controls the size of this terminal (policy {self._policy})"
            raise Problem("size-policy", message, policy=self._policy, client=client)
        self.sized_by = None
        if (rows, cols) != (self.tty.rows, self.tty.cols):
            self._resize(rows, cols, None)

    def _resize(self, rows: int, cols: int, cell: tuple[int, int] | None) -> None:
        # What was printed for the old size is read first, so that the redraw comes after the record.
        self._session.outputs.read_buffered()
        try:
            self.tty.resize(rows, cols, cell)
        except OSError:
            return  # hung up meanwhile
        self.tracker.resize(rows, cols)
        self._looking.resized()
        self._note_size()
        for attachment in list(self._attachments):
            attachment.pump()

    def _note_size(self) -> None:
        self.log.resize(TTY, self.tty.rows, self.tty.cols)
        self._resizes.append((self.end_offset, self.tty.rows, self.tty.cols, self.sized_by))
        self.resizes_count += 1
        del self._resizes[:-_RESIZES_MAX]

    def next_size_after(self, known: int) -> tuple[int, int, int, str | None, int] | None:
        """The first change of size after the first `known` ones, and its number."""
        forgotten = self.resizes_count - len(self._resizes)
        number = max(known, forgotten) + 1
        return None if number > self.resizes_count else (*self._resizes[number - forgotten - 1], number)

    def resizes_since(self, offset: int) -> list[tuple[int, int, int]]:
        """Those after an offset, and the one in force there."""
        before = [resize[:3] for resize in self._resizes if resize[0] <= offset]
        return before[-1:] + [resize[:3] for resize in self._resizes if resize[0] > offset]
