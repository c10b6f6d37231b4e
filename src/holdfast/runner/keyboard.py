"""The way into a terminal: what people and programs type, and what the terminal itself answers to queries.

Two lanes, one writer. A call (one request, one `input` frame) is typed part by part, each encoded by the modes in
force at its turn; calls never mix, but for keys that were asked to come with pauses. An answer goes before any part
that has not begun, never into one.
"""

from __future__ import annotations

import os
from collections import deque

from . import keys
from .loop import WRITE
from .tty import CANONICAL_BYTES
from .wire import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from .keys import Part
    from .loop import Loop, Timer
    from .tracker import Tracker
    from .tty import Tty

QUEUE_MAX_BYTES = 1 << 20
REPLIES_MAX_BYTES = 64 << 10
# A tty that is canonical and echoes just now would show the answer; a program that asked is about to change that.
_REPLY_PATIENCE_S = 0.02
# What ends a file, as the terminal has it when it is typed.
EOF: Part = {"eof": True}


def size_of(parts: list[Part]) -> int:
    """What a call counts for in the queue: its text, whatever its keys become."""
    return sum(len(text) if isinstance(text, (str, bytes)) else 1 for part in parts for text in part.values())


def _is_raw(part: object) -> bool:
    """Input that came as bytes. No JSON spells that, so nobody can send one as a part."""
    return isinstance(part, dict) and isinstance(part.get("raw"), bytes)


class _Call:
    """`taken` counts what the kernel took, not what was begun."""

    __slots__ = ("done", "parts", "size", "taken")

    def __init__(self, parts: list[Part], size: int, done: Callable[[bool, int], None]) -> None:
        self.parts = deque(parts)
        self.size = size
        self.taken = 0
        self.done = done


