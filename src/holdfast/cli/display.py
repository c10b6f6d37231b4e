"""What an attached session prints, on our terminal or into our pipe.

On a terminal the screen is painted as it is, then what follows passes the filter; leaving undoes what the terminal
was put into. Into a pipe go the bytes of the log and nothing else.
"""

from __future__ import annotations

import os

from ..runner.characters import label
from ..runner.labels import TITLE_MAX_BYTES
from ..runner.modes import ALLOW_COLUMNS
from ..terminal.filter import CANCEL, Filter
from ..terminal.restored import Restored
from ..terminal.undo import KEEP, Undo
from .outlet import Outlet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..model.attach import Data, Gap, Init
    from .ownterminal import OwnTerminal


# How long a terminal may take nothing while we leave it as it was.
LEAVE_S = 1.0

# What these call themselves in TERM_PROGRAM, or in TERM where that goes further.
_SHOW_NOTIFICATIONS = frozenset(("iTerm.app", "WezTerm", "ghostty", "xterm-ghostty", "xterm-kitty", "foot"))

_KEEP_TITLE, _GIVE_TITLE_BACK = b"\x1b[22;0t", b"\x1b[23;0t"


class Display:
    """Our terminal. `flags` is the kitty keyboard it had before us."""

    def __init__(
        self, terminal: OwnTerminal, *, clipboard: bool, graphics: bool, history_rows: int, flags: int = 0
    ) -> None:
        self._terminal = terminal
        self.outlet = Outlet(terminal.screen)
        self._clipboard = clipboard
        self._graphics = graphics
        self._history_rows = history_rows
        self.undo = Undo(flags)
        self._filter = self._new_filter()
        self._restored: Restored | None = None
        self._replay_to = 0
        self._touched = False

    @property
    def is_painted(self) -> bool:
        """Whether the screen is shown, so that the redraw which a resize brings follows it."""
        return self._restored is not None and self._restored.is_whole

    def begin(self, init: Init) -> None:
        """The session as it is now: shown when all it is made of has come."""
        if self._restored is not None:
            self._take_back()
        self._restored = Restored(init)
        self._filter = self._new_filter()
        self._replay_to = _end_of(init)
        if not self._touched:
            self._touched = True
            self.outlet.add(_KEEP_TITLE + KEEP)
        self._paint()

    def data(self, data: Data) -> None:
        if self._restored is not None and not self._restored.is_whole:
            self._restored.take(data)
            self._paint()
            return
        replayed = max(0, min(len(data.data), self._replay_to - data.offset))
        if replayed:
            self.outlet.add(self._filter.replay(data.data[:replayed]))
        if replayed < len(data.data):
            self.outlet.add(self._filter.live(data.data[replayed:]))

    def gap(self, gap: Gap) -> None:
        """Of a restore a part is missing, and it is shown without. Else the screen comes anew; words would only stand
        in its way."""
        if self._restored is not None and self._restored.miss(gap):
            self._paint()

    def bell(self, text: str = "") -> None:
        # In a string it would be the end of it.
        if not self._filter.abandon():
            self.outlet.add(b"\x07" + (notification(text) if text else b""))

    def say(self, text: str) -> None:
        """Some lines of ours, while no session is shown."""
        self.outlet.add(text.replace("\n", "\r\n").encode())

    def leave(self, *, hurry: bool = False) -> bool:
        """The terminal as it was, until a session is shown again. In a hurry what it does not take is not shown.
        Whether it takes anything at all."""
        if not self._touched or not self._terminal.is_ours:
            return True
        if hurry and self.outlet.full:
            self.outlet.drop()
            self.outlet.add(CANCEL)
        ends_line = self.outlet.ends_line
        self._take_back()
        self._touched = False
        self._restored = None
        # What the session showed below is no longer true, and is not to be mixed with what comes next.
        self.outlet.add(_GIVE_TITLE_BACK + (b"" if ends_line else b"\r\n") + b"\x1b[J")
        try:
            return self.outlet.drain(LEAVE_S)
        except OSError:
            return False  # the terminal is gone, and everything it was put into with it

    def _take_back(self) -> None:
        size = self._terminal.size()
        self.outlet.add(self._filter.abandon() + self.undo.take(size[1] if size else 80))

    def _paint(self) -> None:
        """Show the screen from which what follows goes on, once it is known."""
        restored = self._restored
        if restored is None or not restored.is_whole:
            return
        painted = restored.paint(self._terminal.size() or restored.init.size, self._history_rows)
        if not painted:
            return
        self.outlet.add(self.undo.feed(painted))
        assert restored.init.state is not None
        self._filter.set_titles(*_titles(restored.init.state))
        self._filter.columns = ALLOW_COLUMNS in restored.init.state["modes"]["dec"]
        # What scrolled out is in the terminal's own history by now.
        self._history_rows = 0

    def _new_filter(self) -> Filter:
        return Filter(self._clipboard, self._graphics, undo=self.undo)


class Copy:
    """A pipe or a file: the bytes of the log as they are, and what is to be said on stderr."""

    is_painted = True

    def __init__(self, fd: int) -> None:
        self.outlet = Outlet(fd)

    def begin(self, init: Init) -> None:
        pass

    def data(self, data: Data) -> None:
        self.outlet.add(data.data)

    def gap(self, gap: Gap) -> None:
        from .output import note

        note(f"{gap.end - gap.begin} bytes from {gap.begin} on are not there: {gap.reason}")

    def bell(self, text: str = "") -> None:
        pass

    def say(self, text: str) -> None:
        from .output import note

        note(text)

    def leave(self, *, hurry: bool = False) -> bool:
        try:
            return self.outlet.drain(LEAVE_S if hurry else None)
        except OSError:
            if not hurry:
                raise
            return False


def notification(text: str) -> bytes:
    """OSC 9, for terminals that are known to show it; others might print it, or take it for something else."""
    known = os.environ.get("TERM_PROGRAM") in _SHOW_NOTIFICATIONS or os.environ.get("TERM") in _SHOW_NOTIFICATIONS
    clean = label(text.encode("utf-8", "ignore"), TITLE_MAX_BYTES)
    return b"\x1b]9;" + clean.encode() + b"\x1b\\" if known and clean else b""


def _end_of(init: Init) -> int:
    """Where the log ended when we came: what stands before it was printed earlier."""
    if init.status is None:
        # From the files of a session that is over.
        return 1 << 63
    if init.restore:
        return init.at
    end: int = init.status["ends"].get("tty", init.at)
    return end


def _titles(state: dict[str, Any]) -> tuple[bytes, list[bytes | None]]:
    labels = state["labels"]
    saved = [None if title is None else title.encode() for title, _ in labels["title_stack"]]
    return labels["title"].encode(), saved
