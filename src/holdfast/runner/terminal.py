"""The terminal half of a session: the PTY, what its output made of the screen, who types, who watches, how large.

The order of one read: log, tracker, answers, clients. No client sees a byte that a reader of the log cannot read.
"""

from __future__ import annotations

from . import telling, tree
from .attach import STREAM, Attachment
from .inputs import audited
from .kernel_signals import NUMBERS
from .keyboard import Keyboard
from .looking import Looking
from .markfile import MarkFile
from .sizes import choose
from .tracker import Tracker
from .wire import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .endpoint import Client
    from .family import Family
    from .keys import Part
    from .life import Life
    from .loop import Timer
    from .tty import Tty

# At most one SIGWINCH in this time, however fast somebody drags a window.
_RESIZE_PAUSE_S = 0.05
_RESIZES_MAX = 1024


class Terminal:
    def __init__(self, life: Life, tty: Tty, directory: int, environment: dict[str, str]) -> None:
        asked = life.spec["tty"]
        self._life = life
        self.log = life.log
        self.tty = tty
        self.tracker = Tracker(
            tty.rows,
            tty.cols,
            version=telling.VERSION,
            colors=asked["colors"],
            colorfgbg=environment.get("COLORFGBG"),
            term=environment["TERM"],
            clipboard=asked["clipboard"],
        )
        self.keyboard = Keyboard(life.loop, tty, self.tracker, life.features.typed)
        self._marks = MarkFile(directory, life.diary.say)
        self._policy = asked["size_policy"]
        self._audits = asked.get("audit") == "full"
        self._attachments: list[Attachment] = []
        self._attached = 0
        self._touches = 0
        self._ring = ""
        # How often something was typed, and when a person last typed or resized, on the monotonic clock.
        self.typed = 0
        self.person_at = float("-inf")
        # Called after every look at the screen.
        self.looked: Callable[[], None] = lambda: None
        # The last of all that ever were: offset, rows, columns, which client decided.
        self._resizes: list[tuple[int, int, int, str | None]] = []
        self.resized = 0
        self._resize_timer: Timer | None = None
        self.sized_by: str | None = None
        self._note_size()
        self._marks.keep(self.tracker.take_marks())
        self._looking = Looking(life.loop, self, life.family, echoes=asked["echo"], prompts=asked.get("prompts"))

    # Output.

    @property
    def first_offset(self) -> int:
        return self.log.first(STREAM)

    @property
    def end_offset(self) -> int:
        return self.log.end(STREAM)

    def heard(self, chunk: bytes) -> None:
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
                attachment.heard(offset, chunk)
        self._looking.heard(chunk)

    def _answer(self) -> None:
        replies = self.tracker.take_replies()
        if replies:
            self.keyboard.answer(replies)

    def turn(self) -> None:
        """What changed in this turn of the loop is told once."""
        if self._attachments and self.tracker.take_news():
            self.tell_all("mode")

    def command_left(self, *, may_come_again: bool) -> None:
        self._looking.stop()
        self.keyboard.abandon("the command has ended")
        if not may_come_again:
            self.tty.close_slave()

    def begin(self, family: Family) -> None:
        """The next attempt of the command has the same terminal, set up as it was for the first."""
        asked = self._life.spec["tty"]
        self.keyboard = Keyboard(self._life.loop, self.tty, self.tracker, self._life.features.typed)
        self._looking = Looking(self._life.loop, self, family, echoes=asked["echo"], prompts=asked.get("prompts"))

    def hang_up(self) -> None:
        """No other attempt follows: what is left of the output has an end."""
        self.tty.close_slave()
        self._life.outputs.read_buffered()

    def ended(self) -> None:
        """The end is on record."""
        self._marks.end(self.tracker)
        for attachment in list(self._attachments):
            attachment.pump()

    def leave(self) -> None:
        for attachment in list(self._attachments):
            attachment.leave()

    def close(self) -> None:
        self.tty.close_slave()
        self.keyboard.abandon("the session is over")
        self._marks.close()

    # Clients.

    def attach(self, client: Client, request: dict[str, Any]) -> None:
        self._attached += 1
        attachment = Attachment(self, client, f"c{self._attached}", request)
        self._attachments.append(attachment)
        try:
            attachment.begin(request.get("from", "screen"))
        except BaseException:
            self._attachments.remove(attachment)
            raise
        client.stream = attachment
        if attachment.holds:
            self._life.holders_changed()
        seen = request.get("terminal")
        if isinstance(seen, dict) and attachment.role == "control":
            self.tracker.client_colors(seen.get("foreground"), seen.get("background"))
            self._answer()
        for other in self._attachments:
            if other is not attachment:
                other.tell("clients")
                other.pump()
        attachment.pump()

    def gone(self, client: Client) -> None:
        left = client.stream
        if not isinstance(left, Attachment):
            return
        client.stream = None
        before = self.is_focused()
        self._attachments.remove(left)
        if left.holds:
            self._life.holders_changed()
        self.focus_changed(before)
        self.settle_size()
        self.tell_all("clients")

    @property
    def has_holders(self) -> bool:
        return any(attachment.holds for attachment in self._attachments)

    @property
    def is_held(self) -> bool:
        """Is a client that the command waits for too far behind?"""
        return any(attachment.holds and attachment.is_far_behind for attachment in self._attachments)

    def caught_up(self) -> None:
        """A client that the command may be waiting for has read on."""
        self._life.outputs.look_again()

    def presences(self) -> list[dict[str, Any]]:
        return [attachment.presence() for attachment in self._attachments]

    def attached(self) -> dict[str, int]:
        roles = [attachment.role for attachment in self._attachments]
        return {role: roles.count(role) for role in ("control", "observe")}

    def person_idle_s(self) -> float | None:
        """For how long nobody who controls this session typed or looked; None where no person does."""
        idle = [each for each in (attachment.idle_s() for attachment in self._attachments) if each is not None]
        return round(min(idle), 1) if idle else None

    def ring(self, text: str) -> int:
        """Tell the people here that something happened, here or elsewhere; how many."""
        self._ring = text
        people = [attachment for attachment in self._attachments if attachment.is_person]
        for attachment in people:
            attachment.tell("bell")
            attachment.pump()
        return len(people)

    def tell_all(self, what: str) -> None:
        for attachment in list(self._attachments):
            attachment.tell(what)
            attachment.pump()

    def news(self, what: str) -> dict[str, Any]:
        """A frame about how things are now."""
        if what == "mode":
            return {"type": "mode", "offset": self.tracker.offset, "state": self.tracker.snapshot()}
        if what == "bell":
            return {"type": "bell", "text": self._ring}
        return {"type": "clients", "clients": self.presences(), "sizes": self.sized_by}

    @property
    def is_printed_to(self) -> bool:
        """Does anybody hold an end to print into? After the exit that is who the command left behind."""
        return self._life.outputs.are_open

    def exit_frame(self) -> dict[str, Any] | None:
        exit = self._life.exit
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
        return telling.status(self._life)

    def plan(self, history_rows: int) -> dict[str, Any]:
        """Which ranges of the log restore the screen as it is now. Where old segments are being dropped, not from
        those that go next: they would be gone before they are sent."""
        first = self.first_offset
        oldest = first + (self.end_offset - first) // 2 if first else 0
        plan = self._marks.plan(self.tracker, history_rows=history_rows, oldest=oldest)
        if any(self.log.has_gap(STREAM, part["from"], part["to"]) for part in plan["ranges"]):
            plan["exact"] = False
        return plan

    def asks(self) -> dict[str, Any] | None:
        """What the command waits for, if it does."""
        needs: dict[str, Any] | None = self._looking.facts().get("needs_input")
        return needs

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
        """How much it is, and warnings. What cannot be typed is refused as a whole, before its first byte."""
        if self._life.exit is not None or not self.keyboard.is_open:
            raise telling.has_ended(self._life)
        if not isinstance(parts, list):
            raise Problem("bad-argument", "`parts` is a list of typed parts", argument="parts")
        return self.keyboard.check(parts)

    def type(self, parts: list[Part], size: int, author: str | None, taken: Callable[[bool, int], None]) -> None:
        self.note_input(author, size, audited(parts, self.tty, self.tracker) if self._audits else None)
        self.keyboard.type(parts, taken)

    def interrupt(self, living: list[tree.Process]) -> None:
        """As somebody at the keyboard would; by a signal to the foreground group where nothing can be typed."""
        if self.keyboard.interrupt():
            return
        foreground = self.tty.foreground()
        for process in living:
            if process.group == foreground:
                tree.send(process, NUMBERS["SIGINT"])

    def note_input(self, author: str | None, size: int, content: bytes | None = None) -> None:
        self.typed += 1
        self._life.inputs.note(author, size, self.end_offset, content)
        self._looking.input()

    # Size.

    def settle_size(self) -> None:
        """Take the size that the clients want: the first change at once, then one in a while, the last one wins."""
        wanted = choose(self._policy, (attachment.sizing for attachment in self._attachments))
        if wanted is None:
            return
        (rows, cols), sizing = wanted
        if sizing.cell is not None:
            self.tracker.cell = sizing.cell
        self.sized_by = sizing.client
        if (rows, cols) != (self.tty.rows, self.tty.cols) and self._resize_timer is None:
            self._resize(rows, cols, sizing.cell)
            self._resize_timer = self._life.loop.after(_RESIZE_PAUSE_S, self._settle_again)

    def _settle_again(self) -> None:
        self._resize_timer = None
        self.settle_size()

    def resize(self, rows: int, cols: int) -> None:
        """Asked for by a request, and not by looking: only where no client's size counts."""
        sizing = [each.sizing for each in self._attachments if each.sizing.control and each.sizing.visible]
        if self._policy != "fixed" and sizing:
            client = self.sized_by or sizing[-1].client
            message = f"client {client} sizes this terminal (policy {self._policy})"
            raise Problem("size-policy", message, policy=self._policy, client=client)
        self.sized_by = None
        if (rows, cols) != (self.tty.rows, self.tty.cols):
            self._resize(rows, cols, None)

    def _resize(self, rows: int, cols: int, cell: tuple[int, int] | None) -> None:
        # What was printed for the old size is read first, so that the redraw lands behind the record.
        self._life.outputs.read_buffered()
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
        self.log.resize(STREAM, self.tty.rows, self.tty.cols)
        self._resizes.append((self.end_offset, self.tty.rows, self.tty.cols, self.sized_by))
        self.resized += 1
        del self._resizes[:-_RESIZES_MAX]

    def size_behind(self, known: int) -> tuple[int, int, int, str | None, int] | None:
        """The first change of size that comes after so many of them, and its number."""
        forgotten = self.resized - len(self._resizes)
        number = max(known, forgotten) + 1
        return None if number > self.resized else (*self._resizes[number - forgotten - 1], number)

    def resizes_since(self, offset: int) -> list[tuple[int, int, int]]:
        """Those behind an offset, and the one in force there."""
        before = [resize[:3] for resize in self._resizes if resize[0] <= offset]
        return before[-1:] + [resize[:3] for resize in self._resizes if resize[0] > offset]
