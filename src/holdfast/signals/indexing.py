"""From signal files to rows of the index: what was appended since somebody last looked.

Runners never touch the index. Whoever looks compares a file's size with how far it was read, reads on, and enters what
is routed, all missing numbers in one transaction. Two who do so at once enter it once.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections import deque

from ..index import audience, pointers
from ..index.pointers import Pointer, Progress
from ..runner import records
from ..runner.signalfile import FILE, HOME, LINE_MAX_BYTES, OLDER
from .records import AUTO, Bad, Note, Signal, parse, split_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator

    from ..home import Home

# Of one session, at once: what it holds in memory stays bounded whatever the size of the file.
_AT_ONCE_BYTES = 4 << 20
_NEWEST = 10_000
_NO_FILE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ESPIPE, errno.ENXIO))
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Reading:
    """What one look at a file found behind `before`. `whole`: nothing is left but, perhaps, a line that nobody ends."""

    __slots__ = ("bad", "before", "found", "is_cut", "reached", "whole")

    def __init__(self, before: Progress, reached: Progress) -> None:
        self.before = before
        self.reached = reached
        self.found: list[Pointer] = []
        self.bad: list[tuple[int, str]] = []
        self.whole = True
        # Is there more in the file than is read at once?
        self.is_cut = False

    @property
    def matters(self) -> bool:
        """Whether the index has to know: rows to enter, another owner for those that are there, or where to go on."""
        return bool(self.found) or self.is_cut or (self.before.seq > 0 and self.reached.owner != self.before.owner)


def is_no_file(problem: OSError) -> bool:
    """Whether there is no file to read, or something else in its place; not a want of ours that will pass."""
    return problem.errno in _NO_FILE


def directory_of(home: Home, session: str) -> str:
    return home.path if session == HOME else home.session(session)


def read_on(home: Home, before: Progress, *, writer_lives: bool) -> Reading | None:
    """What was appended since. None where there is no file. `writer_lives` was found out before the call: of a writer
    that is gone, everything is here."""
    directory = directory_of(home, before.session)
    try:
        fds = generations(directory)
    except OSError as problem:
        if is_no_file(problem):
            return None
        raise
    try:
        parts = [_unread(fd, before) for fd in fds]
        # A file that was read partly is gone on with; what came after it is read from its beginning.
        for index, (_, inode, _) in enumerate(parts):
            if inode == before.file:
                parts = parts[index:]
                break
        reading = _fold(before, [_Part(fd, inode, at) for fd, inode, at in parts], writer_lives)
        decided, owner = owner_here(home, before.session)
        if decided:
            reading.reached.owner = owner
            for found in reading.found:
                found.owner = owner
        return reading
    except OSError as problem:
        if is_no_file(problem):
            return None
        raise
    finally:
        for fd in fds:
            os.close(fd)


def enter(db: sqlite3.Connection, home: Home, readings: Iterable[Reading]) -> list[Reading]:
    """Into the index, inside a transaction. Those that are in; of the others somebody else read on meanwhile.

    What comes at once enters in the order in which it happened, as far as the wall clock knows; the numbers of a
    session ascend whatever that says."""
    audience.prepare(db, home)
    entered = [reading for reading in readings if _accept(db, reading)]
    found = [reading.found for reading in entered]
    if len(found) == 1:
        pointers.insert(db, found[0])
    else:
        from heapq import merge

        pointers.insert(db, merge(*found, key=_when))
    return entered


def _when(pointer: Pointer) -> str:
    return pointer.at or ""


def _accept(db: sqlite3.Connection, reading: Reading) -> bool:
    before, reached = reading.before, reading.reached
    now = pointers.progress(db, before.session)
    if (now.file, now.bytes, now.seq) != (before.file, before.bytes, before.seq):
        return False
    # After a loss of the index: what was there when the consumers were brought back is told again, not told.
    reached.replay = now.replay if now.file in (0, reached.file) else 0
    for each in reading.found:
        each.replayed = now.replay > 0 and (each.file != reached.file or each.offset < reached.replay)
    if now.seq and before.session != HOME:
        pointers.hand_over(db, before.session, now.owner, reached.owner)
    pointers.note_progress(db, reached)
    return True


def finish(db: sqlite3.Connection, home: Home, session: str, *, writer_lives: bool) -> bool:
    """The rest of a session that is over, inside a transaction. True when its ending is among it (or told before), and
    nothing more can come."""
    before = pointers.progress(db, session)
    try:
        reading = read_on(home, before, writer_lives=writer_lives)
    except OSError:
        return False
    if reading is None:
        return not _promised(home, session)
    if reading.matters and not enter(db, home, [reading]):
        return False
    if not reading.whole or not reading.reached.ended:
        return False
    if before.file or before.replay or reading.matters:
        pointers.forget_progress(db, session)
    return True


def _promised(home: Home, session: str) -> bool:
    """Whether its release knew signals: then a file that is missing is an ending that was not told. With something
    else in its place nothing can be told any more."""
    if os.path.lexists(os.path.join(home.session(session), FILE)):
        return False
    try:
        return "signals" in records.read(os.path.join(home.session(session), "spec.json"))
    except (OSError, ValueError):
        return False


def is_away(spec: dict[str, object]) -> bool:
    """Whether the runner of a session lives in another place, by its spec."""
    return spec.get("place") not in (None, "local")


def owner_here(home: Home, session: str) -> tuple[bool, str | None]:
    """Whether the owner of a session was decided here, because its signals come from another place, and who that is."""
    if session == HOME:
        return False, None
    try:
        spec = records.read(os.path.join(home.session(session), "spec.json"))
    except (OSError, ValueError):
        return False, None
    if not is_away(spec):
        return False, None
    changed = records.found(None, os.path.join(home.session(session), records.HERE)).get("changed")
    owner = {**spec, **(changed if isinstance(changed, dict) else {})}.get("owner")
    return True, owner if isinstance(owner, str) else None


def runner_lives(home: Home, session: str) -> bool:
    """Whether somebody holds the lock that a runner holds on its spec for life, whoever looks and from wherever."""
    try:
        fd = os.open(os.path.join(home.session(session), "spec.json"), _READ)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


class _Part:
    """The lines of one generation from `at` on, each with its end; `is_cut` where there are more than are read at
    once."""

    __slots__ = ("at", "inode", "is_cut", "lines")

    def __init__(self, fd: int, inode: int, at: int) -> None:
        self.inode = inode
        self.at = at
        self.lines: list[tuple[int, bytes | None]] = []
        self.is_cut = False
        for _, end, line in records.lines_at(fd, at, LINE_MAX_BYTES):
            self.lines.append((end, line))
            if end - at > _AT_ONCE_BYTES:
                self.is_cut = True
                break


def generations(directory: str) -> list[int]:
    """The file and the one it was before its last rotation, older first. The newer is opened first: a rotation between
    the two then shows us the same file twice, and never none."""
    fds = [os.open(os.path.join(directory, FILE), _READ)]
    try:
        older = os.open(os.path.join(directory, OLDER), _READ)
    except OSError as problem:
        if is_no_file(problem):
            return fds
        os.close(fds[0])
        raise
    if os.fstat(older).st_ino == os.fstat(fds[0]).st_ino:
        os.close(older)
        return fds
    return [older, *fds]


def _unread(fd: int, before: Progress) -> tuple[int, int, int]:
    found = os.fstat(fd)
    at = before.bytes if found.st_ino == before.file else 0
    # Somebody cut it: numbers tell what is new.
    return fd, found.st_ino, at if at <= found.st_size else 0


def lines(fd: int, at: int) -> Iterator[bytes]:
    """With their newlines; the last may have none. Those that are too long for a signal are left out."""
    return (line for _, _, line in records.lines_at(fd, at, LINE_MAX_BYTES) if line is not None)


def _fold(before: Progress, parts: list[_Part], writer_lives: bool) -> Reading:
    for index, part in enumerate(parts):
        if part.is_cut:
            parts = parts[: index + 1]
            break
    # A signal has a number, a note has none: of what may be many only those are parsed twice.
    unnumbered = (line for part in parts for _, line in part.lines if line is not None and b'"seq"' not in line)
    notes = [each for each in (parse(line, before.session) for line in unnumbered) if isinstance(each, Note)]
    answered = {note.answered for note in notes} - {None}
    decided = answered | {note.queued for note in notes}
    reached = Progress(*before.values())
    reading = Reading(before, reached)
    reached.file, reached.bytes = parts[-1].inode, parts[-1].at
    told = [(part, end, line) for part in parts for end, line in part.lines]
    for part, end, line in told:
        if line is not None and not line.endswith(b"\n"):
            # Not finished yet, or never: its writer's successor ends it, and then it is a bad line.
            reading.whole = not writer_lives
            continue
        each = Bad(f"longer than {LINE_MAX_BYTES} bytes") if line is None else parse(line, before.session)
        offset, part.at = part.at, end
        if isinstance(each, Signal):
            if each.routed == AUTO and each.seq > reached.seq and each.seq not in decided and writer_lives:
                # Whoever waited for it may still say that he told it.
                reading.whole = False
                reached.file, reached.bytes = part.inode, offset
                break
            reached.owner = each.owner
            if each.seq > reached.seq:  # else carried over by a rotation
                reached.seq = each.seq
                reached.ended = reached.ended or each.ends_session
                if each.routed is not False and each.seq not in answered:
                    at = (part.inode, offset, end - offset)
                    facts = (each.seq, each.variant, each.kind, each.owner, each.at)
                    reading.found.append(Pointer(0, before.session, *facts, *at))
        elif isinstance(each, Bad):
            reading.bad.append((offset, each.why))
        elif each.hands_over:
            reached.owner = each.owner
        if part is parts[-1]:
            reached.bytes = part.at
    if parts[-1].is_cut:
        reading.whole, reading.is_cut = False, True
    if before.session != HOME:
        for found in reading.found:
            found.owner = reached.owner  # nobody can have settled them for a former one
    return reading


def ended_id(home: Home, session: str) -> str | None:
    """The id of the record that tells the end of this session, where there is one."""
    try:
        fd = os.open(os.path.join(directory_of(home, session), FILE), _READ)
    except OSError:
        return None
    try:
        told = None
        for line in lines(fd, 0):
            found = parse(line, session) if b'"ended"' in line else None
            if isinstance(found, Signal) and found.variant == "lifecycle" and found.fields.get("phase") == "ended":
                told = found.id
        return told
    except OSError:
        return None  # no file
    finally:
        os.close(fd)


def told(home: Home, session: str) -> list[Signal | Note]:
    """Every signal of a session that is retained and the notes about them, as they were written, each once; the newest
    of them where a file has more than any writer leaves there."""
    try:
        fds = generations(directory_of(home, session))
    except OSError as problem:
        if is_no_file(problem):
            return []
        raise
    try:
        parsed = deque((parse(line, session) for fd in fds for line in lines(fd, 0)), _NEWEST)
    except OSError as problem:
        if is_no_file(problem):
            return []
        raise
    finally:
        for fd in fds:
            os.close(fd)
    found: dict[object, Signal | Note] = {}
    for each in parsed:
        if not isinstance(each, Bad):
            # A rotation carries records over.
            found.setdefault(each.seq if isinstance(each, Signal) else each, each)
    return list(found.values())


def is_coming(home: Home, id: str) -> bool:
    """Is it not in its file yet, or not decided whether it is for the queue, and somebody there to do that?"""
    session, seq = split_id(id) or (HOME, 0)
    if session == HOME or not runner_lives(home, session):
        return False
    said = told(home, session)
    if any(seq in (each.answered, each.queued) for each in said if isinstance(each, Note)):
        return False
    return not any(
        (each.seq == seq and each.routed != AUTO) or each.seq > seq for each in said if isinstance(each, Signal)
    )
