"""The signal that a command waits for input: on a terminal by what its looks found, over pipes by one of its processes
that sits in a read on an empty standard input.

One signal for each question, at most one in ten seconds, and none while a person is typing. `Looking` decides when a
terminal is looked at. Start, output and input set one alarm; a look that finds nothing more to learn sets none, so that
an idle session costs nothing. A request for the status makes a look at that moment, unless the last one is as good.
"""

from __future__ import annotations

import re
import time

from ....core import clock
from ....core.loop import Alarm
from ....core.records import TTY
from ....core.vt.modes import SYNCHRONIZED_MAX_S
from ....core.vt.text import tail
from ....core.vt.widths import column_count
from ...streams import Stdin
from .. import Feature
from ..patterns import BadPattern
from . import foreground
from .question import AT_PROMPT, LOOK_S, TAIL_BYTES, Looks, Patterns, Seen, Sketch, decide, line_of, sketch, spins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ....core.loop import Loop
    from ...process_tree import ProcessTree
    from ...terminal.terminal import Terminal
    from .. import SessionWithInput
    from .question import Verdict


# A status reports what was found this long ago without looking again.
_FRESH_S = 1.0
# After a spinner has moved, it counts as moving for this long.
_SPINS_S = 5.0
# What a program prints within this time after its terminal changed size is the same screen drawn again.
_REDRAW_S = 0.5
# A quiet command without processor time for this long may be hung.
_CPU_IDLE_S = 1.0

# Progress reported beside the screen is no activity on it.
_PROGRESS = b"\x1b]9;4"
_PROGRESS_ALONE = re.compile(rb"(?:\x1b\]9;4[0-9;]{0,16}(?:\x07|\x1b\\))+")

_WORKING: Verdict = {"state": "working", "hung": None}


class Looking:
    def __init__(
        self,
        loop: Loop,
        terminal: Terminal,
        family: ProcessTree,
        *,
        echoes: bool,
        prompts: dict[str, Any] | None = None,
    ) -> None:
        self._loop = loop
        self._terminal = terminal
        self._family = family
        # If the terminal was started without echo, missing echo is no evidence.
        self._echoes = echoes
        self._prompts = prompts
        self._patterns: Patterns | None = None
        self._alarm = Alarm(loop, self._fire)
        self._over = False
        self._active_at = time.monotonic()
        self._redraw_until = 0.0
        # Incremented by each output and input: two looks with the same number saw the same screen.
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
        # Screen number, foreground group and CPU ticks, and since when they have been unchanged.
        self._idle: tuple[tuple[int, int | None, int], float] | None = None
        self._alarm.set(LOOK_S)

    def printed(self, chunk: bytes) -> None:
        if chunk[: len(_PROGRESS)] == _PROGRESS and _PROGRESS_ALONE.fullmatch(chunk):
            return
        self._active_at = now = time.monotonic()
        if now >= self._redraw_until:
            self._scene += 1
        if self._alarm.at > now + LOOK_S:
            self._arm(LOOK_S)

    def input(self) -> None:
        """Something was typed: what was asked may be answered."""
        self._bells = self._terminal.tracker.bells
        self._looks = Looks()
        self._active_at = time.monotonic()
        self._redraw_until = 0.0
        self._scene += 1
        self._arm(LOOK_S)

    def resized(self) -> None:
        self._redraw_until = time.monotonic() + _REDRAW_S

    def stop(self) -> None:
        """The command has left."""
        self._over = True
        self._alarm.cancel()

    def facts(self) -> dict[str, Any]:
        """What `status` says of it."""
        if self._over:
            return {}
        now = time.monotonic()
        if self._is_due(now):
            self._look(now)
        verdict = self._verdict if self._looked_scene == self._scene else _WORKING
        facts: dict[str, Any] = {"input_state": verdict["state"]}
        question = self.last_question()
        if question is not None:
            facts["needs_input"] = question
        elif verdict["hung"]:
            facts["hung"] = verdict["hung"]
        return facts

    def last_question(self) -> dict[str, Any] | None:
        """The question that the last look found, if nothing has changed since; without another look."""
        verdict = self._verdict
        if self._over or self._looked_scene != self._scene or verdict["state"] != "needs_input":
            return None
        found = {part: verdict[part] for part in ("confidence", "kind", "evidence", "line", "secret")}
        return {**found, "since": self._since, "offset": self._offset}

    def _is_due(self, now: float) -> bool:
        if self._quiet_s(now) < LOOK_S:
            return False  # the timer comes to it when the output has paused
        if self._looked_scene != self._scene:
            return True
        # A verdict of `medium` confidence came after a long rest: another look while the program is busy would only
        # lower it.
        return now - self._looked_at >= _FRESH_S and self._verdict.get("confidence") != "medium"

    def _quiet_s(self, now: float) -> float:
        """A time in which we were stopped, and could not read, is not silence."""
        return now - max(self._active_at, self._loop.woke_at)

    # The timer.

    def _arm(self, delay_s: float) -> None:
        if not self._over:
            self._alarm.set(delay_s)

    def _fire(self) -> None:
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
            due_s = SYNCHRONIZED_MAX_S  # by then, a synchronized update counts as ended
        if due_s is None:
            self._alarm.cancel()
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
            at, tail = terminal.log.read(TTY, max(0, end - TAIL_BYTES), TAIL_BYTES)
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


# The signal.


