"""Which session is meant, and names and keys: one live holder each, across hosts."""

from __future__ import annotations

import fcntl
import os
import time

from .. import home as homes
from ..core import jsontext
from ..errors import AmbiguousId, BadArgument, Busy, DamagedRecord, NameTaken, NotFound, Removed
from ..home import check_name, is_id
from ..model import LIVE_STATES
from .observe import from_files, read_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Literal

    from ..home import Home
    from ..index import Index
    from .observe import Observed


# Names and keys: one live holder each, across hosts.
#
# A claim is a file in `locks/` that names its holder. A start locks it while it decides which session is the holder;
# the new runner keeps the lock, through a copy of the descriptor, until its spec is on disk. A process that dies
# releases it.


# How long to wait for another start that holds the same name or key.
CLAIM_S = 10.0
TICKETS = ".tickets"
# Files beside a claim. Only earlier releases wrote the last three.
BESIDE = (TICKETS, ".startups", ".earlier", ".cancelled")

_FLAGS = os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
# The text is only there for people who look into the file; within one page a reader sees the line whole.
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

    def acquire(self, timeout: float) -> Held:
        """The lock, within `timeout` seconds; else NameTaken or Busy, because another start is under way."""
        deadline = time.monotonic() + timeout
        while True:
            fd = os.open(self.path, os.O_RDWR | _FLAGS, 0o600)
            if not lock_within(fd, deadline - time.monotonic()):
                if self.kind == "name":
                    raise NameTaken(self.text, self.peek())
                raise Busy(f"another start with the key {self.text[:80]!r} took more than {timeout:g} s")
            if stands_at(fd, self.path):
                return Held(fd, self.text)
            # The file was swept between open and lock: what we hold has no name any more.
            os.close(fd)

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
            # An appending write leaves the offset of this descriptor right behind its own byte.
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


def lock_within(fd: int, timeout: float) -> bool:
    """Lock `fd`, waiting up to `timeout` seconds. On False, `fd` is closed or will be.

    flock has no timeout, an alarm signal would belong to our host's program, and asking again and again is
    polling. So a thread waits in the kernel. Given up, it stays there until the lock comes free, closes and
    ends; the lock's holder is a start, which is bounded itself.
    """
    try:
        if lock_now(fd):
            return True
        if timeout <= 0:
            os.close(fd)
            return False
    except OSError:
        os.close(fd)
        raise
    import threading

    guard = threading.Lock()
    settled = threading.Event()
    outcome: list[OSError | None] = []
    given_up = False

    def wait() -> None:
        error = None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as refused:
            error = refused
        with guard:
            outcome.append(error)
            if given_up or error:
                os.close(fd)
        settled.set()

    threading.Thread(target=wait, name="holdfast-claim", daemon=True).start()
    came = False
    try:
        came = settled.wait(timeout)
    finally:
        # Also on Ctrl-C: a lock that comes later, or came just now, must not stay with us unseen.
        if not came:
            with guard:
                given_up = True
                if outcome == [None]:
                    os.close(fd)
    if came and outcome[0]:
        raise outcome[0]
    return came


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


# Which session is meant: by id, the beginning of one, name, pid, or `last`.


PREFIX_MIN_CHARACTERS = 4
_PID_DIGITS = 10


def find(home: Home, index: Index, ref: object, owner: str | None = None) -> str:
    """The id that `ref` means: an id, a unique prefix of it, a name, a pid, or `last`. With an owner, what belongs
    to others does not exist."""
    text = str(ref)
    if text == "last":
        newest = index.last() if owner is None else next(iter(index.owned(owner)), None)
        if newest is None:
            raise NotFound(text)
        return newest
    if is_id(text) and os.path.exists(os.path.join(home.session(text), "spec.json")):
        if not _belongs(home, text, owner):
            raise NotFound(text)
        return text
    named = _named(home, index, text, owner)
    if named is not None:
        return named
    if text.isascii() and text.isdigit() and len(text) <= _PID_DIGITS:
        candidates = _live_first(home, [id for id in index.by_pid(int(text)) if _belongs(home, id, owner)])
    elif len(text) >= PREFIX_MIN_CHARACTERS and text.isascii() and text.isalnum():
        candidates = [id for id in index.prefix(text) if _belongs(home, id, owner)]
    else:
        candidates = []
    if len(candidates) > 1:
        raise AmbiguousId(text, candidates)
    if candidates:
        return candidates[0]
    # Whose it was is not known any more.
    if owner is None and is_id(text) and index.removed(text):
        raise Removed(text)
    raise NotFound(text)


def _belongs(home: Home, id: str, owner: str | None) -> bool:
    if owner is None:
        return True
    try:
        return bool(read_files(home, id).current().get("owner") == owner)
    except (NotFound, DamagedRecord):
        return False


def _named(home: Home, index: Index, text: str, owner: str | None) -> str | None:
    try:
        name = check_name(text)
    except BadArgument:
        return None
    holder = Claim(home, "name", name).peek()
    if holder is not None and name_of(home, holder) == name and _belongs(home, holder, owner):
        return holder
    # Renamed meanwhile, or its claim was swept: the newest that bore the name.
    for id in index.by_name(name):
        if name_of(home, id) == name and _belongs(home, id, owner):
            return id
    return None


def name_of(home: Home, id: str) -> object:
    try:
        files = read_files(home, id)
    except (NotFound, DamagedRecord):
        return None
    return files.current().get("name")


def _live_first(home: Home, ids: list[str]) -> list[str]:
    """Pids are reused: a live session with this pid wins over those that had it before. Pids of another place are not
    compared."""
    live: list[str] = []
    over: list[str] = []
    for id in ids:
        try:
            files = read_files(home, id)
        except (NotFound, DamagedRecord):
            continue
        if not files.away:
            (live if from_files(files).state in LIVE_STATES else over).append(id)
    return live or over[:1]
