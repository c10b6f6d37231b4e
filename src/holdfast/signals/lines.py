"""Lines of signal files: what a line is, and what the files of a session have.

A line is a signal, a note about one, or invalid. It stays as it was written: fields of a later release are kept, and
its unknown variants are given as `unknown`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from contextlib import contextmanager

from ..core import jsontext, records
from ..core.jsontext import DEPTH_MAX
from ..core.signalfile import FILE, HOME, LINE_MAX_BYTES, OLDER, SEQ_MAX, VARIANTS, signal_id
from ..home import is_id
from ..index.queues import Pointer, Progress
from ..places.kinds import is_away

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from ..home import Home


# One line.


UNKNOWN = "unknown"
AUTO = "auto"

COMMON = (*("v", "id", "seq", "session", "kind", "owner", "attempt", "at", "mono_ns", "boot", "routed", "snapshot"),)
_COMMON = frozenset(COMMON)
_VARIANTS = frozenset(VARIANTS)


class Signal:
    """Something happened to a session. The variant's own fields are attributes too, where no common one has their
    name (`fields` has them all); `deliveries` counts how often this consumer got it, this time included."""

    __slots__ = (*COMMON, "deliveries", "fields", "record", "replayed", "variant")

    v: int
    id: str
    seq: int
    session: str | None
    kind: str | None
    owner: str | None
    attempt: int
    at: str
    mono_ns: int
    boot: str | None
    routed: bool | str
    snapshot: dict[str, Any]
    variant: str
    fields: dict[str, Any]
    record: dict[str, Any]
    deliveries: int
    replayed: bool

    def __init__(self, record: Mapping[str, Any], *, deliveries: int = 1, replayed: bool = False) -> None:
        """`record` is one that `parse` takes; ValueError says what is wrong with another."""
        key = _variant_of(record)
        _check(record)
        for name in COMMON:
            setattr(self, name, record.get(name))
        self.v = record.get("v", 1)
        self.attempt = record.get("attempt") or 1
        self.at = record.get("at") or ""
        self.mono_ns = record.get("mono_ns") or 0
        self.routed = record.get("routed", True)
        self.snapshot = record.get("snapshot") or {}
        self.record = dict(record)
        self.variant = key if key in _VARIANTS else UNKNOWN
        self.fields = dict(record[key]) if key in _VARIANTS else {"variant": key, **record[key]}
        self.deliveries = deliveries
        self.replayed = replayed

    def __getattr__(self, name: str) -> Any:
        # Called only for names that are not slots.
        try:
            return self.fields[name]
        except (AttributeError, KeyError):
            raise AttributeError(f"a {self.variant} signal has no {name}") from None

    def __repr__(self) -> str:
        return f"<Signal {self.id} {self.variant}{' again' if self.redelivered else ''}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Signal) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def redelivered(self) -> bool:
        return self.deliveries > 1

    @property
    def ends_session(self) -> bool:
        return self.variant == "lifecycle" and self.fields.get("phase") == "ended"

    def to_json(self) -> dict[str, Any]:
        """The record, and how it was delivered."""
        delivery = {"redelivered": self.redelivered, "deliveries": self.deliveries, "replayed": self.replayed}
        return {**self.record, **delivery}


class Note:
    """A line that is not a signal: a signal was answered or is queued after all, the session has another owner, or the
    lines before this one were dropped."""

    __slots__ = ("fields",)

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    def __repr__(self) -> str:
        return f"<Note {self.fields}>"

    @property
    def answered(self) -> int | None:
        return _number(self.fields.get("answered"))

    @property
    def queued(self) -> int | None:
        return _number(self.fields.get("queued"))

    @property
    def hands_over(self) -> bool:
        return "owner" in self.fields

    @property
    def owner(self) -> str | None:
        owner: str | None = self.fields["owner"]
        return owner


class Bad:
    """An invalid line, and why; `is_torn` where its writer may not have finished it."""

    __slots__ = ("is_torn", "why")

    def __init__(self, why: str, *, is_torn: bool = False) -> None:
        self.why = why
        self.is_torn = is_torn

    def __repr__(self) -> str:
        return f"<Bad line: {self.why}>"


def parse(line: bytes | str, session: str | None = None) -> Signal | Note | Bad:
    """One line, without or with its newline. `session`: the session that the file belongs to (`home` for the home)."""
    if len(line) > LINE_MAX_BYTES + 1:
        return Bad(f"longer than {LINE_MAX_BYTES} bytes")
    try:
        record = jsontext.read(line)
    except RecursionError:
        return Bad(f"nested deeper than {DEPTH_MAX}")
    except ValueError:
        # Each record is an object, so a torn one begins with a brace.
        text = line.strip()
        return Bad("not JSON", is_torn=not text or text[:1] in (b"{", "{"))
    if not isinstance(record, dict):
        return Bad("not an object")
    opened = line.count(b"{") + line.count(b"[") if isinstance(line, bytes) else line.count("{") + line.count("[")
    if opened > DEPTH_MAX and jsontext.is_deeper(record, DEPTH_MAX):
        return Bad(f"nested deeper than {DEPTH_MAX}")
    if "seq" not in record:
        owner = record.get("owner")
        return Note(record) if owner is None or _is_text(owner) else Bad("owner is not text")
    try:
        signal = Signal(record)
    except ValueError as problem:
        return Bad(str(problem))
    if session is not None and session != (signal.session or HOME):
        return Bad(f"it belongs to {signal.session or HOME}")
    return signal


def split_id(id: object) -> tuple[str, int] | None:
    """The session (or `home`) and the number; None where `id` is not the id of a signal. Never a prefix or a name."""
    if not isinstance(id, str):
        return None
    session, dot, digits = id.rpartition(".")
    if not dot or not (session == HOME or is_id(session)) or not (digits.isascii() and digits.isdigit()):
        return None
    if len(digits) > 16 or digits[0] == "0":
        return None
    return session, int(digits)


def _variant_of(record: Mapping[str, Any]) -> str:
    """The one key that says what happened. A key of a later release is a variant only if its value is an object."""
    known = [key for key in record if key in _VARIANTS]
    if len(known) > 1:
        raise ValueError(f"two variants: {known[0]} and {known[1]}")
    if known:
        if not isinstance(record[known[0]], dict):
            raise ValueError(f"{known[0]} is not an object")
        return known[0]
    new = [key for key, value in record.items() if key not in _COMMON and isinstance(value, dict)]
    if len(new) != 1:
        raise ValueError("no variant" if not new else f"two variants: {new[0]} and {new[1]}")
    return new[0]


def _check(record: Mapping[str, Any]) -> None:
    session, seq = record.get("session"), _number(record.get("seq"))
    if seq is None or not 1 <= seq <= SEQ_MAX:
        raise ValueError("seq is not a positive integer")
    if session is not None and not (isinstance(session, str) and is_id(session)):
        raise ValueError("session is not an id")
    if record.get("id") != signal_id(session, seq):
        raise ValueError(f"id is not {signal_id(session, seq)}")
    for name in ("kind", "owner", "at", "boot"):
        if record.get(name) is not None and not _is_text(record[name]):
            raise ValueError(f"{name} is not text")
    for name in ("v", "attempt", "mono_ns"):
        if record.get(name) is not None and _number(record[name]) is None:
            raise ValueError(f"{name} is not a number")
    if record.get("snapshot") is not None and not isinstance(record["snapshot"], dict):
        raise ValueError("snapshot is not an object")


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_text(value: object) -> bool:
    """Text without lone surrogates: an owner is compared byte by byte, and a lone surrogate has no bytes in UTF-8."""
    if not isinstance(value, str):
        return False
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


# The files of one session: `signals.jsonl`, and the generation before its last rotation.


_NO_FILE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO))
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# The most that is read of one session at once, so that memory stays bounded whatever the size of its file.
_AT_ONCE_BYTES = 4 << 20
_NEWEST = 10_000


def directory_of(home: Home, session: str) -> str:
    return home.path if session == HOME else home.session(session)


@contextmanager
def generations(directory: str) -> Iterator[list[tuple[int, int]]]:
    """The files, older first, each with its inode; empty where no file exists. The newer one is opened first: after a
    rotation between the two opens, the same file is found twice instead of no file."""
    fds: list[int] = []
    try:
        for name in (FILE, OLDER):
            try:
                fds.insert(0, os.open(os.path.join(directory, name), _READ))
            except OSError as problem:
                if problem.errno not in _NO_FILE:
                    raise
                break
        facts = [(fd, os.fstat(fd)) for fd in fds]
        found = {fact.st_ino: fd for fd, fact in facts if stat.S_ISREG(fact.st_mode)}
        yield [(fd, inode) for inode, fd in found.items()]
    finally:
        for fd in fds:
            os.close(fd)


def unread(there: list[tuple[int, int]], inode: int, at: int) -> Iterator[tuple[int, int, int]]:
    """The files with where to go on in each, after `at` bytes of this inode were read: a later one is read from its
    beginning, as is one that was cut, where the numbers say what is new."""
    inodes = [each for _, each in there]
    for fd, each in there[inodes.index(inode) if inode in inodes else 0 :]:
        yield fd, each, at if each == inode and at <= os.fstat(fd).st_size else 0


def entries(fd: int, session: str, at: int = 0) -> Iterator[tuple[int, int, Signal | Note | Bad | None]]:
    """Each line from `at` on: where it begins and ends, and what it is; None for a last line without its newline."""
    for begin, end, line in records.lines_at(fd, at, LINE_MAX_BYTES):
        if line is None:
            yield begin, end, Bad(f"longer than {LINE_MAX_BYTES} bytes")
        else:
            yield begin, end, parse(line, session) if line.endswith(b"\n") else None


def retained(home: Home, session: str) -> list[Signal | Note]:
    """Every signal of a session that is retained and the notes about them, each once; the newest of them where a file
    has more than any writer leaves in it."""
    with generations(directory_of(home, session)) as found:
        parsed = deque((each for fd, _ in found for _, _, each in entries(fd, session)), _NEWEST)
    kept: dict[object, Signal | Note] = {}
    for each in parsed:
        if isinstance(each, (Signal, Note)):
            # A rotation carries records over.
            kept.setdefault(each.seq if isinstance(each, Signal) else each, each)
    return list(kept.values())


def ended_id(home: Home, session: str) -> str | None:
    """The id of the signal of the end of this session, where there is one."""
    try:
        with generations(directory_of(home, session)) as found:
            for fd, _ in found[-1:]:
                for _, _, line in records.lines_at(fd, 0, LINE_MAX_BYTES):
                    each = parse(line, session) if line is not None and b'"ended"' in line else None
                    if isinstance(each, Signal) and each.ends_session:
                        return each.id
    except OSError:
        pass  # there is no file to read
    return None


def is_coming(home: Home, id: str) -> bool:
    """Whether a live runner has yet to write this signal, or to decide whether it enters the queues."""
    session, seq = split_id(id) or (HOME, 0)
    if session == HOME or not records.runner_lives(home.session(session)):
        return False
    written = retained(home, session)
    if any(seq in (each.answered, each.queued) for each in written if isinstance(each, Note)):
        return False
    return not any(
        (each.seq == seq and each.routed != AUTO) or each.seq > seq for each in written if isinstance(each, Signal)
    )


def local_owner(home: Home, session: str) -> tuple[bool, str | None]:
    """Whether this machine decides the owner of a session, because its runner is in another place, and that owner."""
    if session == HOME:
        return False, None
    try:
        spec = records.read(os.path.join(home.session(session), "spec.json"))
    except (OSError, ValueError):
        return False, None
    if not is_away(spec):
        return False, None
    changed = records.found(None, os.path.join(home.session(session), records.LOCAL_CHANGES)).get("changed")
    owner = {**spec, **(changed if isinstance(changed, dict) else {})}.get("owner")
    return True, owner if isinstance(owner, str) else None


class Reading:
    """What one look at the files found after `before`. `whole`: nothing is left to read; a line that a dead
    writer did not finish does not count. `is_cut`: the file has more than is read at once."""

    __slots__ = ("bad", "before", "found", "is_cut", "reached", "whole")

    def __init__(self, before: Progress) -> None:
        self.before = before
        self.reached = Progress(*before.values())
        self.found: list[Pointer] = []
        self.bad: list[tuple[int, str]] = []
        self.whole = True
        self.is_cut = False

    @property
    def matters(self) -> bool:
        """Whether the index has to know: new rows, another owner for those that are there, or where to continue."""
        return bool(self.found) or self.is_cut or (self.before.seq > 0 and self.reached.owner != self.before.owner)


def read_on(home: Home, before: Progress, *, writer_lives: bool) -> Reading | None:
    """What was appended since `before`; None if no file exists. Check `writer_lives` before the call: if the writer is
    dead, the file is complete."""
    session = before.session
    reading = Reading(before)
    reached = reading.reached
    found: list[tuple[int, int, int, Signal | Note | Bad | None]] = []
    with generations(directory_of(home, session)) as there:
        if not there:
            return None
        for fd, inode, at in unread(there, before.file, before.bytes):
            reached.file, reached.bytes = inode, at
            for begin, end, each in entries(fd, session, at):
                found.append((inode, begin, end, each))
                reading.is_cut = end - at > _AT_ONCE_BYTES
                if reading.is_cut:
                    break
            if reading.is_cut:
                break
    notes = [each for *_, each in found if isinstance(each, Note)]
    answered = {note.answered for note in notes} - {None}
    decided = answered | {note.queued for note in notes}
    last = reached.file
    for inode, begin, end, each in found:
        if each is None:
            # The writer has not finished it, or died: then its successor ends the line, which is invalid.
            reading.whole = not writer_lives
            continue
        if isinstance(each, Signal):
            if each.routed == AUTO and each.seq > reached.seq and each.seq not in decided and writer_lives:
                # A host that waited for it may still confirm it.
                reading.whole = False
                reached.file, reached.bytes = inode, begin
                break
            reached.owner = each.owner
            if each.seq > reached.seq:  # else carried over by a rotation
                reached.seq = each.seq
                reached.ended = reached.ended or each.ends_session
                if each.routed is not False and each.seq not in answered:
                    facts = (each.seq, each.variant, each.kind, each.owner, each.at)
                    reading.found.append(Pointer(0, session, *facts, inode, begin, end - begin))
        elif isinstance(each, Bad):
            reading.bad.append((begin, each.why))
        elif each.hands_over:
            reached.owner = each.owner
        if inode == last:
            reached.bytes = end
    if reading.is_cut:
        reading.whole = False
    decided_here, owner = local_owner(home, session)
    if decided_here:
        reached.owner = owner
    if session != HOME:
        for pointer in reading.found:
            pointer.owner = reached.owner  # no consumer of a former owner can have settled them
    return reading


def load(home: Home, wanted: Iterable[Pointer]) -> tuple[list[Signal], list[Pointer]]:
    """The signals in the order given, and those whose record is gone."""
    wanted = list(wanted)
    by_session: dict[str, list[Pointer]] = {}
    for pointer in wanted:
        by_session.setdefault(pointer.session, []).append(pointer)
    found: dict[str, Signal] = {}
    for session, pointers in by_session.items():
        with generations(directory_of(home, session)) as there:
            found.update(_find(there, session, pointers))
    loaded, gone = [], []
    for pointer in wanted:
        signal = found.get(pointer.id)
        if signal is None:
            gone.append(pointer)
            continue
        signal.deliveries, signal.replayed = pointer.deliveries, pointer.replayed
        if signal.owner != pointer.owner and local_owner(home, pointer.session)[0]:
            signal.owner = signal.record["owner"] = pointer.owner
        loaded.append(signal)
    return loaded, gone


def _find(there: list[tuple[int, int]], session: str, pointers: list[Pointer]) -> dict[str, Signal]:
    fds = {inode: fd for fd, inode in there}
    found: dict[str, Signal] = {}
    for pointer in pointers:
        fd = fds.get(pointer.file)
        signal = None if fd is None else parse(os.pread(fd, pointer.length, pointer.offset), session)
        if isinstance(signal, Signal) and signal.seq == pointer.seq:
            found[pointer.id] = signal
    moved = {pointer.id for pointer in pointers} - found.keys()
    for fd, _ in there if moved else ():
        # A rotation moved the record: it is found by its number.
        found.update(
            (each.id, each) for _, _, each in entries(fd, session) if isinstance(each, Signal) and each.id in moved
        )
    return found
