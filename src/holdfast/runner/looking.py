"""When a terminal is looked at, to see whether its command waits for somebody, and what was found.

Start, output and input arm one timer; a look that finds nothing more to learn leaves none behind, so that an idle
session costs nothing. Who asks for the status gets a look of that moment, unless the last one is as good.
"""

from __future__ import annotations

import re
import time

from . import clock, foreground
from .asking import LOOK_S, Looks, Seen, decide
from .attach import STREAM
from .modes import SYNCHRONIZED_MAX_S
from .patterns import BadPattern
from .prompts import Patterns, spins
from .sketch import TAIL_BYTES, Sketch, sketch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .asking import Verdict
    from .family import Family
    from .loop import Loop, Timer
    from .terminal import Terminal

# A status tells what was found this long ago without looking again.
_FRESH_S = 1.0
# After a spinner turned it is taken to be turning still.
_SPINS_S = 5.0
# What a program prints so soon after its terminal changed size is the same screen drawn anew.
_REDRAW_S = 0.5
# Without processor time for so long a quiet command may be hung.
_CPU_IDLE_S = 1.0

# Progress told beside the screen is no activity on it.
_PROGRESS = b"\x1b]9;4"
_PROGRESS_ALONE = re.compile(rb"(?:\x1b\]9;4[0-9;]{0,16}(?:\x07|\x1b\\))+")

_WORKING: Verdict = {"state": "working", "hung": None}