APART_S = 10.0
# A person who typed or resized within this time is looking at the terminal.
PERSON_S = 5.0
# Over pipes: a look comes this long after the last output.
QUIET_S = 1.5
# A command that works in silence may begin to read without a word. It is looked at again at growing intervals, and
# then left alone until it prints or is written to.
_RELOOK_MAX_S = 12.0
_LINE_BYTES = 2048
_LINE_CHARACTERS = 512


class Pacing:
    """Which question is signalled, and when, by a clock that is given. A question of low confidence is only
    recorded, and does not delay the same question when its confidence rises."""

    def __init__(self) -> None:
        self._last: tuple[object, bool] | None = None
        self._recorded_at = self._routed_at = float("-inf")

    def due(self, question: object, confidence: str, person_at: float) -> float | None:
        """From when on it may be signalled; None where it was."""
        routed = confidence != "low"
        if self._last is not None and self._last[0] == question and (self._last[1] or not routed):
            return None
        last = self._routed_at if routed else max(self._routed_at, self._recorded_at)
        return max(last + APART_S, person_at + PERSON_S)

    def note(self, now: float, question: object, confidence: str) -> bool:
        """It is signalled now: does it go to the queue?"""
        routed = confidence != "low"
        self._last = question, routed
        if routed:
            self._routed_at = now
        else:
            self._recorded_at = now
        return routed


class NeedsInput(Feature):
    """Lives from `begin`, when there is a command, its terminal or its standard input."""

    def __init__(self, session: SessionWithInput) -> None:
        self._session = session
        self._pacing = Pacing()
        self._over = True
        self._alarm = Alarm(session.loop, self._look_again)
        # Over pipes.
        self._active_at = 0.0
        self._relook_s = QUIET_S
        self._stream = "stdout"
        self._written = 0
        self._found: dict[str, Any] | None = None

    def begin(self, attempt: int) -> None:
        self._over = False
        if self._session.terminal is not None:
            self._session.terminal.looked = self._looked
        elif isinstance(self._session.stdin, Stdin) and self._session.stdin.is_open:
            self._session.stdin.emptied = self._wrote
            self._look_soon()
        else:
            self._over = True

    def on_output(self, stream: str) -> None:
        if not self._over and self._session.terminal is None:
            self._stream = stream
            self._look_soon()

    def facts(self) -> dict[str, Any]:
        """On a terminal, the terminal's own facts include this."""
        if self._over or self._found is None:
            return {}
        return {"input_state": "needs_input", "needs_input": self._found}

    def close(self) -> None:
        self._over = True
        self._found = None
        self._alarm.cancel()

    # On a terminal.

    def _looked(self) -> None:
        terminal = self._session.terminal
        if self._over or terminal is None:
            return
        found = terminal.asks()
        if found is None:
            self._alarm.cancel()
            return
        question = (terminal.inputs_count, found["kind"], found["secret"], found["line"])
        self._consider(found, question, terminal.person_at)

    # Over pipes.

    def _look_soon(self) -> None:
        """Something was printed or written: a process that waits now waits for something else."""
        self._found = None
        self._active_at = time.monotonic()
        self._relook_s = QUIET_S
        if not self._alarm.is_set:
            self._alarm.set(QUIET_S)

    def _wrote(self) -> None:
        self._written += 1
        self._look_soon()

    def _look(self) -> None:
        if self._over:
            return
        # A time in which we were stopped, and could not read, is not silence.
        quiet_s = time.monotonic() - max(self._active_at, self._session.loop.woke_at)
        if quiet_s < QUIET_S:
            self._alarm.set(QUIET_S - quiet_s)
            return
        pipe = self._session.stdin.pipe() if isinstance(self._session.stdin, Stdin) else None
        if pipe is None:
            return
        if foreground.reads_pipe(pipe, self._session.tree.living()):
            self._ask()
        elif self._relook_s <= _RELOOK_MAX_S:
            self._alarm.set(self._relook_s)
            self._relook_s *= 2

    def _ask(self) -> None:
        if self._found is None:
            line, kind, offset = self._last_line()
            # An interpreter at its prompt is idle; that is not a question.
            if kind in AT_PROMPT:
                return
            self._found = {
                "confidence": "medium",
                "kind": kind,
                "evidence": ["blocked_read", *(["pattern"] if kind else [])],
                "line": line,
                "secret": kind == "secret",
                "since": clock.now_text(),
                "offset": offset,
            }
        question = (self._written, *self._session.log.ends().items())
        self._consider(self._found, question, float("-inf"))

    def _last_line(self) -> tuple[str, str | None, int]:
        """What was printed last, what kind of question it is, and where the stream ends."""
        end = self._session.log.end(self._stream)
        try:
            at, raw = self._session.log.read(self._stream, max(0, end - _LINE_BYTES), _LINE_BYTES)
        except OSError:
            return "", None, end
        line: str = tail(raw, at, lines=1, chars=_LINE_CHARACTERS)["text"]
        found = None
        if raw[-1:] not in (b"", b"\n"):
            columns = sum(map(column_count, line))
            found = Patterns().find([line], columns, inverse=False, cursor_visible=True, leader=False)
        return line_of(line), found and found[0], end

    # Both.

    def _consider(self, found: dict[str, Any], question: object, person_at: float) -> None:
        due = self._pacing.due(question, found["confidence"], person_at)
        now = time.monotonic()
        self._alarm.cancel()
        if due is None:
            return
        if due > now:
            self._alarm.set(due - now)
        else:
            routed = self._pacing.note(now, question, found["confidence"])
            self._session.signals.emit("needs_input", dict(found), routed=routed)

    def _look_again(self) -> None:
        if self._session.terminal is not None:
            self._looked()
        else:
            self._look()
