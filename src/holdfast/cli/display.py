"""Shows the output of an attached session, on our terminal or into a pipe.

On a terminal of the session's size, the screen is painted, and later output passes a filter; leaving undoes the modes
that were set. A terminal of another size cannot show the same bytes: it is drawn from the session's screen. A pipe gets
the bytes of the log.
"""

from __future__ import annotations

import os
import time

from ..core.vt.modes import ALLOW_COLUMNS
from ..core.vt.sequences import TITLE_MAX_BYTES
from ..core.vt.widths import label
from ..terminal.attached import Restored, SessionScreen
from ..terminal.filter import CANCEL, Asides, Filter
from ..terminal.paint import Crop, flow, paint
from ..terminal.scrollback import first_of
from ..terminal.undo import KEEP, Undo
from .own_terminal import Outlet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..model.events import Data, Gap, Init
    from ..terminal.restore import Draw
    from .own_terminal import OwnTerminal


# How long we wait for a terminal that accepts nothing while we restore it.
LEAVE_S = 1.0

# Terminals that show OSC 9, by TERM_PROGRAM or TERM.
_SHOW_NOTIFICATIONS = frozenset(("iTerm.app", "WezTerm", "ghostty", "xterm-ghostty", "xterm-kitty", "foot"))

# The shortest time between two drawings, and the largest share of the time that is spent drawing.
_FRAME_S = 1 / 30
_FRAME_SHARE = 1 / 5
# A border is drawn after this time: most clients have another size only until the session takes theirs.
_BORDER_S = 0.5
_UPDATE = b"\x1b[?2026h"

_KEEP_TITLE, _GIVE_TITLE_BACK = b"\x1b[22;0t", b"\x1b[23;0t"


