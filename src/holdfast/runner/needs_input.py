"""Telling that the command waits for somebody to type: on a terminal by what its looks found, over pipes by one of its
processes that sits in a read on an empty standard input.

Once for each question, not more often than every few seconds, and not to a person who is just typing.
"""

from __future__ import annotations

import time

from . import clock
from .characters import column_count
from .foreground import reads_pipe
from .lines import tail
from .prompts import AT_PROMPT, Patterns, line_of
from .stdin import Stdin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .life import Life
    from .loop import Timer

APART_S = 10.0
# Whoever typed or changed the size of a terminal so lately looks at it.
PERSON_S = 5.0
# Over pipes: so long after the last output a look is worth its cost.
QUIET_S = 1.5
# A command that works in silence may come to ask without a word. It is looked at again, ever later, and then left
# alone until it prints or is written to.
_RELOOK_MAX_S = 12.0
_LINE_BYTES = 2048
_LINE_CHARACTERS = 512


class Pacing:
    """Which question is told, and when, by a clock that is given. One of low confidence is only recorded, and does not
    hold up the same one with more."""

    def __init__(self) -> None:
        self._told: tuple[object, bool] | None = None
        self._recorded_at = self._routed_at = float("-inf")

    def due(self, question: object, confidence: str, person_at: float) -> float | None:
        """From when on it may be told; None where it was."""
        routed = confidence != "low"
        if self._told is not None and self._told[0] == question and (self._told[1] or not routed):
            return None
        last = self._routed_at if routed else max(self._routed_at, self._recorded_at)
        return max(last + APART_S, person_at + PERSON_S)

    def tell(self, now: float, question: object, confidence: str) -> bool:
        """It is told: does it go to the queue?"""
        routed = confidence != "low"
        self._told = question, routed
        if routed:
            self._routed_at = now
        else:
            self._recorded_at = now
        return routed


class NeedsInput:
    """Lives from `begin`, when there is a command, its terminal or its standard input."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._pacing = Pacing()
        self._over = True
        self._timer: Timer | None = None
        # Over pipes.
        self._active_at = 0.0
        self._relook_s = QUIET_S
        self._stream = "stdout"
        self._written = 0
        self._found: dict[str, Any] | None = None

    def begin(self, _attempt: int) -> None:
        self._over = False
        if self._life.terminal is not None:
            self._life.terminal.looked = self._looked
        elif isinstance(self._life.stdin, Stdin) and self._life.stdin.is_open:
            self._life.stdin.emptied = self._wrote
            self._stir()
        else:
            self._over = True

    def heard(self, stream: str, _size: int) -> None:
        if not self._over and self._life.terminal is None:
            self._stream = stream
            self._stir()

    def pause(self) -> None:
        self.close()

    def finish(self) -> None:
        self.close()

    def facts(self) -> dict[str, Any]:
        """Of a terminal its own facts say it."""
        if self._over or self._found is None:
            return {}
        return {"input_state": "needs_input", "needs_input": self._found}

    def close(self) -> None:
        self._over = True
        self._found = None
        self._disarm()

    # On a terminal.

    def _looked(self) -> None:
        terminal = self._life.terminal
        if self._over or terminal is None:
            return
        found = terminal.asks()
        if found is None:
            self._disarm()
            return
        question = (terminal.typed, found["kind"], found["secret"], found["line"])
        self._consider(found, question, terminal.person_at)

    # Over pipes.

    def _stir(self) -> None:
        """Something was printed or written: who waits now, waits anew."""
        self._found = None
        self._active_at = time.monotonic()
        self._relook_s = QUIET_S
        if self._timer is None:
            self._arm(QUIET_S, self._look)

    def _wrote(self) -> None:
        self._written += 1
        self._stir()

    def _look(self) -> None:
        self._timer = None
        if self._over:
            return
        # A time in which nobody could have been heard, because we were stopped, is not silence.
        quiet_s = time.monotonic() - max(self._active_at, self._life.loop.woke_at)
        if quiet_s < QUIET_S:
            self._arm(QUIET_S - quiet_s, self._look)
            return
        pipe = self._life.stdin.pipe() if isinstance(self._life.stdin, Stdin) else None
        if pipe is None:
            return
        if reads_pipe(pipe, self._life.family.living()):
            self._ask()
        elif self._relook_s <= _RELOOK_MAX_S:
            self._arm(self._relook_s, self._look)
            self._relook_s *= 2

    def _ask(self) -> None:
        if self._found is None:
            line, kind, offset = self._last_line()
            # A prompt of an interpreter is where it rests, and no question.
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
        question = (self._written, *self._life.log.ends().items())
        self._consider(self._found, question, float("-inf"))

    def _last_line(self) -> tuple[str, str | None, int]:
        """What was printed last, what kind of question it is, and where the stream ends."""
        end = self._life.log.end(self._stream)
        try:
            at, raw = self._life.log.read(self._stream, max(0, end - _LINE_BYTES), _LINE_BYTES)
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
        if due is None:
            self._disarm()
        elif due > now:
            self._arm(due - now, self._look_again)
        else:
            self._disarm()
            routed = self._pacing.tell(now, question, found["confidence"])
            self._life.signals.emit("needs_input", dict(found), routed=routed)

    def _look_again(self) -> None:
        """It could not be told when it was found. Is it still so?"""
        self._timer = None
        if self._life.terminal is not None:
            self._looked()
        else:
            self._look()

    def _arm(self, delay_s: float, call: Any) -> None:
        self._disarm()
        self._timer = self._life.loop.after(delay_s, call)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
