"""The copy of the directory of a session that runs in another place, and the signals that arrive with it."""

from __future__ import annotations

import os
import stat

from ..core import jsontext, records, shapes, wake
from ..core.signalfile import FILE, LINE_MAX_BYTES, OLDER, VARIANTS
from ..runner.people_notifier import PeopleNotifier
from .mirror import PIECE_BYTES, SEGMENT, checksum, is_copied, limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Record = dict[str, Any]


_SIZE_MAX = 1 << 63
# Segments are small where the disk refused some bytes between them.
_SEGMENTS_LEAST = 1024


class BadRecord(ValueError):
    """A record that no runner writes."""


class OverLimit(ValueError):
    """More than the session may have here: of which file, and from where on it is missing."""

    def __init__(self, name: str, at: int, why: str) -> None:
        super().__init__(why)
        stream = name.partition(".")[0] if SEGMENT.fullmatch(name) else name
        begin = int(name[-20:]) + at if stream != name else at
        self.gap = {"stream": stream, "from": begin, "to": None, "reason": "limit"}


def segments_max(log_cap: int, segment_bytes: int) -> int:
    """How many segments a runner with this cap can have; it makes none larger than a quarter of the cap."""
    return max(_SEGMENTS_LEAST, 2 * log_cap // max(1, min(segment_bytes, log_cap // 4)))


class Copy:
    """The local copy of a session directory in another place. `facts` replace those of the state record there;
    `log_bytes` is what its segments may take together, `segments` how many they may be."""

    def __init__(
        self,
        directory: int,
        facts: dict[str, Any],
        log_bytes: int = _SIZE_MAX,
        segments: int = _SEGMENTS_LEAST,
        *,
        is_visit: bool = False,
    ) -> None:
        self._directory = directory
        self._is_visit = is_visit
        self._facts = facts
        self._log_bytes = log_bytes
        self._segments_max = segments
        # Where the next piece of each file begins, unless the file is sent again from its beginning.
        self._next: dict[str, int] = {}
        # Of each file of signals, how long the line is that has not ended yet.
        self._lines: dict[str, int] = {}
        # What a power loss could still take back.
        self._written: set[str] = set()
        for name in os.listdir(directory):
            if name.endswith(".tmp"):
                os.unlink(name, dir_fd=directory)  # of a copy that was killed
        sizes = {name: os.lstat(name, dir_fd=directory).st_size for name in os.listdir(directory)}
        # What is on the disk, including files that are sent again: they have a temporary name until they are whole.
        self._segments = {name: size for name, size in sizes.items() if SEGMENT.fullmatch(name)}
        self._stored = sum(self._segments.values())
        if self._exists("state.json"):
            records.write(directory, "state.json", facts)

    def have(self) -> dict[str, list[int]]:
        found = {}
        # If the runner was found gone, hosts have added to the files that came from there.
        came = records.found(self._directory, records.AWAY).get("sizes") or {}
        for name in os.listdir(self._directory):
            if is_copied(name) and stat.S_ISREG(os.lstat(name, dir_fd=self._directory).st_mode):
                fd = records.open_own(self._directory, name, os.O_RDONLY)
                try:
                    size = min(os.fstat(fd).st_size, came.get(name, _SIZE_MAX))
                    found[name] = [size, checksum(fd, size)]
                    self._next[name] = size
                finally:
                    os.close(fd)
        return found

    def take(self, heading: dict[str, Any], raw: bytes) -> None:
        """ValueError for what a correct runner does not send: BadRecord in a record, OverLimit beyond the limits."""
        name, at = heading.get("name"), heading.get("at", 0)
        is_signals = self._is_visit and name in (FILE, OLDER)
        if not isinstance(name, str) or not is_copied(name) or is_signals or not isinstance(at, int) or at < 0:
            raise ValueError(f"a piece of {name!r:.80} at {at!r:.80}")
        if heading["type"] == "vanished":
            self._remove(name)
        elif name == "exit.json":
            self._sync()
            ended = _record(name, heading, raw, shapes.EXIT_RECORD)
            if self._is_visit:
                ended.pop("signal_id", None)  # signals go to the owner only
            records.write_exit(self._directory, ended, durable=True)
        elif name == "state.json":
            record = _record(name, heading, raw, shapes.STATE)
            records.write(self._directory, name, {**record, **self._facts})
        else:
            if heading.get("anew") is True:
                self._remove(name + ".tmp")
            self._hold_to_limits(name, at, raw, heading)
            self._append(name, at, raw, heading)

    def _hold_to_limits(self, name: str, at: int, raw: bytes, heading: dict[str, Any]) -> None:
        end = at + len(raw)
        anew = heading.get("anew") is True
        if end > (limit(name) or 0):
            raise OverLimit(name, at, f"{name} would have {end} bytes; the limit is {limit(name)}")
        if not anew and at < self._next.get(name, 0):
            raise OverLimit(name, at, f"a piece of {name} at {at}, after one that ended at {self._next[name]}")
        self._next[name] = end
        if SEGMENT.fullmatch(name):
            target = self._target(name, anew)
            known = self._segments.get(target, 0)
            total = self._stored + max(0, end - known)
            if total > self._log_bytes:
                raise OverLimit(name, at, f"the log would have {total} bytes; the limit is {self._log_bytes}")
            if target not in self._segments and len(self._segments) >= self._segments_max:
                raise OverLimit(name, at, f"the log would have more than {self._segments_max} segments")
            self._segments[target], self._stored = max(end, known), total
        elif name in (FILE, OLDER):
            first, *rest = raw.split(b"\n")
            before = 0 if anew else self._lines.get(name, 0)
            longest = max(before + len(first), max(map(len, rest), default=0))
            if longest > LINE_MAX_BYTES:
                raise OverLimit(name, at, f"a line of {name} has {longest} bytes; the limit is {LINE_MAX_BYTES}")
            self._lines[name] = len(rest[-1]) if rest else before + len(first)

    def sizes(self) -> dict[str, int]:
        return {name: size for name, (size, _) in self.have().items()}

    def _append(self, name: str, at: int, raw: bytes, heading: dict[str, Any]) -> None:
        fresh = name + ".tmp"
        target = self._target(name, heading.get("anew") is True)
        fd = records.open_own(self._directory, target, os.O_WRONLY | os.O_CREAT)
        try:
            if at > os.fstat(fd).st_size:
                raise ValueError(f"a piece of {name} at {at}, where {os.fstat(fd).st_size} bytes are")
            view = memoryview(raw)
            while view:
                done = os.pwrite(fd, view, at)
                at, view = at + done, view[done:]
        finally:
            os.close(fd)
        self._written.add(name)
        if target == fresh and (heading.get("last") is True or not self._exists(name)):
            os.rename(fresh, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            if fresh in self._segments:
                self._stored -= self._segments.get(name, 0)
                self._segments[name] = self._segments.pop(fresh)

    def _target(self, name: str, anew: bool) -> str:
        """The file that a piece is written to."""
        # A file that is sent again replaces the old one when it is whole: the old one may have readers.
        return name + ".tmp" if anew or self._exists(name + ".tmp") else name

    def _sync(self) -> None:
        for name in sorted(self._written):
            try:
                fd = records.open_file(name, self._directory)
            except (FileNotFoundError, ValueError):
                continue
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        self._written.clear()

    def _exists(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def _remove(self, name: str) -> None:
        self._stored -= self._segments.pop(name, 0)
        self._next.pop(name, None)
        try:
            os.unlink(name, dir_fd=self._directory)
        except FileNotFoundError:
            pass


def _record(name: str, heading: dict[str, Any], raw: bytes, shape: shapes.Kind) -> dict[str, Any]:
    """A whole record of that shape."""
    try:
        if heading.get("last") is not True or heading.get("at") or len(raw) > PIECE_BYTES:
            raise ValueError(f"it has more than {PIECE_BYTES} bytes")
        record = records.parse(raw)
        shapes.check(shape, record)
    except ValueError as problem:
        raise BadRecord(f"{name}: {problem}") from None
    return record


# Signals from another place: wake the hosts that wait for them here, as their runner would.


class RemoteSignals:
    def __init__(
        self,
        home: str,
        spec: Record,
        directory: int,
        endpoint: str,
        environment: dict[str, str],
        say: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._directory = directory
        self._runtime = os.path.dirname(endpoint)
        settings = spec.get("people")
        self._people = None if settings is None else PeopleNotifier(home, settings, environment, say)
        self._partial = b""
        self._ended: Record | None = None

    def received(self, raw: bytes, *, anew: bool) -> None:
        """These are the next bytes of the file of signals, or the first of a file that is sent again."""
        *lines, self._partial = ((b"" if anew else self._partial) + raw).split(b"\n")
        seq = 0
        for line in lines:
            try:
                record = jsontext.read_finite(line)
                seq = max(seq, int(record.get("seq") or record.get("queued") or 0))
                self._notify_people(record)
            except (ValueError, AttributeError, TypeError, RecursionError):
                continue  # hosts report it as a bad line
        # The owner is decided here, not in the place.
        wake.hosts(self._runtime, self._now("owner"), self._spec["id"], seq)

    def ended(self) -> None:
        """The session ended there, and its runner did not report it."""
        wake.hosts(self._runtime, self._now("owner"), self._spec["id"], 0)

    def _notify_people(self, record: Record) -> None:
        variant = next((name for name in VARIANTS if name in record), None)
        if variant == "lifecycle" and record[variant].get("phase") == "ended":
            self._ended = record
        if record.get("queued") and self._ended is not None:
            record, variant = {**self._ended, "routed": True}, "lifecycle"
        if self._people is not None and variant is not None and record.get("routed") is True:
            self._people.consider(variant, record, self._now("notify_people"))

    def _now(self, option: str) -> Any:
        changed = records.found(self._directory, records.LOCAL_CHANGES).get("changed") or {}
        return changed.get(option, self._spec.get(option))