class Display:
    """Our terminal. `draw` draws the session's screen from its log, if the log is on this machine. `flags` are the
    kitty keyboard flags that the terminal had before."""

    def __init__(
        self,
        terminal: OwnTerminal,
        draw: Draw | None,
        *,
        clipboard: bool,
        graphics: bool,
        history_rows: int,
        flags: int = 0,
        decides: bool = False,
    ) -> None:
        self._terminal = terminal
        self._draw_from_log = draw
        self.outlet = Outlet(terminal.screen)
        self._clipboard = clipboard
        self._graphics = graphics
        self._history_rows = self._history_max = history_rows
        self.undo = Undo(flags)
        self._filter = self._new_filter()
        self._restored: Restored | None = None
        self._replay_to = 0
        self._touched = False
        # Whether the session may take the size of this terminal.
        self.decides = decides
        # The session's screen, and how it is cropped if its size differs.
        self._screen: SessionScreen | None = None
        self._crop: Crop | None = None
        self._asides = Asides()
        self._cropped_at = self._drawn_at = 0.0
        self._draw_at: float | None = None
        self._frame_s = _FRAME_S

    @property
    def is_painted(self) -> bool:
        """Whether the screen is shown. A resize is sent only then, because the program redraws after it."""
        return self._restored is not None and self._restored.is_whole

    def begin(self, init: Init) -> None:
        """Begin with the state of the session; it is shown when all parts of it have come."""
        if self._restored is not None:
            self._take_back()
        self._restored = Restored(init)
        self._screen = self._crop = self._draw_at = None
        self._filter = self._new_filter()
        self._replay_to = _end_of(init)
        if not self._touched:
            self._touched = True
            self.outlet.add(_KEEP_TITLE + KEEP)
        self._begin_showing()

    def data(self, data: Data) -> None:
        if self._restored is not None and not self._restored.is_whole:
            self._restored.take(data)
            self._begin_showing()
            return
        if self._screen is None:
            return
        offset, rest = data.offset, data.data
        while rest:
            self.pass_or_crop()
            taken, rest = self._screen.take(offset, rest)
            self._show(taken, max(0, min(len(taken), self._replay_to - offset)))
            offset += len(taken)
        self.pass_or_crop()

    def _show(self, data: bytes, replayed: int) -> None:
        """Show output; its first `replayed` bytes were printed before we attached."""
        if self._crop is None:
            if replayed:
                self.outlet.add(self._filter.replay(data[:replayed]))
            if replayed < len(data):
                self.outlet.add(self._filter.live(data[replayed:]))
            return
        self.outlet.add(self._asides.live(data[replayed:]))
        at = max(time.monotonic(), self._drawn_at + self._frame_s)
        self._draw_at = at if self._draw_at is None else min(at, self._draw_at)

    # A terminal of another size than the session's.

    def resized(self, rows: int, cols: int) -> None:
        """The session has this size from here on."""
        screen = self._screen
        if screen is None:
            return
        if self._crop is None and (rows, cols) != screen.size == self._terminal.window():
            # The terminal's scrollback has all rows above this page.
            screen.scrollback.begin(screen.grid)
        screen.resize(rows, cols)
        self.pass_or_crop()

    def pass_or_crop(self) -> None:
        """Pass output through if the sizes are equal, else draw the screen."""
        screen = self._screen
        if screen is None:
            return
        window = self._terminal.window() or screen.size
        if window == screen.size and (self._crop is None or screen.at_ground):
            # Not in the middle of a sequence.
            if self._crop is not None:
                self._uncrop(window)
        elif self._crop is None or self._crop.size != window:
            if not screen.scrollback.known:
                # The terminal itself moved rows off its page, or back onto it, when its size changed.
                screen.scrollback.begin(screen.grid, first_of(screen.grid, window[0]))
            self._crop_to(window, self._filter.abandon() + self.undo.undo_all(window[1]))

    def _crop_to(self, window: tuple[int, int], before: bytes) -> None:
        self._filter = self._new_filter()
        self._asides = Asides(self._clipboard)
        self._crop = Crop(window, self.undo)
        self._cropped_at = time.monotonic()
        self._draw(before)

    def _uncrop(self, size: tuple[int, int]) -> None:
        assert self._screen is not None
        assert self._crop is not None
        state = self._screen.state
        owed = len(self._screen.scrollback.take(self._screen.grid))
        self._crop = self._draw_at = None
        before = self.undo.undo_all(size[1])
        painted = self.undo.feed(Filter().replay(paint(self._screen.grid, state, size, owed, in_place=True)))
        self.outlet.add(painted.replace(_UPDATE, _UPDATE + before, 1))
        self._begin_filter(state)
        self._screen.forget()

    @property
    def draw_at(self) -> float | None:
        """When to draw the screen again; None while the terminal has not accepted the last drawing."""
        return None if self.outlet.waiting else self._draw_at

    def draw(self) -> None:
        if self._crop is None or self._screen is None:
            self._draw_at = None
        elif self._screen.updating:
            self._draw_at = time.monotonic() + _FRAME_S
        else:
            self._draw()

    def _draw(self, before: bytes = b"", *, is_last: bool = False) -> None:
        """With `is_last`, without a border and with all rows."""
        assert self._crop is not None
        assert self._screen is not None
        self._drawn_at = time.monotonic()
        bordered = self._drawn_at >= self._cropped_at + _BORDER_S
        self._draw_at = None if bordered else self._cropped_at + _BORDER_S
        began = time.thread_time()
        frame = self._crop.frame(
            self._screen,
            bordered=bordered and not is_last,
            before=before,
            keep_visible_rows=self.decides and not is_last,
        )
        self.outlet.add(frame)
        self._frame_s = max(_FRAME_S, (time.thread_time() - began) / _FRAME_SHARE)

    def gap(self, gap: Gap) -> None:
        """A part of the initial state is missing: show the rest. After that, the runner sends the screen again."""
        if self._restored is not None and self._restored.miss(gap):
            self._begin_showing()

    def bell(self, text: str = "") -> None:
        # Inside a string sequence, BEL would end it.
        if not self._filter.abandon():
            self.outlet.add(b"\x07" + (notification(text) if text else b""))

    def say(self, text: str) -> None:
        """Show our own text while no session is shown."""
        self.outlet.add(text.replace("\n", "\r\n").encode())

    def leave(self, *, hurry: bool = False, ends_line: bool = True) -> bool:
        """Restore the terminal, until a session is shown again. With `hurry`, output that it does not accept is
        dropped; with `ends_line`, a line that the session left unfinished is ended. Returns whether the terminal
        accepts anything."""
        if not self._touched or not self._terminal.is_ours:
            return True
        if hurry and self.outlet.full:
            self.outlet.drop()
            self.outlet.add(CANCEL)
        elif self._crop is not None:
            self._draw(is_last=True)
        self._screen = self._crop = self._draw_at = None
        stays = self.outlet.ends_line or not ends_line
        self._take_back()
        self._touched = False
        self._restored = None
        # Erase the rows of the session below the cursor.
        self.outlet.add(_GIVE_TITLE_BACK + (b"" if stays else b"\r\n") + b"\x1b[J")
        try:
            return self.outlet.drain(LEAVE_S)
        except OSError:
            return False  # the terminal is gone

    def _take_back(self) -> None:
        size = self._terminal.size()
        self.outlet.add(self._filter.abandon() + self.undo.undo_all(size[1] if size else 80))

    def _begin_showing(self) -> None:
        """Once the initial state is complete: make the session's screen and the filter, and show it."""
        restored = self._restored
        if restored is None or not restored.is_whole:
            return
        grid, state = restored.draw(self._history_rows), restored.init.state
        self._screen = SessionScreen(restored.init, grid, self._history_max, self._draw_from_log)
        window = self._terminal.window()
        if window is not None and window != self._screen.size:
            drawn = b""
            if grid is not None and state is not None:
                # Rows that belong into the terminal's scrollback: those above the part that is shown.
                grid = self._screen.grid
                first = first_of(grid, window[0])
                if not self.decides:
                    first = max(first, grid.scrolled)
                drawn = flow(grid, window, self._history_rows, first)
                self._screen.scrollback.begin(grid, first)
            self._crop_to(window, Filter().replay(drawn))
        elif grid is not None and state is not None:
            painted = paint(grid, state, window or restored.init.size, self._history_rows)
            self.outlet.add(self.undo.feed(Filter().replay(painted)))
            self._begin_filter(state)
            self._screen.forget()
        if grid is not None:
            # The terminal's scrollback has them now.
            self._history_rows = 0

    def _begin_filter(self, state: dict[str, Any]) -> None:
        """Filter the output that follows this state."""
        self._filter = self._new_filter()
        self._filter.set_titles(*_titles(state))
        self._filter.columns = ALLOW_COLUMNS in state["modes"]["dec"]

    def _new_filter(self) -> Filter:
        return Filter(self._clipboard, self._graphics, undo=self.undo)


