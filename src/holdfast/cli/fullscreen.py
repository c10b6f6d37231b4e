"""Our terminal while all of it is drawn by us: lines in, keys out, and whatever ends it, the terminal as it was.

Only lines that changed are written, so that nothing flickers; a terminal that takes nothing is given the newest picture
when it is ready, not all that it missed.
"""

from __future__ import annotations

import asyncio
import os
import signal

from .keypresses import HOLD_S, Keypresses
from .outlet import Outlet
from .ownterminal import OwnTerminal
from .wakeups import Wakeups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Besides keys: the picture has to be drawn again, and nobody is there any more.
REDRAW = "redraw"
LEAVE = "leave"

# The other screen, without a cursor, and without wrapping: a character may be wider than we think.
_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J"
_EXIT = b"\x1b[m\x1b[?7h\x1b[?25h\x1b[?1049l"
# A picture is shown whole, by terminals that know of it; others ignore this.
_BEGIN, _END = b"\x1b[?2026h", b"\x1b[?2026l"
_LEAVE_S = 1.0
_READ_BYTES = 4096
_USUAL = (24, 80)

_LEAVING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
_SIGNALS = (*_LEAVING, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)


class FullScreen:
    """To be entered and left within a running event loop. `events` gets names of keys, REDRAW and LEAVE."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[str] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._keypresses = Keypresses()
        self._terminal = OwnTerminal(0, 1)
        self._outlet = Outlet(self._terminal.screen)
        self._wakeups: Wakeups | None = None
        self._shown: list[str] | None = None
        self._late: list[str] | None = None
        self._releasing: asyncio.TimerHandle | None = None

    @property
    def size(self) -> tuple[int, int]:
        return self._terminal.size() or _USUAL

    def enter(self) -> None:
        self._wakeups = Wakeups(_SIGNALS)
        self._loop.add_reader(self._wakeups.fd, self._signalled)
        self._open()

    def leave(self) -> None:
        """The terminal is somebody else's, until we enter again."""
        if self._wakeups is None:
            return
        self._shut()
        self._loop.remove_reader(self._wakeups.fd)
        self._wakeups.close()
        self._wakeups = None

    def close(self) -> None:
        self.leave()
        self._terminal.close()

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, from the top. Each fits."""
        if self._outlet.waiting:
            self._late = list(lines)
            return
        cols = self.size[1]
        self._write(paint(self._shown, lines, cols))
        self._shown = list(lines)

    def forget(self) -> None:
        """What the terminal shows is not known any more: the next picture is drawn whole."""
        self._shown = None

    def _open(self) -> None:
        self._terminal.enter()
        self._loop.add_reader(0, self._read)
        self.forget()
        self._write(_ENTER)
        self.events.put_nowait(REDRAW)

    def _shut(self) -> None:
        self._loop.remove_reader(0)
        self._loop.remove_writer(self._outlet.fd)
        self._late = None
        if self._releasing is not None:
            self._releasing.cancel()
        if self._terminal.is_ours:
            self._outlet.add(_EXIT)
            try:
                self._outlet.drain(_LEAVE_S)
            except OSError:
                pass  # the window was closed
        self._outlet.drop()
        self._terminal.leave()

    # What comes from the terminal.

    def _read(self) -> None:
        try:
            data = os.read(0, _READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(0)
            self.events.put_nowait(LEAVE)
            return
        if self._releasing is not None:
            self._releasing.cancel()
            self._releasing = None
        self._tell(self._keypresses.feed(data))
        if self._keypresses.holds:
            self._releasing = self._loop.call_later(HOLD_S, lambda: self._tell(self._keypresses.release()))

    def _tell(self, keys: list[str]) -> None:
        for key in keys:
            if key == "ctrl-z":
                self._suspend()
            else:
                self.events.put_nowait(key)

    def _signalled(self) -> None:
        assert self._wakeups is not None
        for number in self._wakeups.taken():
            if number in _LEAVING:
                self.events.put_nowait(LEAVE)
            elif number == signal.SIGTSTP:
                self._suspend()
            elif number == signal.SIGCONT and self._terminal.is_ours:
                # We were stopped unasked: the terminal may have been used by others since, or be gone.
                self._again()
            elif number == signal.SIGWINCH:
                self.forget()
                self.events.put_nowait(REDRAW)

    def _suspend(self) -> None:
        assert self._wakeups is not None
        self._shut()
        self._wakeups.stop_here()
        taken = self._wakeups.taken()
        if any(number in _LEAVING for number in taken):
            # Ended where it was stopped: the terminal is somebody else's, to ask for it would stop us again.
            self.events.put_nowait(LEAVE)
            return
        self._again()

    def _again(self) -> None:
        try:
            self._open()
        except OSError:
            self.events.put_nowait(LEAVE)

    # What goes to it.

    def _write(self, data: bytes) -> None:
        self._outlet.add(data)
        if self._outlet.waiting:
            self._loop.add_writer(self._outlet.fd, self._flush)

    def _flush(self) -> None:
        try:
            self._outlet.flush()
        except OSError:
            self._outlet.drop()
            self.events.put_nowait(LEAVE)
        if not self._outlet.waiting:
            self._loop.remove_writer(self._outlet.fd)
            late, self._late = self._late, None
            if late is not None:
                self.draw(late)


def paint(before: Sequence[str] | None, after: Sequence[str], cols: int) -> bytes:
    """What makes a terminal that shows the lines `before` (None: anything) show `after`."""
    from .tables import width

    parts = []
    if before is None:
        parts.append("\x1b[H\x1b[2J")
        before = ()
    for number in range(max(len(before), len(after))):
        line = after[number] if number < len(after) else ""
        if number < len(before) and before[number] == line:
            continue
        if number >= len(before) and not line:
            continue
        # A line that fills the last column must not be followed by an erasure, which would take its last character.
        fills = width(plain(line)) >= cols
        parts.append(f"\x1b[{number + 1}H{line}" + ("" if fills else "\x1b[K"))
    return b"".join([_BEGIN, "".join(parts).encode("utf-8", "replace"), _END]) if parts else b""


def plain(line: str) -> str:
    """Without its colours."""
    parts = line.split("\x1b[")
    return parts[0] + "".join(part.partition("m")[2] for part in parts[1:])
