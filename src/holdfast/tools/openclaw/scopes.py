"""Scopes: which runs belong together, and that of several replacements the newest lives, whichever hosts ask.

A scope is a claim in `<home>/locks/` and three files beside it. Whoever dies lets go of all of them.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
import time
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

from ...errors import BadArgument, Busy
from ...home import LABEL_VALUE_CHARACTERS, check_labels
from ...host.claims import CANCELLED, EARLIER, STARTUPS, Claim, lock_now, lock_within, stands_at

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from ...home import Home
    from ...host.claims import Held

T = TypeVar("T")

# A replacement waits for others to stop what they replace; a startup in flight is bounded by itself.
_FENCE_S = 600.0
_STARTUPS_S = 60.0
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class Scope:
    """Nothing is touched before a method is called."""

    def __init__(self, home: Home, key: str) -> None:
        self._claim = Claim(home, "key", f"openclaw.scope:{key}")
        self.key = key

    def __repr__(self) -> str:
        return f"<Scope {self.key!r}>"

    def ticket(self) -> int:
        return self._claim.ticket()

    def is_newest(self, ticket: int) -> bool:
        return self._claim.newest(ticket)

    def cancel(self) -> int:
        """Whatever was asked for before this moment is not wanted any more; the moment."""
        now = moment()
        temporary = f"{self._cancelled}.{os.urandom(4).hex()}"
        with open(temporary, "w", opener=_private) as file:
            file.write(str(now))
        os.replace(temporary, self._cancelled)
        return now

    def cancelled_since(self, asked: int) -> bool:
        try:
            with open(self._cancelled) as file:
                at = int(file.read() or 0)
        except (FileNotFoundError, ValueError):
            return False
        # Of another boot it is about nobody who lives.
        return asked < at <= moment()

    @asynccontextmanager
    async def fence(self) -> AsyncIterator[None]:
        """One replacement at a time."""
        held: Held = await apart(lambda: self._claim.acquire(_FENCE_S), lambda late: late.close())
        try:
            yield
        finally:
            held.close()

    @asynccontextmanager
    async def startup(self) -> AsyncIterator[None]:
        """A start without replacement: any number at once, and a replacement waits for those in flight."""
        fd = await self._start()
        try:
            yield
        finally:
            os.close(fd)

    async def startups_done(self) -> None:
        """Until those that are in flight now have a session that can be seen. Later ones neither wait nor are waited
        for: they find another file."""
        earlier = await self._earlier()
        try:
            fd = os.open(self._starting, _FLAGS)
            # Named still, so that whoever comes while we wait, or after we died, waits for them too.
            os.rename(self._starting, self._before)
        except FileNotFoundError:
            return  # nobody starts
        finally:
            os.close(earlier)
        await self._lock(fd)
        os.close(fd)

    async def _start(self) -> int:
        while True:
            fd = os.open(self._starting, _FLAGS | os.O_CREAT, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if stands_at(fd, self._starting):
                    return fd
            except BlockingIOError:
                pass
            except BaseException:
                os.close(fd)
                raise
            # It was set aside or swept between open and lock, and only who does that locks it alone.
            os.close(fd)
            await asyncio.sleep(0)

    async def _earlier(self) -> int:
        """The starts that others wait for are over, and nobody else sets any aside until this is closed."""
        while True:
            fd = os.open(self._before, _FLAGS | os.O_CREAT, 0o600)
            await self._lock(fd)
            if stands_at(fd, self._before):
                return fd
            os.close(fd)

    async def _lock(self, fd: int) -> None:
        try:
            if lock_now(fd):
                return
        except OSError:
            os.close(fd)
            raise
        if not await apart(lambda: lock_within(fd, _STARTUPS_S), lambda came: os.close(fd) if came else None):
            raise Busy(f"starts in the scope {self.key[:80]!r} took more than {_STARTUPS_S:g} s")

    @property
    def _cancelled(self) -> str:
        return self._claim.path + CANCELLED

    @property
    def _starting(self) -> str:
        return self._claim.path + STARTUPS

    @property
    def _before(self) -> str:
        return self._claim.path + EARLIER


def moment() -> int:
    """What orders requests of all hosts of this machine."""
    return time.monotonic_ns()


def label(key: str) -> str:
    """The key as the value of a label; a hash of one that would be none."""
    try:
        return check_labels({"scope": key})["scope"] if len(key) <= LABEL_VALUE_CHARACTERS else _hashed(key)
    except BadArgument:
        return _hashed(key)


def _hashed(key: str) -> str:
    return "sha256:" + sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


async def apart(work: Callable[[], T], too_late: Callable[[T], object]) -> T:
    """In a thread of its own, for those of the pool may all wait for whoever needs one to let us go on. What comes
    after we were cancelled is given to `too_late`."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if came.cancelled():
            if error is None:
                too_late(result)  # type: ignore[arg-type]
        elif error is not None:
            came.set_exception(error)
        else:
            came.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = work()
        except BaseException as problem:  # noqa: BLE001
            error = problem
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            if error is None:
                too_late(result)  # type: ignore[arg-type]

    threading.Thread(target=run, name="holdfast-scope", daemon=True).start()
    return await came


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
