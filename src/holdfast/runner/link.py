"""The near end of a link: a process that carries our words to the far end in another place, and its words to us.

How it gets there is its own affair: it is started with the words that the place gives, and what it reads and writes is
the link. Its far end first says whether it has the code that we speak of, and is sent it where it has not.
"""

from __future__ import annotations

import os
import time

from . import wire
from .kernel_signals import signal
from .loop import READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .loop import Loop

# The first line of the far end, after whatever a login prints.
MARK = b"\n\x01holdfast-link 1 "
_MARK_WITHIN_BYTES = 256 << 10
_READ_BYTES = 256 << 10
_LAST_WORDS_BYTES = 4 << 10
# A far end has no more to say at once: parsed, JSON takes many times its size.
_CONTROL_MAX_BYTES = 256 << 10
# A far end that speaks and does not listen is none.
_UNSENT_MAX_BYTES = 4 << 20
# What waits for a link that does not take it: above this nobody should be listened to until it does.
_UNSENT_BYTES = 1 << 20
# How often a helper is looked at where nobody tells of its end.
_LOOK_S = 0.1
_LEAVING_S = 1.0
_LEAVING_LOOK_S = 0.005
_DEFAULTS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


def spawn(argv: list[str], environment: dict[str, str], streams: dict[int, int]) -> int:
    """A process of the place's own program; it has no other descriptor of ours than `streams`, by number."""
    actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    actions += [(os.POSIX_SPAWN_DUP2, ours, fd) for fd, ours in streams.items()]
    return os.posix_spawnp(argv[0], argv, environment, file_actions=actions, setsigmask=[], setsigdef=_DEFAULTS)


class Greeting:
    """What comes from a far end: whatever a login prints, a line that says whether it has our code, then frames."""

    def __init__(self, code: bytes) -> None:
        self._code = code
        self._said = b"\n"
        self._wanted = b""
        self._decoder: wire.Decoder | None = None

    def feed(self, received: bytes) -> list[wire.Frame]:
        if self._decoder is None:
            self._said += received
            _, _, after = self._said.partition(MARK)
            word, newline, received = after.partition(b"\n")
            if not newline:
                if len(self._said) > _MARK_WITHIN_BYTES:
                    raise wire.BadFrame("no far end answers there")
                return []
            if word == b"need" and self._code:
                self._wanted, self._code = self._code, b""
                self._said = b"\n"
                return self.feed(received)
            if word != b"have":
                raise wire.BadFrame("it wants what we do not have")
            self._decoder = wire.Decoder(control_max=_CONTROL_MAX_BYTES)
        return self._decoder.feed(received)

    def take_wanted(self) -> bytes:
        """The code, once, where the far end lacks it."""
        wanted, self._wanted = self._wanted, b""
        return wanted


class Helper:
    """A process that does one thing outside; `failed` is called with its last words where it could not."""

    def __init__(
        self, loop: Loop, argv: list[str], environment: dict[str, str], *, failed: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._failed = failed
        self._errors, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._pid = spawn(argv, environment, {2: theirs})
        except OSError:
            os.close(self._errors)
            raise
        finally:
            os.close(theirs)
        self._end = -1
        try:
            self._end = os.pidfd_open(self._pid)
        except OSError:
            self._look()  # a kernel that cannot tell us of its end
        else:
            loop.watch(self._end, READ, self._ended)

    def _look(self) -> None:
        if os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            self._loop.after(_LOOK_S, self._look)
        else:
            self._ended(READ)

    def _ended(self, _events: int) -> None:
        if self._end >= 0:
            self._loop.watch(self._end, 0, self._ended)
            os.close(self._end)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        try:
            said = os.read(self._errors, _LAST_WORDS_BYTES)
        except BlockingIOError:
            said = b""  # somebody whom it left behind has the other end
        os.close(self._errors)
        if code:
            lines = said.decode("utf-8", "replace").split("\n")
            self._failed(next((line for line in reversed(lines) if line.strip()), f"it ended with {code}"))


class Link:
    """`heard` is given frames, `lost` is called once when nothing more can come."""

    def __init__(
        self,
        loop: Loop,
        argv: list[str],
        environment: dict[str, str],
        code: bytes,
        *,
        heard: Callable[[list[wire.Frame]], None],
        lost: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._heard = heard
        self._lost = lost
        self._greeting = Greeting(code)
        self._unsent = bytearray()
        self._last_words = b""
        self._is_silent = False
        theirs_in, self._out = os.pipe2(os.O_CLOEXEC)
        self._in, theirs_out = os.pipe2(os.O_CLOEXEC)
        self._errors, theirs_errors = os.pipe2(os.O_CLOEXEC)
        theirs = {0: theirs_in, 1: theirs_out, 2: theirs_errors}
        try:
            self._pid = spawn(argv, environment, theirs)
        except OSError:
            for fd in (self._out, self._in, self._errors):
                os.close(fd)
            raise
        finally:
            for fd in theirs.values():
                os.close(fd)
        for fd in (self._out, self._in, self._errors):
            os.set_blocking(fd, False)
        loop.watch(self._in, READ, self._hear)
        loop.watch(self._errors, READ, self._hear_errors)

    @property
    def is_full(self) -> bool:
        return len(self._unsent) > _UNSENT_BYTES

    def tell(self, message: dict[str, Any]) -> None:
        self.send(wire.control(message))

    def send(self, payload: bytes) -> None:
        self._unsent += payload
        self._flush(WRITE)

    def close(self) -> tuple[int | None, str]:
        """End it. How it had ended by itself, None where it had not, and its last words."""
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        # One that says nothing more is about to end, and how it does tells why.
        until = time.monotonic() + (_LEAVING_S if self._is_silent else 0.0)
        while (ended := os.waitid(os.P_PID, self._pid, look)) is None and time.monotonic() < until:
            time.sleep(_LEAVING_LOOK_S)
        if ended is None:
            os.kill(self._pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._hear_errors(READ)
        for fd in (self._in, self._out, self._errors):
            self._loop.watch(fd, 0, self._hear)
            os.close(fd)
        return (None if ended is None else code), self._last_words.decode("utf-8", "replace").strip()

    def _flush(self, _events: int) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._out, self._unsent[:_READ_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # of its end we hear on the other side
        self._loop.watch(self._out, WRITE if self._unsent else 0, self._flush)

    def _hear(self, _events: int) -> None:
        if len(self._unsent) > _UNSENT_MAX_BYTES:
            self._lost()
            return
        try:
            received = os.read(self._in, _READ_BYTES)
        except BlockingIOError:
            return
        if not received:
            self._is_silent = True
            self._lost()
            return
        try:
            frames = self._greeting.feed(received)
        except wire.BadFrame:
            self._lost()
            return
        wanted = self._greeting.take_wanted()
        if wanted:
            self.send(wanted)
        if frames:
            self._heard(frames)

    def _hear_errors(self, _events: int) -> None:
        try:
            said = os.read(self._errors, _LAST_WORDS_BYTES)
        except BlockingIOError:
            return
        if said:
            self._last_words = (self._last_words + said)[-_LAST_WORDS_BYTES:]
        else:
            self._loop.watch(self._errors, 0, self._hear_errors)
