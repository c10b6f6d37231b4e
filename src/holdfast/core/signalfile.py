"""`signals.jsonl`: what happened to a session, one record a line, from one writer at a time.

A record has a `seq` and exactly one variant; a note has neither and says something about a record or the session.
The writer holds a lock on the file, so that a free lock proves that no process will write what is missing.
"""

from __future__ import annotations

import errno
import fcntl
import os

from . import clock, failpoints, jsontext, records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, Callable

    Record = dict[str, Any]


FILE = "signals.jsonl"
OLDER = "signals.1.jsonl"
# Ids of the home's own signals begin with this.
HOME = "home"
VARIANTS = (
    *("lifecycle", "event", "watch", "watch_disabled", "overflow", "heartbeat", "needs_input"),
    *("deadline", "ready", "health", "gap", "survivors"),
)
LINE_MAX_BYTES = 16 << 10
# Above any real count of signals: a forged number must not become the next one.
SEQ_MAX = 1 << 53
FILE_MAX_BYTES = 4 << 20
_BLOCK_BYTES = 64 << 10
# What a disk refuses waits in memory, the newest of it.
_WAITING_MAX = 256
# When too much would be carried over, these are left out first, the oldest of them: what repeats, then what is of
# earlier attempts.
_REPEATED = ("heartbeat", "deadline", "health", "needs_input", "gap", "overflow")
_OF_AN_ATTEMPT = ("lifecycle", "ready")
CUT_MARK = " ...[cut]"


