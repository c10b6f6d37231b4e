"""`hold attach`: keys in, output out, until the session ends or the user detaches.

However it ends, our terminal is restored. Detaching writes no byte to the session.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import NamedTuple

from ..core.wire import UNIT_MAX_BYTES
from ..errors import HoldfastError, RunnerGone
from ..model.events import Bell, Data, Exit, Gap, Init, Refused, Size, Written
from ..terminal import keys
from ..terminal.keys import DetachScanner
from .display import LEAVE_S, Display, PipeDisplay
from .output import is_terminal, note, printable
from .own_terminal import OwnTerminal, Wakeups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Literal

    from ..model.events import Event
    from ..sessions.api import Session
    from ..sessions.attach import Attachment
    from ..terminal.grid import Grid
    from ..terminal.keys import DetachKey, Outcome
    from ..terminal.probe import Answers

    Since = Literal["screen", "start", "now"] | int


class AttachOptions(NamedTuple):
    """The options of `hold attach`. `since` None: the screen on a terminal, all output into a pipe. `backpressure`: the
    command waits before the log's cap cuts output that we have not read; for `hold run`."""

    history_rows: int
    observe: bool = False
    since: Since | None = None
    key: DetachKey | None = None
    stdin_eof: str = "ignore"
    clipboard: bool = False
    graphics: bool = False
    backpressure: bool = False


class KeySplitter:
    """Separates what the terminal sends: keys for the session, our own commands, answers to our queries.

    Held bytes are to be released at `release_at` if nothing came until then. `described` is what the terminal reported
    about itself, `flags` the kitty keyboard flags it had before."""

    def __init__(self, key: DetachKey | None) -> None:
        self.described: dict[str, Any] | None = None
        self.flags = 0
        self.release_at: float | None = None
        self._scanner = DetachScanner(key)
        # Kept until the last answer has come, however late: no key looks like an answer.
        self._answers: Answers | None = None

    def ask(self, terminal: OwnTerminal) -> bytes:
        """Query the terminal, which is in raw mode; returns what was typed meanwhile. A dumb terminal is not
        queried."""
        if terminal.keys is None or os.environ.get("TERM", "dumb") == "dumb":
            return b""
        from ..terminal.probe import probe

        answers, typed = probe(terminal.keys, terminal.screen)
        self.described = answers.describe(*(terminal.size() or (0, 0)))
        self.flags = answers.keyboard or 0
        if not answers.complete:
            self._answers = answers
        return typed

    def feed(self, data: bytes, *, exact_keys: bool) -> Outcome:
        """Units to send and commands. `exact_keys`: the session enabled a keyboard mode with longer sequences."""
        if self._answers is not None:
            data = self._answers.feed(data)
            if self._answers.complete:
                self._answers = None
        self._scanner.holds_escape = exact_keys
        return self._then(self._scanner.feed(data))

    def release(self) -> Outcome:
        """Nothing followed: the held bytes were typed."""
        if self._answers is not None and self._answers.has_partial:
            return self._then(self._scanner.feed(self._answers.release()))
        return self._then(self._scanner.release())

    def _then(self, outcome: Outcome) -> Outcome:
        wait_s = self._scanner.wait_s
        if self._answers is not None and self._answers.has_partial:
            wait_s = keys.HOLD_S
        self.release_at = None if wait_s is None else time.monotonic() + wait_s
        return outcome


# A window that is dragged reports sizes faster than a program can redraw.
_RESIZE_S = 0.1
_READ_BYTES = 1 << 16
# Input that the session does not accept is not read: a pipe is not read at all, a keyboard only up to this many bytes,
# because the detach key must be seen.
_KEYS_AHEAD_BYTES = 8 << 20

_LEAVING = (signal.SIGTERM, signal.SIGHUP)
_BREAKING = (signal.SIGINT, signal.SIGQUIT)
_ABOUT_TERMINALS = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)

_HELP = """
hold: attached to {id}{role}
  {key} d   detach; the session keeps running
  {key} o   only watch from now on
  {key} r   redraw the screen
  {key} ?   this help
  {key} {key}   send the key itself
Press any key to continue.
"""
_WATCHING = """
hold: you are only watching {called}: no key reaches it
{leave}`hold attach {called}` takes control
Press any key to continue.
"""