class PipeDisplay:
    """A pipe or a file: gets the bytes of the log unchanged; messages go to stderr."""

    is_painted = True
    decides = False
    draw_at: float | None = None

    def __init__(self, fd: int) -> None:
        self.outlet = Outlet(fd)

    def resized(self, rows: int, cols: int) -> None:
        pass

    def pass_or_crop(self) -> None:
        pass

    def draw(self) -> None:
        pass

    def begin(self, init: Init) -> None:
        pass

    def data(self, data: Data) -> None:
        self.outlet.add(data.data)

    def gap(self, gap: Gap) -> None:
        from .output import note

        note(f"{gap.end - gap.begin} bytes from byte {gap.begin} are missing: {gap.reason}")

    def bell(self, text: str = "") -> None:
        pass

    def say(self, text: str) -> None:
        from .output import note

        note(text)

    def leave(self, *, hurry: bool = False, ends_line: bool = True) -> bool:
        try:
            return self.outlet.drain(LEAVE_S if hurry else None)
        except OSError:
            if not hurry:
                raise
            return False


def notification(text: str) -> bytes:
    """OSC 9, for terminals that are known to show it; others might print it."""
    known = os.environ.get("TERM_PROGRAM") in _SHOW_NOTIFICATIONS or os.environ.get("TERM") in _SHOW_NOTIFICATIONS
    clean = label(text.encode("utf-8", "ignore"), TITLE_MAX_BYTES)
    return b"\x1b]9;" + clean.encode() + b"\x1b\\" if known and clean else b""


def _end_of(init: Init) -> int:
    """The end of the log when we attached; bytes before it are replayed."""
    if init.status is None:
        # A finished session, read from its files.
        return 1 << 63
    if init.restore:
        return init.at
    end: int = init.status["ends"].get("tty", init.at)
    return end


def _titles(state: dict[str, Any]) -> tuple[bytes, list[bytes | None]]:
    labels = state["labels"]
    saved = [None if title is None else title.encode() for title, _ in labels["title_stack"]]
    return labels["title"].encode(), saved
