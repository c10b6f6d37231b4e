"""A terminal's session as a recording, and the file it is written to.

Order and time come from the frames. Bytes without one (the oldest of a long session, the newest of a running one)
come with the next frame that is there, or with the last.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat

from ..core import clock, jsontext
from ..core.records import TTY, lines
from ..errors import BadArgument, NotATty, UnsafeFile
from ..model import Exit as CommandExit
from ..model.session import seconds
from ..runner.log import DATA, RESIZE
from ..terminal.recording import Exit, Header, Mark, Missing, Output, Resize, Tally, events, written
from .log import Log, parse_cursor
from .start_request import DEFAULT_TERM
from .terminal_log import Reading, size_before

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from ..terminal.recording import Event, Moment
    from .observe import Files
    from .segments import LogSnapshot


# A file that is written where the user wants it, in a directory that others may write too (`/tmp`).
#
# Whatever others put there beforehand is neither followed nor written to: the content goes to a new file under a
# random name, which takes the place of the old one when it is whole.


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def save(path: str, content: Iterable[bytes]) -> None:
    """Write the whole file or none of it. A pipe or a device that belongs to us or to root is written to directly."""
    fd = _open_special(path)
    if fd is not None:
        _write(fd, content)
        return
    beside = f"{path}.{os.urandom(8).hex()}.part"
    try:
        fd = os.open(beside, _NEW, 0o666)
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, path) from None
    try:
        _write(fd, content)
        os.replace(beside, path)
    except BaseException:
        try:
            os.unlink(beside)
        except FileNotFoundError:
            pass
        raise


def _open_special(path: str) -> int | None:
    """Where `path` is a pipe or a device."""
    flags = os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found.st_mode):
        directory = os.stat(os.path.dirname(os.path.abspath(path)))
        # /dev/stdout is a link that the system made.
        if directory.st_uid != 0 or directory.st_mode & _OTHERS or not _is_special(os.stat(path)):
            return None
        return os.open(path, flags)
    if not _is_special(found):
        return None
    if found.st_uid not in (os.geteuid(), 0):
        raise UnsafeFile(path, f"it is a pipe or device of uid {found.st_uid}")
    fd = os.open(path, flags | os.O_NOFOLLOW)
    now = os.fstat(fd)
    if (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino):
        os.close(fd)
        raise OSError(errno.EAGAIN, "it was replaced while it was opened", path)
    return fd


def _is_special(found: os.stat_result) -> bool:
    return stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode)


def _write(fd: int, content: Iterable[bytes]) -> None:
    with open(fd, "wb", buffering=1 << 16) as file:
        file.writelines(content)


# A terminal's session as a recording: from its log and frames, running or over, in constant memory.


FORMATS = ("asciicast3", "asciicast2", "raw", "text")
# What one event holds at most, and what is read at once.
_PIECE_BYTES = 64 << 10
# A longer line is not a signal.
_LINE_MAX_BYTES = 1 << 20


class Recording:
    """What a session printed between two points, each an offset of its log or a time since its beginning (`90s`).

    `tally` is complete when all of it was written or all events were taken.
    """

    def __init__(
        self,
        files: Files,
        *,
        since: str | int | None = None,
        until: str | int | None = None,
        idle_limit: float | None = None,
    ) -> None:
        if not files.spec.get("tty"):
            raise NotATty(files.id)
        self.tally = Tally()
        self._files = files
        self._log = Log(files.directory)
        self._idle_limit = idle_limit
        with self._log.snapshot() as snapshot:
            self._frames = snapshot.whole_frames()
            self._kept = snapshot.begin(TTY)
            self._end = snapshot.ends.get(TTY, 0)
        self._resizes = self._frames.resizes(TTY)
        first = next(self._frames.records(), None)
        # The monotonic and the wall clock of one moment, to convert between them.
        self._clocks = None if first is None else first[:2]
        self.begin = 0 if since is None else self._point(since, "--from")
        self.end = self._end if until is None else min(self._end, self._point(until, "--to"))
        if self.end < self.begin:
            raise BadArgument("--to", "it comes before --from", "give an offset or a time after it")
        # How far it was read.
        self.at = self.begin
        # The screen that a recording from the middle begins with, and its size.
        self._opening: tuple[bytes, tuple[int, int]] | None = None

    def write(self, form: str) -> Iterator[bytes]:
        """The file, piece by piece."""
        if form not in FORMATS:
            raise BadArgument("--format", f"not a format: {form[:40]!a}", f"give one of {', '.join(FORMATS)}")
        if form == "raw":
            return self._raw()
        if form == "text":
            return (text.encode() for text in self._text())
        return (line.encode() for line in written(self.header(), self.events(), int(form[-1])))

    def save(self, path: str, form: str) -> None:
        """Whole or not at all: a recording that was interrupted does not look like one."""
        save(path, self.write(form))

    def header(self) -> Header:
        spec = self._files.spec
        command, name, tty = spec["command"], spec.get("name"), spec["tty"]
        self._open_screen()
        (rows, cols), _ = self._first_size()
        return Header(
            rows,
            cols,
            term=(tty.get("term") if isinstance(tty, dict) else None) or DEFAULT_TERM,
            started_at=None if self._clocks is None else self._clocks[1] // 1_000_000_000,
            command=command if isinstance(command, str) else shlex.join(map(str, command)),
            title=name if isinstance(name, str) else None,
        )

    def events(self) -> Iterator[Event]:
        self._open_screen()
        return events(self._moments(), self.tally, start_ns=self._start(), idle_limit=self._idle_limit)

    def _start(self) -> int | None:
        """When the recording begins: with the session, or with the first byte of its part."""
        if self.begin:
            return self._frames.came_at(TTY, self.begin)
        return None if self._clocks is None else self._clocks[0]

    def _point(self, given: str | int, argument: str) -> int:
        """An offset as it is, or as a cursor; a time as the offset of what came then."""
        text = str(given)
        if text.isdecimal() or ":" in text:
            offset = parse_cursor(text, (TTY,)).get(TTY, 0)
            if offset > self._end:
                raise BadArgument(argument, f"{offset} is past the end, {self._end}", "give a smaller offset")
            return offset
        wanted = seconds(text, argument) * 1e9
        start = 0 if self._clocks is None else self._clocks[0]
        for mono, _, stream, kind, offset, _ in self._frames.records():
            if stream == TTY and kind == DATA and mono - start >= wanted:
                return min(offset, self._end)
        return self._end

    def _first_size(self) -> tuple[tuple[int, int], int]:
        """The size in force at the beginning, and how many resizes lead up to it."""
        if self._opening is not None:
            return self._opening[1], sum(1 for offset, _, _ in self._resizes if offset <= self.begin)
        before = sum(1 for offset, _, _ in self._resizes if offset < self.begin)
        if not before and self._resizes and self._resizes[0][0] == self.begin:
            before = 1
        if before:
            return self._resizes[before - 1][1:], before
        return size_before(self._files.directory, self._files.spec, self.begin), 0

    def _raw(self) -> Iterator[bytes]:
        with self._log.snapshot() as snapshot:
            for moment in self._read(snapshot, self.begin, self.end, 0):
                if isinstance(moment, Output):
                    yield moment.data
                else:
                    self.tally.missing.append(moment)

    def _text(self) -> Iterator[str]:
        with self._log.snapshot() as snapshot:
            reading = Reading(snapshot, self.begin)
            at = self.begin
            for moment in self._read(snapshot, self.begin, self.end, 0):
                if isinstance(moment, Output):
                    yield "".join([text for _, text in reading.feed(at, moment.data)])
                    at += len(moment.data)
                else:
                    self.tally.missing.append(moment)
                    at = moment.stop
            yield "".join([text for _, text in reading.finish()])

    def _moments(self) -> Iterator[Moment]:
        """Everything in the order in which it happened."""
        start = self._start() or 0
        marks = [mark for mark in self._marks() if mark.at_ns >= start]
        taken = last = 0
        with self._log.snapshot() as snapshot:
            for moment in _one_gap(self._output(snapshot)):
                while taken < len(marks) and marks[taken].at_ns <= moment.at_ns:
                    yield marks[taken]
                    taken += 1
                yield moment
                last = moment.at_ns
        if self.end < self._end:
            return
        for mark in marks[taken:]:
            yield mark
            last = mark.at_ns
        status = _status(self._files.exit)
        if status is not None:
            assert self._files.exit is not None
            yield Exit(max(last, self._monotonic(self._files.exit.get("ended_at")) or 0), status)

    def _output(self, snapshot: LogSnapshot) -> Iterator[Output | Resize | Missing]:
        _, skipped = self._first_size()
        at = self.begin
        time = self._frames.came_at(TTY, at) or 0
        if self._opening is not None:
            yield Output(time, self._opening[0])
        for time, _, stream, kind, offset, length in self._frames.records():
            if stream != TTY or kind not in (DATA, RESIZE):
                continue
            if kind == RESIZE and skipped:
                skipped -= 1
                continue
            if offset > self.end:
                break
            upto = min(offset + length if kind == DATA else offset, self.end)
            yield from self._read(snapshot, at, upto, time)
            at = max(at, upto)
            if kind == RESIZE:
                yield Resize(time, length >> 16, length & 0xFFFF)
        yield from self._read(snapshot, at, self.end, time)

    def _read(self, snapshot: LogSnapshot, begin: int, end: int, time: int) -> Iterator[Output | Missing]:
        """All bytes between two offsets, and what is missing of them."""
        self.at = begin
        for offset, data in snapshot.pieces(TTY, begin, end, _PIECE_BYTES):
            if offset > self.at:
                yield Missing(time, self.at, offset, _reason(snapshot, self.at))
            yield Output(time, data)
            self.at = offset + len(data)
        if self.at < end:
            yield Missing(time, self.at, end, _reason(snapshot, self.at))

    def _open_screen(self) -> None:
        """What begins in the middle begins with the screen as it was, at the last place outside of any sequence."""
        if self._opening is not None or self.begin <= self._kept:
            return
        from ..terminal.grid import GridFailed
        from ..terminal.paint import paint
        from ..terminal.restore import render
        from .screens import restore_at

        restore = restore_at(self._log, self._files, self.begin, 0)
        self.begin = restore.at
        try:
            grid = render(restore.plan, restore.read, restore.resizes, 0)
            self._opening = paint(grid, restore.state, grid.size, 0), grid.size
        except GridFailed:
            # Other emulators fail here too: it begins with a blank screen.
            self._opening = b"", restore.state["size"]

    def _marks(self) -> list[Mark]:
        """The signals of the session."""
        found: list[Mark] = []
        for name in ("signals.1.jsonl", "signals.jsonl"):
            for record in _lines(f"{self._files.directory}/{name}"):
                label = _signal_label(record)
                if label and isinstance(record.get("mono_ns"), int):
                    found.append(Mark(record["mono_ns"], label))
        return sorted(found, key=lambda mark: mark.at_ns)

    def _monotonic(self, wall: object) -> int | None:
        """A time of day, as records have it, by the clock of the frames."""
        at = clock.epoch(wall)
        if self._clocks is None or at is None:
            return None
        return self._clocks[0] + round(at * 1e9) - self._clocks[1]


def _one_gap(moments: Iterator[Output | Resize | Missing]) -> Iterator[Output | Resize | Missing]:
    """What is missing in one piece was printed in many."""
    gap: Missing | None = None
    for moment in moments:
        if isinstance(moment, Missing):
            if gap is not None and (gap.stop, gap.reason) == (moment.start, moment.reason):
                moment = moment._replace(start=gap.start)
            elif gap is not None:
                yield gap
            gap = moment
        else:
            if gap is not None:
                yield gap._replace(at_ns=max(gap.at_ns, moment.at_ns))
            gap = None
            yield moment
    if gap is not None:
        yield gap


def _reason(snapshot: LogSnapshot, at: int) -> str:
    return next((gap.reason for gap in snapshot.gaps if gap.start <= at < gap.stop), "missing")


def _lines(path: str) -> Iterator[dict[str, Any]]:
    """Records, a line each. One that cannot be read is skipped: it is written just now, or damaged."""
    for line in lines(path, _LINE_MAX_BYTES):
        try:
            record = jsontext.read(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def _signal_label(record: dict[str, Any]) -> str:
    """Every signal has one object that says what happened."""
    for variant, facts in record.items():
        if variant != "snapshot" and isinstance(facts, dict):
            more = next((facts[name] for name in ("phase", "text", "kind", "state", "line") if facts.get(name)), "")
            return f"{variant}: {more}" if isinstance(more, str) and more else variant
    return ""


def _status(record: dict[str, Any] | None) -> int | None:
    ended = (record or {}).get("exit")
    return CommandExit.from_json(ended).shell_code if isinstance(ended, dict) else None
