"""The near end of a link: a process that carries our messages to the far end in another place, and its messages to us.

The command line of the process is that of the kind of place; its stdin and stdout are the link. The far end first
reports whether it has our code, and is sent the code if it does not.
"""

from __future__ import annotations

import os
import time

from ..core import wire
from ..core.kernel_signals import signal
from ..core.loop import READ, WRITE
from ..core.processes import start_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.loop import Loop


# The first line of the far end, after whatever a login prints.
MARK = b"\n\x01holdfast-link 1 "
_MARK_WITHIN_BYTES = 256 << 10
_READ_BYTES = 256 << 10
_ERROR_TEXT_BYTES = 4 << 10
# The largest message of a far end: parsed JSON takes many times its size.
_CONTROL_MAX_BYTES = 256 << 10
# A far end that sends and never reads is invalid.
_UNSENT_MAX_BYTES = 4 << 20
# Above this many unsent bytes hosts are not read until the link takes more.
_UNSENT_BYTES = 1 << 20
# Without pidfds: how often to look for the end of a helper.
_LOOK_S = 0.1
_LEAVING_S = 1.0
_LEAVING_LOOK_S = 0.005


class Greeting:
    """Parses what a far end sends: the text of a login, a line that says whether it has our code, then frames."""

    def __init__(self, code: bytes) -> None:
        self._code = code
        self._received = b"\n"
        self._wanted = b""
        self._decoder: wire.Decoder | None = None

    def feed(self, received: bytes) -> list[wire.Frame]:
        if self._decoder is None:
            self._received += received
            _, _, after = self._received.partition(MARK)
            word, newline, received = after.partition(b"\n")
            if not newline:
                if len(self._received) > _MARK_WITHIN_BYTES:
                    raise wire.BadFrame("the far end does not answer")
                return []
            if word == b"need" and self._code:
                self._wanted, self._code = self._code, b""
                self._received = b"\n"
                return self.feed(received)
            if word != b"have":
                raise wire.BadFrame("it asks for code that we do not have")
            self._decoder = wire.Decoder(control_max=_CONTROL_MAX_BYTES)
        return self._decoder.feed(received)

    def take_wanted(self) -> bytes:
        """The code, once, where the far end lacks it."""
        wanted, self._wanted = self._wanted, b""
        return wanted


class Helper:
    """A process that does one thing outside; `failed` is called with its error text where it could not."""

    def __init__(
        self, loop: Loop, argv: list[str], environment: dict[str, str], *, failed: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._failed = failed
        self._errors, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._pid = start_program(argv, environment, {2: theirs}, setsid=False)
        except OSError:
            os.close(self._errors)
            raise
        finally:
            os.close(theirs)
        self._end = -1
        try:
            self._end = os.pidfd_open(self._pid)
        except OSError:
            self._look()  # a kernel that cannot report its end
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
            errors = os.read(self._errors, _ERROR_TEXT_BYTES)
        except BlockingIOError:
            errors = b""  # a process that it left behind has the other end
        os.close(self._errors)
        if code:
            lines = errors.decode("utf-8", "replace").split("\n")
            self._failed(next((line for line in reversed(lines) if line.strip()), f"it ended with {code}"))


class Link:
    """`on_frames` gets frames, `lost` is called once when nothing more can come."""

    def __init__(
        self,
        loop: Loop,
        argv: list[str],
        environment: dict[str, str],
        code: bytes,
        *,
        on_frames: Callable[[list[wire.Frame]], None],
        lost: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._on_frames = on_frames
        self._lost = lost
        self._greeting = Greeting(code)
        self._unsent = bytearray()
        self._error_text = b""
        self._is_silent = False
        theirs_in, self._out = os.pipe2(os.O_CLOEXEC)
        self._in, theirs_out = os.pipe2(os.O_CLOEXEC)
        self._errors, theirs_errors = os.pipe2(os.O_CLOEXEC)
        theirs = {0: theirs_in, 1: theirs_out, 2: theirs_errors}
        try:
            self._pid = start_program(argv, environment, theirs, setsid=False)
        except OSError:
            for fd in (self._out, self._in, self._errors):
                os.close(fd)
            raise
        finally:
            for fd in theirs.values():
                os.close(fd)
        for fd in (self._out, self._in, self._errors):
            os.set_blocking(fd, False)
        loop.watch(self._in, READ, self._read)
        loop.watch(self._errors, READ, self._read_errors)

    @property
    def is_full(self) -> bool:
        return len(self._unsent) > _UNSENT_BYTES

    def send_message(self, message: dict[str, Any]) -> None:
        self.send(wire.control(message))

    def send(self, payload: bytes) -> None:
        self._unsent += payload
        self._flush(WRITE)

    def close(self) -> tuple[int | None, str]:
        """End it. Returns its exit code, None if it had not ended by itself, and its error text."""
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        # A link that sends nothing more is about to end, and its exit code says why.
        until = time.monotonic() + (_LEAVING_S if self._is_silent else 0.0)
        while (ended := os.waitid(os.P_PID, self._pid, look)) is None and time.monotonic() < until:
            time.sleep(_LEAVING_LOOK_S)
        if ended is None:
            os.kill(self._pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._read_errors(READ)
        for fd in (self._in, self._out, self._errors):
            self._loop.watch(fd, 0, self._read)
            os.close(fd)
        return (None if ended is None else code), self._error_text.decode("utf-8", "replace").strip()

    def _flush(self, _events: int) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._out, self._unsent[:_READ_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # the next read reports its end
        self._loop.watch(self._out, WRITE if self._unsent else 0, self._flush)

    def _read(self, _events: int) -> None:
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
            self._on_frames(frames)

    def _read_errors(self, _events: int) -> None:
        try:
            errors = os.read(self._errors, _ERROR_TEXT_BYTES)
        except BlockingIOError:
            return
        if errors:
            self._error_text = (self._error_text + errors)[-_ERROR_TEXT_BYTES:]
        else:
            self._loop.watch(self._errors, 0, self._read_errors)