class AttachLoop:
    """One run of `hold attach`, or of `hold run` on a terminal. `called` is what the user calls the session, if not by
    its name."""

    def __init__(self, session: Session, options: AttachOptions, called: str | None = None) -> None:
        self._session = session
        self._called = called or session.name or session.id
        self._options = options
        self._role: Literal["control", "observe"] = "observe" if options.observe else "control"
        self._terminal = OwnTerminal(0 if is_terminal(0) else None, 1) if is_terminal(1) else None
        self._has_keys = self._terminal is not None and self._terminal.keys is not None
        # A watching client sends no input, but on a terminal the detach key must be seen.
        self._reads = self._has_keys or not options.observe
        self._shown: Display | PipeDisplay = PipeDisplay(1)
        self._attachment: Attachment | None = None
        self._keyboard = KeySplitter(options.key)
        self._helping = False
        # Whether the user was told that keys are not passed on.
        self._told = False
        self._sized = False
        self._resize_at: float | None = None
        self._cut = b""
        self._sent = self._written = 0
        self._ahead = 0
        self._at_eof = False
        self._ended = False
        self._exit_code: int | None = None
        self._last_words: str | None = None
        # Bytes of output that could not be read, by reason.
        self.missing: dict[str, int] = {}
        # A signal ended us, or the window was closed: `hold top` then quits too.
        self.dismissed = False

    def run(self) -> int:
        """Returns the exit code."""
        from ..sessions.attach import check

        check(self._session._core, self._session.id)  # before anything is written to the terminal
        self._wakeups = Wakeups(_LEAVING if self._terminal is None else _LEAVING + _BREAKING + _ABOUT_TERMINALS)
        try:
            typed = self._enter()
            since = self._options.since
            self._attach(("start" if self._terminal is None else "screen") if since is None else since)
            if typed:
                self._take_keys(typed)
            while self._exit_code is None:
                self._turn()
        finally:
            self._leave()
        if self._last_words:
            note(printable(self._last_words))
        return self._exit_code

    def _enter(self) -> bytes:
        """Prepare our terminal; returns what was typed meanwhile."""
        if self._terminal is None:
            return b""
        self._terminal.enter()
        # A watching client needs no answers: the session does not use its colours.
        typed = self._keyboard.ask(self._terminal) if self._role == "control" else b""
        self._shown = Display(
            self._terminal,
            self._draw if self._session.place == "local" else None,
            clipboard=self._options.clipboard,
            graphics=self._options.graphics,
            history_rows=self._options.history_rows,
            flags=self._keyboard.flags,
            decides=self._role == "control",
        )
        return typed

    def _draw(self, at: int) -> tuple[Grid, dict[str, Any], bytes] | None:
        from ..sessions.screens import drawn_at_offset

        try:
            return drawn_at_offset(self._session._core, self._session.id, at, self._options.history_rows)
        except (HoldfastError, OSError):
            return None  # it was removed, or cannot be drawn: the program's next redraw shows it

    def _attach(self, since: Since, history_rows: int | None = None) -> None:
        self._helping = self._sized = False
        self._attachment = self._session.attach(
            role=self._role,
            since=since,
            history_rows=self._options.history_rows if history_rows is None else history_rows,
            lag="exact" if self._terminal is None else "skip",
            size=self._terminal.size() if self._terminal else None,
            terminal=self._keyboard.described,
            kind="cli",
            hold=self._options.backpressure,
        )
        self._take(self._attachment.events())

    def _leave(self) -> None:
        """Restore the terminal, whatever happened."""
        try:
            self._hang_up()
            if not self._shown.leave(
                hurry=not self._ended, ends_line=not self._options.backpressure or bool(self._last_words)
            ):
                self._last_words = None  # the terminal is gone or accepts nothing
        finally:
            if self._terminal is not None:
                self._terminal.close()
            self._wakeups.close()

    def _finish(self, code: int, words: str | None = None) -> None:
        self._exit_code = code
        self._last_words = words if self._terminal is not None else None

    def _detach(self, code: int = 0) -> None:
        self._finish(code, f"detached from {self._called}; `hold attach {self._called}` comes back to it")

    # One turn of the loop.

    def _turn(self) -> None:
        outlet = self._shown.outlet
        poll = select.poll()
        poll.register(self._wakeups.fd, select.POLLIN)
        # Always registered: poll also reports that the reader is gone.
        poll.register(outlet.fd, select.POLLOUT if outlet.waiting else 0)
        attachment = self._attachment
        if attachment is not None:
            wanted = (0 if outlet.full else select.POLLIN) | (select.POLLOUT if attachment.wants_write else 0)
            if wanted:
                poll.register(attachment.fileno(), wanted)
        if attachment is None or not attachment.wants_write:
            self._ahead = 0
        if self._reads and self._ahead < (_KEYS_AHEAD_BYTES if self._has_keys else 1):
            poll.register(0, select.POLLIN)
        ready = dict(poll.poll(self._until_next()))
        if self._wakeups.fd in ready:
            # A window that is closed also sends SIGCONT: signals that end us come first.
            for number in sorted(self._wakeups.taken(), key=lambda number: number not in _LEAVING):
                if self._exit_code is None:
                    self._signalled(number)
        if self._exit_code is None and 0 in ready:
            self._read()
        self._look_at_clock()
        if self._exit_code is None and self._attachment is not None:
            self._attachment.flush()
            if self._attachment is attachment and attachment.fileno() in ready:
                self._take(attachment.events())
        self._write(ready.get(outlet.fd, 0))

    def _write(self, state: int) -> None:
        outlet = self._shown.outlet
        try:
            if state & (select.POLLERR | select.POLLHUP):
                raise BrokenPipeError
            if outlet.waiting and state & select.POLLOUT:
                outlet.flush()
        except OSError:
            if self._terminal is None:
                raise
            # The window was closed.
            self.dismissed = True
            self._detach()

    def _until_next(self) -> float | None:
        times = [at for at in (self._resize_at, self._keyboard.release_at, self._shown.draw_at) if at is not None]
        return max(0.0, min(times) - time.monotonic()) * 1000 if times else None

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        if self._resize_at is not None and now >= self._resize_at:
            self._resize_at = None
            self._resize()
        if self._shown.draw_at is not None and now >= self._shown.draw_at:
            self._shown.draw()
        if self._keyboard.release_at is not None and now >= self._keyboard.release_at and self._exit_code is None:
            self._obey(self._keyboard.release())

    # Signals.

    def _signalled(self, number: int) -> None:
        if number in _LEAVING:
            self.dismissed = True
            self._detach()
        elif number in _BREAKING:
            self.dismissed = True
            self._detach(128 + number)
        elif number == signal.SIGWINCH:
            self._resize_at = time.monotonic() + _RESIZE_S
            self._shown.pass_or_crop()
        elif number == signal.SIGTSTP:
            self._suspend()
        elif number == signal.SIGCONT and self._terminal is not None and self._terminal.is_ours:
            # Stopped without a SIGTSTP: other programs may have used the terminal, or it is gone.
            try:
                self._terminal.enter()
            except OSError:
                self._detach()
            else:
                self._repaint()

    def _suspend(self) -> None:
        assert self._terminal is not None
        self._pause()
        self._terminal.leave()
        self._wakeups.stop_here()
        taken = self._wakeups.taken()
        if any(number in _LEAVING for number in taken):
            # Ended while suspended: the terminal belongs to another job, and using it would stop us again.
            self._detach()
            return
        self._terminal.enter()
        self._attach("screen", 0)
        for number in (*taken, *self._wakeups.taken()):
            if number not in (signal.SIGCONT, signal.SIGTSTP):
                self._signalled(number)

    def _repaint(self) -> None:
        self._pause()
        self._attach("screen", 0)

    def _pause(self) -> None:
        self._hang_up()
        self._shown.leave(hurry=True)

    def _hang_up(self) -> None:
        """Close the connection after its runner has read what was typed: closing it at once could lose the rest."""
        attachment, self._attachment = self._attachment, None
        if attachment is None:
            return
        until = time.monotonic() + LEAVE_S
        waiting = False
        try:
            attachment.detach()
            while not attachment.over and (left := until - time.monotonic()) > 0:
                poll = select.poll()
                poll.register(attachment.fileno(), select.POLLIN | (select.POLLOUT if attachment.wants_write else 0))
                poll.poll(left * 1000)
                attachment.flush()
                waiting = attachment.wants_write
                attachment.events()
        except (HoldfastError, OSError):
            pass  # the runner closed it, as asked
        finally:
            attachment.close()
        if waiting:
            self._last_words = f"{self._last_words or 'detached'}; the last input was not accepted"

    # Input.

    def _read(self) -> None:
        try:
            data = os.read(0, _READ_BYTES)
        except OSError:
            data = b""  # a terminal that is gone
        if self._has_keys:
            if data:
                self._take_keys(data)
            else:
                self._detach()
        elif data:
            self._send(data)
        else:
            self._reads = False
            self._at_eof = True
            self._act_on_eof()

    def _take_keys(self, data: bytes) -> None:
        exact = isinstance(self._shown, Display) and self._shown.undo.exact_keys
        outcome = self._keyboard.feed(data, exact_keys=exact)
        if not self._helping:
            self._obey(outcome)
        elif keys.DETACH in outcome:
            self._detach()
        else:
            self._attach("screen", 0)

    def _obey(self, outcome: Iterable[bytes | str]) -> None:
        for each in outcome:
            if isinstance(each, bytes):
                self._send(each)
            elif each == keys.DETACH:
                self._detach()
            elif each == keys.OBSERVE:
                self._role = "observe"
                self._shown.decides = False
                if self._attachment is not None:
                    self._attachment.observe()
            elif each == keys.BELL or (self._attachment is not None and self._attachment.wants_write):
                # Not while input waits to be sent on this connection.
                self._shown.bell()
            elif each == keys.REPAINT:
                self._repaint()
            else:
                self._help()

    def _help(self) -> None:
        assert self._options.key is not None
        role = ", only watching" if self._role == "observe" else ""
        self._explain(_HELP.format(id=self._called, role=role, key=self._options.key.name))

    def _explain(self, text: str) -> None:
        """Show text in place of the session, until a key is pressed."""
        self._pause()
        self._shown.say(text)
        self._helping = True

    def _send(self, data: bytes) -> None:
        if self._role == "observe" or self._attachment is None:
            # Mouse and focus reports are not keys.
            pressed, self._cut = keys.pressed(self._cut + data)
            if pressed and self._has_keys and self._attachment is not None and not self._told:
                self._told = True
                key = self._options.key
                leave = f"  {key.name} d leaves, " if key is not None else "  "
                self._explain(_WATCHING.format(called=self._called, leave=leave))
            elif pressed:
                self._shown.bell()
            return
        self._ahead += len(data)
        try:
            for at in range(0, len(data), UNIT_MAX_BYTES):
                self._sent = self._attachment.send(data[at : at + UNIT_MAX_BYTES])
        except HoldfastError:
            self._shown.bell()  # it has ended; the rest of its output is still coming

    def _act_on_eof(self) -> None:
        """Act on the end of our piped input, once the session has accepted everything before it."""
        if not self._at_eof or self._written < self._sent:
            return
        self._at_eof = False
        if self._options.stdin_eof == "detach":
            self._detach()
        elif self._options.stdin_eof == "eof":
            try:
                self._session.eof()
            except HoldfastError as problem:
                note(str(problem))

    def _resize(self) -> None:
        size = self._terminal.size() if self._terminal is not None else None
        if size is None or self._role == "observe" or self._attachment is None or not self._shown.is_painted:
            return
        self._sized = True
        cell = self._terminal.cell() if self._terminal is not None else None
        reported = (self._keyboard.described or {}).get("cell")
        try:
            self._attachment.resize(*size, cell=cell or (reported and tuple(reported)))
        except HoldfastError:
            pass  # it has ended and keeps its last size

    # Output.

    def _take(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Data):
                self._shown.data(event)
            elif isinstance(event, Init):
                self._shown.begin(event)
            elif isinstance(event, Size):
                self._shown.resized(event.rows, event.cols)
            elif isinstance(event, Gap):
                self.missing[event.reason] = self.missing.get(event.reason, 0) + event.end - event.begin
                self._shown.gap(event)
            elif isinstance(event, Written):
                self._written = max(self._written, event.id)
                self._act_on_eof()
            elif isinstance(event, Exit):
                self._end(event)
                return
            elif isinstance(event, Refused):
                self._refused(event.error)
            elif isinstance(event, Bell):
                self._shown.bell(event.text)
            # `Mode` and `Clients` are for clients that draw by themselves: a terminal learns modes from the bytes.
            if not self._sized and self._shown.is_painted:
                self._resize()
        if self._attachment is not None and self._attachment.over and self._exit_code is None:
            raise RunnerGone(self._session.id, self._session.refresh().state, self._session.pid)

    def _refused(self, error: HoldfastError) -> None:
        if self._terminal is None:
            note(str(error))
        else:
            self._shown.bell()
        # The input will not be written.
        self._written = self._sent
        self._act_on_eof()

    def _end(self, exit: Exit) -> None:
        from .output import outcome, state_words

        now = self._session.refresh()
        self._ended = True
        if now.state == "lost":
            # Its runner is gone without recording an exit.
            raise RunnerGone(now.id, now.state, now.pid)
        code = exit.shell_code
        words = None
        # `hold run` is silent when the command ended by itself, as a shell is.
        if now.exit is not None and not (self._options.backpressure and now.exit.cause in ("exit", "signal")):
            words = f"{now.id} has ended: {state_words(now)[0] if code is None else outcome(now.exit)}"
        self._finish(1 if code is None else code, words)