class Keyboard:
    """`done(whole, bytes)` of a call is called when the kernel took its last byte, or nobody will."""

    def __init__(
        self, loop: Loop, tty: Tty, tracker: Tracker, typed: Callable[[bytes], None] = lambda _data: None
    ) -> None:
        # Told what is written for somebody, before its echo can be read.
        self._typed = typed
        self._loop = loop
        self._tty = tty
        self._tracker = tracker
        # One of its own: the loop watches the other for output.
        self._fd = os.dup(tty.master)
        self._calls: deque[_Call] = deque()
        self._replies: deque[bytes] = deque()
        self._replies_size = 0
        self._under_way = memoryview(b"")
        self._writing: _Call | None = None
        self._queued = 0
        # Calls between two of their keys: others may type meanwhile. Only the Enter of a `submit` is waited for.
        self._sleeping: list[_Call] = []
        self._pause: Timer | None = None
        self._patience: Timer | None = None
        self._waited = False
        self._last_byte = b""
        self.replies_dropped = 0
        self.closed_because: str | None = None

    @property
    def is_open(self) -> bool:
        return self.closed_because is None

    @property
    def queued_bytes(self) -> int:
        return self._queued

    def has_room(self, size: int) -> bool:
        return self._queued + size <= QUEUE_MAX_BYTES

    def check(self, parts: list[Part]) -> tuple[int, list[str]]:
        """How many bytes they are by the modes in force, and warnings. What cannot be typed is refused while nothing is
        written yet: a call is typed as a whole or not at all."""
        warnings: list[str] = []
        count = line = 0
        for part in parts:
            try:
                if not _is_raw(part):
                    keys.check(part)
                if "pause" in part:
                    continue
                typed, said = self._encode(part)
            except keys.BadPart as problem:
                raise Problem(problem.code, str(problem), argument=problem.argument) from None
            except keys.Inexpressible as problem:
                suggestions = list(problem.suggestions)
                raise Problem(problem.code, str(problem), key=problem.key, suggestions=suggestions) from None
            count += len(typed)
            warnings += [each for each in said if each not in warnings]
            if len(typed) > CANONICAL_BYTES:
                line = max(line, *map(len, typed.replace(b"\r", b"\n").split(b"\n")))
        settings = self._tty.settings()
        if line > CANONICAL_BYTES and settings is not None and settings.canonical:
            warnings.append("canonical_limit")
        return count, warnings

    def type(self, parts: list[Part], done: Callable[[bool, int], None] = lambda _whole, _bytes: None) -> None:
        size = size_of(parts)
        self._queued += size
        self._calls.append(_Call(parts, size, done))
        self._drain(0)

    def write(self, unit: bytes, done: Callable[[bool], None] = lambda _taken: None) -> None:
        self.type([{"raw": unit}], lambda whole, _bytes: done(whole))

    def answer(self, replies: list[bytes]) -> None:
        for reply in replies:
            if self._replies_size + len(reply) > REPLIES_MAX_BYTES:
                self.replies_dropped += 1
                continue
            self._replies.append(reply)
            self._replies_size += len(reply)
        self._drain(0)

    def interrupt(self) -> bool:
        """Type what interrupts, ahead of all that waits. False when it cannot be written now."""
        settings = self._tty.settings()
        if self.closed_because is not None or settings is None or self._under_way:
            return False
        try:
            return os.write(self._fd, settings.interrupt) == 1
        except OSError:
            return False

    def type_eof(self) -> list[str]:
        """A terminal stays writable: its end of file is a key. Warnings."""
        settings = self._tty.settings()
        self.type([EOF])
        return [] if settings is None or settings.canonical else ["tty_raw"]

    def abandon(self, because: str) -> None:
        if self.closed_because is None:
            self.closed_because = because
        for timer in (self._pause, self._patience):
            if timer is not None:
                timer.cancel()
        self._pause = self._patience = None
        self._replies.clear()
        self._replies_size = 0
        self._under_way = memoryview(b"")
        calls = [*self._calls, *self._sleeping]
        self._calls.clear()
        self._sleeping.clear()
        for call in calls:
            self._queued -= call.size
            call.done(False, call.taken)
        if self._fd >= 0:
            self._loop.watch(self._fd, 0, self._drain)
            os.close(self._fd)
            self._fd = -1

    def _encode(self, part: Part) -> tuple[bytes, list[str]]:
        if _is_raw(part):
            return part["raw"], []
        if part is not EOF:
            return keys.encode(part, self._tracker)
        settings = self._tty.settings()
        if settings is None:
            return b"", []
        # The first one only ends the line that was begun.
        twice = settings.canonical and self._last_byte not in (b"", *settings.line_ends)
        return settings.eof * (2 if twice else 1), []

    def _drain(self, _events: int) -> None:
        if self.closed_because is not None:
            return
        try:
            while self._under_way or self._next():
                written = os.write(self._fd, self._under_way)
                self._under_way = self._under_way[written:]
                if self._writing is not None:
                    self._writing.taken += written
        except BlockingIOError:
            self._loop.watch(self._fd, WRITE, self._drain)
            return
        except OSError:
            self.abandon("the terminal was hung up")
            return
        if self._fd >= 0:
            self._loop.watch(self._fd, 0, self._drain)

    def _next(self) -> bool:
        """Take up what is to be written next, if anything may be."""
        if self._replies:
            if not self._may_answer():
                return False
            reply = self._replies.popleft()
            self._replies_size -= len(reply)
            self._under_way, self._writing = memoryview(reply), None
            return True
        self._waited = False
        while self._calls and self._pause is None:
            call = self._calls[0]
            if not call.parts:
                self._calls.popleft()
                self._queued -= call.size
                call.done(True, call.taken)
                if self._under_way:
                    return True  # somebody was told, is gone, and the focus with him: that is being typed
                continue
            part = call.parts.popleft()
            if "pause" in part:
                if call.parts and "enter" in call.parts[0]:
                    self._pause = self._loop.after(part["pause"] / 1000, self._go_on)
                    return False
                self._calls.popleft()
                self._sleeping.append(call)
                self._loop.after(part["pause"] / 1000, lambda call=call: self._wake(call))  # type: ignore[misc]
                continue
            try:
                typed, _ = self._encode(part)
            except keys.Inexpressible:
                continue  # the mode that made it possible was left while it waited
            if typed:
                self._last_byte = b"" if part is EOF else typed[-1:]
                self._under_way, self._writing = memoryview(typed), call
                self._typed(typed)
                return True
        return False

    def _may_answer(self) -> bool:
        if self._waited:
            return True
        settings = self._tty.settings()
        if settings is None or not (settings.canonical and settings.echo):
            return True
        if self._patience is None:
            self._patience = self._loop.after(_REPLY_PATIENCE_S, self._out_of_patience)
        return False

    def _out_of_patience(self) -> None:
        self._patience = None
        self._waited = True
        self._drain(0)

    def _wake(self, call: _Call) -> None:
        if call in self._sleeping:
            self._sleeping.remove(call)
            self._calls.append(call)  # behind one that is under way: only its own keys lie apart
            self._drain(0)

    def _go_on(self) -> None:
        self._pause = None
        self._drain(0)