class Looking:
    def __init__(
        self, loop: Loop, terminal: Terminal, family: Family, *, echoes: bool, prompts: dict[str, Any] | None = None
    ) -> None:
        self._loop = loop
        self._terminal = terminal
        self._family = family
        # A terminal that was started without echo says nothing by having none.
        self._echoes = echoes
        self._prompts = prompts
        self._patterns: Patterns | None = None
        self._timer: Timer | None = None
        self._over = False
        self._active_at = time.monotonic()
        self._redraw_until = 0.0
        # Counts what changed the screen or answered it: two looks at one scene saw the same.
        self._scene = 0
        self._bells = 0
        self._looks = Looks()
        # The last look: when, at which scene, what it said, and since when and where that is so.
        self._looked_at = 0.0
        self._looked_scene = -1
        self._verdict = _WORKING
        self._said: tuple[object, ...] = ()
        self._since = ""
        self._offset = 0
        self._drawn: tuple[tuple[int, int, int], Sketch] | None = None
        self._spun_at = -_SPINS_S
        # Scene, group and ticks of processor time, and since when they are these.
        self._idle: tuple[tuple[int, int | None, int], float] | None = None
        self._arm(LOOK_S)

    def heard(self, chunk: bytes) -> None:
        if chunk[: len(_PROGRESS)] == _PROGRESS and _PROGRESS_ALONE.fullmatch(chunk):
            return
        self._active_at = now = time.monotonic()
        if now >= self._redraw_until:
            self._scene += 1
        if self._timer is None or self._timer.at > now + LOOK_S:
            self._arm(LOOK_S)

    def input(self) -> None:
        """Somebody typed: what was asked may be answered."""
        self._bells = self._terminal.tracker.bells
        self._looks = Looks()
        self._active_at = time.monotonic()
        self._redraw_until = 0.0
        self._scene += 1
        self._arm(LOOK_S)

    def resized(self) -> None:
        self._redraw_until = time.monotonic() + _REDRAW_S

    def stop(self) -> None:
        """The command has left: nobody waits for anything any more."""
        self._over = True
        self._disarm()

    def facts(self) -> dict[str, Any]:
        """What `status` says of it."""
        if self._over:
            return {}
        now = time.monotonic()
        if self._is_due(now):
            self._look(now)
        verdict = self._verdict if self._looked_scene == self._scene else _WORKING
        facts: dict[str, Any] = {"input_state": verdict["state"]}
        if verdict["state"] == "needs_input":
            told = {part: verdict[part] for part in ("confidence", "kind", "evidence", "line", "secret")}
            facts["needs_input"] = {**told, "since": self._since, "offset": self._offset}
        elif verdict["hung"]:
            facts["hung"] = verdict["hung"]
        return facts

    def _is_due(self, now: float) -> bool:
        if self._quiet_s(now) < LOOK_S:
            return False  # the timer comes to it when the output has paused
        if self._looked_scene != self._scene:
            return True
        # A `medium` is of a program that was at rest for long: a look at it in a busy moment would tell less.
        return now - self._looked_at >= _FRESH_S and self._verdict.get("confidence") != "medium"

    def _quiet_s(self, now: float) -> float:
        """A time in which nobody could have been heard, because we were stopped, is not silence."""
        return now - max(self._active_at, self._loop.woke_at)

    # The timer.

    def _arm(self, delay_s: float) -> None:
        self._disarm()
        if not self._over:
            self._timer = self._loop.after(delay_s, self._fire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        now = time.monotonic()
        quiet_s = self._quiet_s(now)
        if quiet_s < LOOK_S:
            self._arm(LOOK_S - quiet_s)
        else:
            self._look(now)

    # The look.

    def _look(self, now: float) -> None:
        if self._looked_scene != self._scene:
            self._looks.output()
        if self._patterns is None:
            self._patterns = _patterns(self._prompts)
        quiet_s = self._quiet_s(now)
        seen = self._gather(now, quiet_s)
        verdict = self._looks.see(now, self._scene, decide(seen, self._patterns), quiet_s)
        said = (self._scene, *(verdict[part] for part in ("state", "kind", "secret", "line")))
        if said != self._said:
            self._said = said
            self._since = clock.now_text()
            self._offset = self._terminal.end_offset
        self._verdict = verdict
        self._looked_at = now
        self._looked_scene = self._scene
        due_s = self._looks.due_s
        if "synchronized" in seen.vetoes:
            due_s = SYNCHRONIZED_MAX_S  # it is over then, whatever it was
        if due_s is None:
            self._disarm()
        else:
            self._arm(due_s)
        self._terminal.looked()

    def _gather(self, now: float, quiet_s: float) -> Seen:
        terminal, tracker = self._terminal, self._terminal.tracker
        group = terminal.tty.foreground()
        running = foreground.look(terminal.tty.device, -1 if group is None else group, self._family.living())
        settings = terminal.tty.settings()
        before = self._drawn
        drawn = self._draw()
        if before is not None and before[1] is not drawn and spins(before[1].rows, drawn.rows):
            self._spun_at = now
        vetoes = running.vetoes
        if tracker.sync_open:
            vetoes.append("synchronized")
        if now - self._spun_at < _SPINS_S:
            vetoes.append("spinner")
        command = self._family.command
        return Seen(
            drawn.rows,
            drawn.column,
            quiet_s=quiet_s,
            blocked_read=running.blocked_read,
            polled_read=running.polled_read,
            echo_off=self._echoes and settings is not None and settings.canonical and not settings.echo,
            prompt_mark=tracker.prompt_zone in ("prompt", "input"),
            bell=tracker.bells > self._bells,
            leader=command is not None and group == command["pid"],
            vetoes=vetoes,
            inverse=drawn.inverse,
            cursor_visible=25 in tracker.modes.dec,
            stopped=running.stopped,
            cpu_idle=self._idles(now, group, running.cpu_ticks),
        )

    def _draw(self) -> Sketch:
        """The rows about the cursor; none where the end of the log could not be written or read."""
        terminal = self._terminal
        end = terminal.end_offset
        rows, cols = terminal.tty.rows, terminal.tty.cols
        if self._drawn is not None and self._drawn[0] == (end, rows, cols):
            return self._drawn[1]
        try:
            at, tail = terminal.log.read(STREAM, max(0, end - TAIL_BYTES), TAIL_BYTES)
        except OSError:
            return Sketch([], 0, False)
        if at + len(tail) != end:
            return Sketch([], 0, False)
        tracker = terminal.tracker
        drawn = sketch(tail, at, rows, cols, clear=tracker.last_clear, alternate=tracker.alt_screen)
        self._drawn = (end, rows, cols), drawn
        return drawn

    def _idles(self, now: float, group: int | None, ticks: int) -> bool:
        same = (self._scene, group, ticks)
        if self._idle is None or self._idle[0] != same:
            self._idle = same, now
        return now - self._idle[1] >= _CPU_IDLE_S


def _patterns(prompts: dict[str, Any] | None) -> Patterns:
    """What a host of another version, or another Python, has let pass must not end us."""
    try:
        return Patterns(prompts["added"], replace=prompts["replace"]) if prompts else Patterns()
    except BadPattern:
        return Patterns()