class SignalFile:
    """The file of a new session is made with its first line. With `take_over`, the file of a dead writer is continued:
    a torn last line is ended, and the next record gets the next number; BlockingIOError when a writer lives."""

    def __init__(
        self,
        directory: int,
        session: str | None,
        boot: str,
        *,
        max_bytes: int = FILE_MAX_BYTES,
        say: Callable[[str], None] = lambda _text: None,
        take_over: bool = False,
    ) -> None:
        self._directory = directory
        self._session = session
        self._boot = boot
        self._max_bytes = max_bytes
        self._say = say
        self.seq = 0
        self._waiting: list[tuple[int | None, bytes]] = []
        self._lost = 0
        self._synced_name = False
        # Does a waiting line have to be synced when it is written?
        self._sync_due = False
        self._fd = -1
        self._size = 0
        self._rotate_above = max_bytes
        if take_over:
            self._open()
            try:
                self._continue()
            except BaseException:
                self.close()
                raise

    @property
    def blocked(self) -> int:
        """How many records the disk does not take at present."""
        return len(self._waiting) + self._lost

    def write(
        self,
        variant: str,
        fields: Record,
        *,
        kind: str | None,
        owner: str | None,
        attempt: int | None,
        routed: bool | str,
        snapshot: Record | None,
        durable: bool = False,
    ) -> Record:
        """Append one record and return it. One that the disk refuses waits here for `retry`.

        `routed` True: the signal enters the queues of consumers. False: it never does. "auto": a later note decides it,
        `queued` or `answered`; if its writer dies before, it enters them."""
        self.seq += 1
        record: Record = {
            "v": 1,
            "id": signal_id(self._session, self.seq),
            "seq": self.seq,
            "session": self._session,
            "kind": kind,
            "owner": owner,
            "attempt": attempt,
            "at": clock.now_text(),
            "mono_ns": clock.mono_ns(),
            "boot": self._boot,
            "routed": routed,
            "snapshot": snapshot,
            variant: fields,
        }
        self._append(self.seq, _line(record, variant))
        if durable:
            self.sync()
        return record

    def note(self, fields: Record) -> None:
        self._append(None, jsontext.write(fields).encode() + b"\n")

    def sync(self) -> None:
        self._sync_due = bool(self._waiting)
        if self._fd < 0:
            return
        try:
            os.fsync(self._fd)
            if not self._synced_name:
                self._synced_name = True
                os.fsync(self._directory)
        except OSError as problem:
            self._say(f"{FILE} could not be synced: {problem.strerror}")

    def retry(self) -> bool:
        """Append what waits. True when nothing does any more."""
        if self._lost:
            waited = jsontext.write({"lost": self._lost, "before": self._first_waiting()}).encode() + b"\n"
            if not self._put(waited):
                return False
            self._lost = 0
        while self._waiting:
            if not self._put(self._waiting[0][1]):
                return False
            del self._waiting[0]
        if self._sync_due:
            self.sync()
        return True

    def skip_to(self, seq: int) -> None:
        """Continue at this number, which another record already names. Records that should have come before it are
        lost, and counted here."""
        if seq > self.seq + 1:
            self.note({"lost": seq - self.seq - 1, "before": seq})
            self.seq = seq - 1

    def after(self, seq: int, limit: int) -> list[Record]:
        """The first records after `seq`, as the file has them."""
        found: list[Record] = []
        for line in [] if self._fd < 0 else _lines(self._fd):
            record = read(line)
            if record is not None and _whole(record, "seq", 0) > seq:
                found.append(record)
                if len(found) == limit:
                    break
        return found

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        self._fd = self._lock()
        self._size = os.fstat(self._fd).st_size

    def _lock(self) -> int:
        while True:
            fd = records.open_own(self._directory, FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found, there = os.fstat(fd), os.stat(FILE, dir_fd=self._directory, follow_symlinks=False)
            except BaseException:
                os.close(fd)
                raise
            if (found.st_dev, found.st_ino) == (there.st_dev, there.st_ino):
                return fd
            os.close(fd)  # it was turned over between our open and our lock

    def _continue(self) -> None:
        if self._size and os.pread(self._fd, 1, self._size - 1) != b"\n":
            # A torn line may lack only its newline; then it counts.
            self._put(b"\n")
        # Numbers ascend, so the last line that has one says it; but what a rotation carried over is older than what it
        # says on its first line.
        first = read(b"".join(os.pread(self._fd, LINE_MAX_BYTES, 0).partition(b"\n")[:2])) or {}
        last = next(filter(None, map(_seq_of, _from_the_end(self._fd, self._size))), 0)
        self.seq = max(_seq_of(first), last)

    def _append(self, seq: int | None, line: bytes) -> None:
        failpoints.hit("signals.append")
        if self._waiting and not self.retry():
            self._keep(seq, line)
            return
        if self._size > self._rotate_above:
            self._rotate(self.seq + 1 if seq is None else seq)
        if not self._put(line):
            self._keep(seq, line)
        failpoints.hit("signals.appended")

    def _keep(self, seq: int | None, line: bytes) -> None:
        self._waiting.append((seq, line))
        if len(self._waiting) > _WAITING_MAX:
            del self._waiting[0]
            self._lost += 1

    def _first_waiting(self) -> int:
        return next((seq for seq, _ in self._waiting if seq is not None), self.seq + 1)

    def _put(self, line: bytes) -> bool:
        try:
            if self._fd < 0:
                self._open()
            failpoints.hit("signals.data")
            written = os.write(self._fd, line)
            if written < len(line):
                os.ftruncate(self._fd, self._size)  # half a line would swallow the next
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as problem:
            self._say(f"{FILE} could not be written: {problem.strerror}")
            return False
        self._size += len(line)
        return True

    def _rotate(self, next_seq: int) -> None:
        """The file becomes the older generation. What matters of it is carried over; of the lines of a monitor the log
        has all. At no moment is there no file."""
        # A file that another process made larger than we ever let it get is not read whole.
        since = max(0, self._size - 4 * self._rotate_above)
        carried, thinned = _carried(_lines(self._fd, since), self._max_bytes // 2)
        head: Record = {"dropped_before_seq": next_seq, **({"thinned": thinned} if thinned else {})}
        fresh = b"".join([jsontext.write(head).encode() + b"\n", *carried])
        temporary = FILE + ".tmp"
        try:
            fd = records.create(self._directory, temporary, os.O_RDWR | os.O_APPEND)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.write(fd, fresh) < len(fresh):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._replace(FILE, OLDER)
                os.rename(temporary, FILE, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            except BaseException:
                os.close(fd)
                os.unlink(temporary, dir_fd=self._directory)
                raise
        except OSError as problem:
            # It grows on, and is tried again when it is twice as large.
            self._say(f"{FILE} could not be rotated: {problem.strerror}")
            self._rotate_above *= 2
            return
        os.close(self._fd)
        self._fd, self._size = fd, len(fresh)
        self._rotate_above = max(self._max_bytes, 2 * len(fresh))

    def _replace(self, name: str, other: str) -> None:
        try:
            os.unlink(other, dir_fd=self._directory)
        except FileNotFoundError:
            pass
        os.link(name, other, src_dir_fd=self._directory, dst_dir_fd=self._directory)


def signal_id(session: str | None, seq: int) -> str:
    return f"{session or HOME}.{seq}"


def read(line: bytes) -> Record | None:
    """The record in one line; None where the line is not finished or not a record."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = jsontext.read(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _lines(fd: int, at: int = 0) -> Iterator[bytes]:
    return (line for _, _, line in records.lines_at(fd, at, LINE_MAX_BYTES) if line is not None)


def _from_the_end(fd: int, end: int) -> Iterator[Record]:
    """The records of a file, the last one first: a reader of the last need not read all of it."""
    rest = b""
    while end > 0:
        begin = max(0, end - _BLOCK_BYTES)
        lines = (os.pread(fd, end - begin, begin) + rest).splitlines(keepends=True)
        # The beginning of the first may be in the block before.
        rest = lines.pop(0) if begin > 0 else b""
        if len(rest) > LINE_MAX_BYTES:
            rest = b""  # no record, and it may be as long as the file
        yield from filter(None, map(read, reversed(lines)))
        end = begin


def _seq_of(record: Record) -> int:
    """The last number that is taken, as far as this line knows."""
    return max(_whole(record, "seq", 0), _whole(record, "dropped_before_seq", 1) - 1, _whole(record, "before", 1) - 1)


def _whole(record: Record, key: str, otherwise: int) -> int:
    value = record.get(key)
    return value if type(value) is int and 0 <= value < SEQ_MAX else otherwise


def _carried(lines: Iterable[bytes], bound: int) -> tuple[list[bytes], int]:
    """What goes into the next generation, and how many records but events did not, now and before. What is recorded
    only once stays, also above the bound."""
    found = [(line, record) for line in lines for record in [read(line)] if record is not None]
    thinned = sum(_whole(record, "thinned", 0) for _, record in found)
    kept = [(line, record) for line, record in found if "event" not in record and "dropped_before_seq" not in record]
    excess = sum(len(line) for line, _ in kept) - bound
    for variants in (_REPEATED, _OF_AN_ATTEMPT):
        stay = []
        for line, record in kept:
            if excess > 0 and _is_thinned(record, variants):
                excess -= len(line)
                thinned += 1
            else:
                stay.append((line, record))
        kept = stay
    return [line for line, _ in kept], thinned


def _is_thinned(record: Record, variants: tuple[str, ...]) -> bool:
    return any(variant in record for variant in variants) and (record.get("lifecycle") or {}).get("phase") != "ended"


def _line(record: Record, variant: str) -> bytes:
    """At most LINE_MAX_BYTES; the longest texts are cut first, and marked. The log has them whole."""
    line = jsontext.write(record).encode() + b"\n"
    while len(line) > LINE_MAX_BYTES:
        holder, key = _longest(record[variant])
        if holder is None:
            holder, key = _longest(record)
        if holder is None or len(holder[key]) < 32:
            record["snapshot"] = None
            record[variant] = {"cut": True}
        elif isinstance(holder, dict) and "cut" in holder:
            # A tail: its end is wanted, and `cut` marks it.
            holder[key], holder["cut"] = holder[key][len(holder[key]) // 2 :], True
        else:
            holder[key] = holder[key][: len(holder[key]) // 2 - len(CUT_MARK)] + CUT_MARK
        line = jsontext.write(record).encode() + b"\n"
    return line


def _longest(value: Any) -> tuple[Any, Any]:
    """The container and key of the longest text in it."""
    best: tuple[Any, Any] = (None, None)
    length = 0
    inside: list[Any] = [value]
    while inside:
        holder = inside.pop()
        for key, each in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
            if isinstance(each, (dict, list)):
                inside.append(each)
            elif isinstance(each, str) and len(each) > length:
                best, length = (holder, key), len(each)
    return best
