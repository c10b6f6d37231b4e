"""Names and keys: one live holder each, across hosts.

A claim is a file in `locks/` that names its holder. A start locks it while it decides which session is the holder; the
new runner keeps the lock, through a copy of the descriptor, until its spec is on disk. A process that dies releases it.
"""

from __future__ import annotations

import fcntl
import os
import time

from .. import home as homes
from ..core import jsontext
from ..errors import Busy, DamagedRecord, NameTaken, NotFound
from ..model import LIVE_STATES
from .observe import from_files, read_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Literal

    from ..home import Home
    from .driver import Driver
    from .observe import Observed


# How long to wait for another start that holds the same name or key.
CLAIM_S = 10.0
TICKETS = ".tickets"
# Files beside a claim. Only earlier releases wrote the last three.
BESIDE = (TICKETS, ".startups", ".earlier", ".cancelled")

_FLAGS = os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
# The text is only for people who look into the file; because it fits in one page, a reader sees the whole line.
_TEXT_CHARACTERS = 200
_READ_BYTES = 4096


class Claim:
    """The claim on one name or key. Nothing is touched before a method is called."""

    def __init__(self, home: Home, kind: Literal["name", "key"], text: str) -> None:
        # OpenSSL takes milliseconds to load, and most starts have neither name nor key.
        from hashlib import sha256

        digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        self.kind = kind
        self.text = text
        self.path = os.path.join(home.locks, f"{kind}-{digest}")

    def __repr__(self) -> str:
        return f"<Claim {self.kind} {self.text!r}>"

    async def acquire(self, driver: Driver, timeout: float | None) -> Held:
        """Take the lock, within `timeout` seconds; else NameTaken or Busy, because another start is in progress."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            fd = os.open(self.path, os.O_RDWR | _FLAGS, 0o600)
            try:
                locked = await _lock_within(driver, fd, None if deadline is None else deadline - time.monotonic())
                if locked and stands_at(fd, self.path):
                    return Held(fd, self.text)
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
            if not locked:
                if self.kind == "name":
                    raise NameTaken(self.text, self.peek())
                raise Busy(f"another start with the key {self.text[:80]!r} is in progress")
            # The file was swept between open and lock: what we held no longer has a name.

    def peek(self) -> str | None:
        """The id that was last set, without the lock. The session may have ended."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return holder_of(os.pread(fd, _READ_BYTES, 0))
        finally:
            os.close(fd)

    def ticket(self) -> int:
        """Draw the next number: a later one replaces the earlier ones."""
        fd = os.open(self.path + TICKETS, os.O_WRONLY | os.O_APPEND | _FLAGS, 0o600)
        try:
            os.write(fd, b".")
            # An appending write leaves the offset of this descriptor just after its own byte.
            return os.lseek(fd, 0, os.SEEK_CUR)
        finally:
            os.close(fd)

    def tickets(self) -> int:
        """The number of the ticket that was drawn last."""
        try:
            return os.stat(self.path + TICKETS).st_size
        except FileNotFoundError:
            return 0

    def newest(self, ticket: int) -> bool:
        """Whether no ticket was drawn after this one."""
        return self.tickets() <= ticket


class Held:
    """A claim whose lock is ours. Leaving the block closes our copy; a runner's copy keeps the lock."""

    def __init__(self, fd: int, text: str) -> None:
        self._fd = fd
        self._text = text

    def __enter__(self) -> Held:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def holder(self) -> str | None:
        return holder_of(os.pread(self._fd, _READ_BYTES, 0))

    def set(self, id: str | None) -> None:
        """Write the holder; None for no holder."""
        if id is None:
            os.ftruncate(self._fd, 0)
            return
        line = jsontext.write({"id": id, "text": self._text[:_TEXT_CHARACTERS]}).encode() + b"\n"
        # Written over the old line and cut afterwards: a reader finds a whole first line at any moment.
        os.pwrite(self._fd, line, 0)
        os.ftruncate(self._fd, len(line))

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        # Never LOCK_UN: it would also take the lock from the copy that a runner has.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def holder_of(content: bytes) -> str | None:
    """The valid id in the first line of a claim's file, or None."""
    try:
        record = jsontext.read(content.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return None
    id = record.get("id") if isinstance(record, dict) else None
    return id if isinstance(id, str) and homes.is_id(id) else None


def stands_at(fd: int, path: str) -> bool:
    """Whether `path` still names the file behind `fd`."""
    mine = os.fstat(fd)
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def lock_now(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _lock_within(driver: Driver, fd: int, timeout: float | None) -> bool:
    """Lock `fd`, waiting up to `timeout` seconds.

    flock has no timeout, an alarm signal would belong to our host's program, and trying again and again is polling. So
    a thread waits in the kernel, on a copy of the descriptor, which has the same lock. If we give up, the thread gets
    the lock when it is free, releases it with its copy and ends; the lock's holder is a start, which is bounded itself.
    """
    if lock_now(fd):
        return True
    if timeout is not None and timeout <= 0:
        return False
    import threading

    copy = os.dup(fd)
    try:
        locked, bell = os.pipe()
    except OSError:
        os.close(copy)
        raise

    def wait() -> None:
        try:
            fcntl.flock(copy, fcntl.LOCK_EX)
        finally:
            os.close(copy)
            os.close(bell)

    threading.Thread(target=wait, name="holdfast-claim", daemon=True).start()
    try:
        await driver.ready([locked], (), timeout)
    finally:
        os.close(locked)
    # The lock of the copy is ours already; a thread that failed has none.
    return lock_now(fd)


def live_holder(home: Home, id: str | None) -> Observed | None:
    """The session that a claim names, if it lives."""
    seen = kept_holder(home, id)
    return seen if seen is not None and seen.state in LIVE_STATES else None


def kept_holder(home: Home, id: str | None) -> Observed | None:
    """The session that a claim names, also if it has ended."""
    if id is None:
        return None
    try:
        return from_files(read_files(home, id))
    except (NotFound, DamagedRecord):
        return None


def name_of(home: Home, id: str) -> object:
    try:
        files = read_files(home, id)
    except (NotFound, DamagedRecord):
        return None
    return files.current().get("name")
