"""Clean lines of logs with the times at which they were printed, of one session or of several."""

from __future__ import annotations

import bisect
from enum import Enum

from ..errors import BadArgument
from ..model.session import seconds
from ..runner.log import DATA

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from queue import SimpleQueue
    from typing import Any

    from ..core.vt.text import Cleaner
    from .api import Holdfast
    from .log import Log, Page
    from .segments import Frames
    from .terminal_log import Reading

    # When it was printed, in ns since 1970; the session; its text.
    Line = tuple[int, str, str]


class Cleaners:
    """Finished lines in the order in which they were finished: streams never mix within a line. With `follow`, lines
    of a terminal come at once, and again if they are rewritten."""

    def __init__(self, log: Log, *, follow: bool = False) -> None:
        self._log = log
        self._follow = follow
        self._by_stream: dict[str, Cleaner] = {}
        self._terminal: Reading | None = None

    def feed(self, stream: str, offset: int, data: bytes) -> str:
        if stream == "tty":
            return self._feed_terminal(offset, data)
        if stream not in self._by_stream:
            from ..core.vt.text import Cleaner

            self._by_stream[stream] = Cleaner()
        return self._by_stream[stream].feed(data)

    def _feed_terminal(self, offset: int, data: bytes) -> str:
        if self._terminal is None:
            from ..sessions.terminal_log import Reading

            with self._log.snapshot() as snapshot:
                self._terminal = Reading(snapshot, offset, live=self._follow)
        text = "".join([text for _, text in self._terminal.feed(offset, data)])
        return text + self._terminal.settled() if self._follow else text

    def unfinished(self, stream: str) -> str:
        if self._terminal is not None:
            return self._terminal.unfinished()
        return self._by_stream[stream].peek()

    def rest(self) -> str:
        rest = [cleaner.flush() for cleaner in self._by_stream.values()]
        if self._terminal is not None:
            rest.append("".join([text for _, text in self._terminal.finish()]))
        return "\n".join(filter(None, rest))


def moment(text: str | None, argument: str = "--since") -> float | None:
    """Seconds since 1970 of `5m` (ago) or of a time; None for a cursor, which only --since takes."""
    import time
    from datetime import datetime

    is_time = text is not None and text[:1].isdecimal() and not text.isdecimal()
    if text is None or (argument == "--since" and not is_time):
        return None
    try:
        if "-" in text:
            return datetime.fromisoformat(text).timestamp()
        return time.time() - seconds(text, argument)
    except (ValueError, OverflowError, BadArgument):
        raise BadArgument(argument, f"{text[:80]!a} is not a time", "such as 5m, or 2026-08-01T09:14:07Z") from None


def since_moment(log: Log, since: float) -> str:
    """The cursor of the first byte that was printed then or later. What has no time yet is later: a runner writes the
    bytes first, then when they came. What has none any more is earlier."""
    from ..model.session import format_cursor

    with log.snapshot() as snapshot:
        begins = {stream: snapshot.begin(stream) for stream in snapshot.ends}
        first: dict[str, int] = {}
        before: dict[str, int] = {}
        for _, wall, stream, kind, offset, length in snapshot.whole_frames().records():
            if kind == DATA and stream in begins:
                first.setdefault(stream, offset)
                if wall < since * 1e9:
                    before[stream] = max(before.get(stream, 0), offset + length)
        if any(offset > begins[stream] for stream, offset in first.items()):
            # A runner drops the times of very old output: it came before the first that is left.
            begins = {stream: first.get(stream, end) for stream, end in snapshot.ends.items()}
        return format_cursor({stream: max(begin, before.get(stream, 0)) for stream, begin in begins.items()})


def read_lines(
    hf: Holdfast,
    ids: Iterable[str],
    *,
    follow: bool = False,
    since: float | None = None,
    until: float | None = None,
    last: int | None = None,
    stream: str | None = None,
    ended: Callable[[str], None] | None = None,
) -> Iterator[list[Line]]:
    """Batches of lines, each in the order of their times: one batch of all that is retained; or, with `follow`, one of
    all that was there at the beginning and then one whenever something has arrived, until all have ended. Lines of one
    session keep their order. `ended` is called with the id of each session after its last line. `ids` may be a slow
    iterator, unless it is a list."""
    from queue import SimpleQueue
    from threading import Thread

    arrived: SimpleQueue[list[Line] | BaseException | str | _Step] = SimpleQueue()
    known = ids if isinstance(ids, list) else []

    def begin() -> None:
        for id in ids:
            if not known:
                arrived.put(_Step.BEGINS)
            work = (hf, id, arrived, since, last, stream, follow)
            Thread(target=_read_one, args=work, name=f"lines of {id}", daemon=True).start()
        arrived.put(_Step.ALL_BEGUN)

    Thread(target=begin, name="lines", daemon=True).start()
    # How many are read, with `begin` itself, and how many of them are still at what was there at the beginning.
    running, behind = len(known) + 1, len(known)
    lines: list[Line] = []
    over: list[str] = []
    while running:
        for each in _all_of(arrived):
            if each is _Step.BEGINS:
                running, behind = running + 1, behind + 1
            elif each is _Step.CAUGHT_UP:
                behind -= 1
            elif each is _Step.ALL_BEGUN:
                running -= 1
            elif isinstance(each, str):
                over.append(each)
                running -= 1
            elif isinstance(each, BaseException):
                raise each
            elif isinstance(each, list):
                lines += [line for line in each if until is None or line[0] <= until * 1e9]
        if running and (behind or not follow):
            continue
        if lines:
            yield sorted(lines, key=lambda line: line[0])
        for id in over:
            if ended is not None:
                ended(id)
        lines, over = [], []


class _Step(Enum):
    BEGINS = 1
    # All lines of a session that were there when its log was opened have been read.
    CAUGHT_UP = 2
    ALL_BEGUN = 3


def _all_of(arrived: SimpleQueue[Any]) -> list[Any]:
    """Everything that has arrived, at least one item."""
    from queue import Empty

    found = [arrived.get()]
    try:
        while True:
            found.append(arrived.get_nowait())
    except Empty:
        return found


def _read_one(
    hf: Holdfast,
    id: str,
    arrived: SimpleQueue[list[Line] | BaseException | str | _Step],
    since: float | None,
    last: int | None,
    stream: str | None,
    follow: bool,
) -> None:
    from .api import Holdfast

    try:
        # A separate host: two threads do not share one.
        with Holdfast(hf.home.path, config=hf.config) as own:
            session, log = own.get(id), own._core.log(id)
            cursor = None if since is None else since_moment(log, since)
            lines = _Lines(log, id)
            left = log.size()
            if last is not None:
                page = log.tail(last, stream=stream)
                arrived.put(lines.of(page))
                cursor = page.cursor
            while last is None:
                page = session.read(cursor, stream=stream)
                arrived.put(lines.of(page))
                cursor = page.cursor
                left -= sum(len(data) for _, _, data in page.chunks)
                # If one prints all the time, what arrived meanwhile is followed.
                if not page.more or (follow and left <= 0):
                    break
            arrived.put(_Step.CAUGHT_UP)
            if follow:
                for page in session.follow(cursor, stream=stream):
                    arrived.put(lines.of(page))
            arrived.put(lines.rest())
        arrived.put(id)
    except BaseException as problem:  # noqa: BLE001 - raised in the thread that reads the lines
        arrived.put(problem)


class _Lines:
    """Finished lines of one session. The times of a session never go back, even if the clock did."""

    def __init__(self, log: Log, id: str) -> None:
        self._log = log
        self._id = id
        self._clean = Cleaners(log)
        self._latest = 0

    def of(self, page: Page) -> list[Line]:
        found: list[Line] = []
        if page.told:
            ends = [offset + len(data) for _, offset, data in page.chunks]
            return self._add(found, page.text, page.chunks[-1][0] if ends else "stdout", ends[-1] if ends else 0)
        with self._log.snapshot() as snapshot:
            covers = snapshot.frames.covers
            recent = all(covers(stream, offset, offset + len(data)) for stream, offset, data in page.chunks)
            times = _Times(snapshot.frames if recent else snapshot.whole_frames())
            for stream, offset, data in page.chunks:
                for piece in data.splitlines(keepends=True) if stream != "tty" else [data]:
                    offset += len(piece)
                    self._add(found, self._clean.feed(stream, offset - len(piece), piece), stream, offset, times)
        return found

    def rest(self) -> list[Line]:
        return self._add([], self._clean.rest(), "", 0)

    def _add(self, found: list[Line], text: str, stream: str, end: int, times: _Times | None = None) -> list[Line]:
        if text:
            if times is None:
                with self._log.snapshot() as snapshot:
                    times = _Times(snapshot.whole_frames())
            self._latest = max(self._latest, times.of(stream, end))
            found += [(self._latest, self._id, line) for line in text.removesuffix("\n").split("\n")]
        return found


class _Times:
    """When the bytes of each stream were printed."""

    def __init__(self, frames: Frames) -> None:
        self._ends: dict[str, list[int]] = {}
        self._walls: dict[str, list[int]] = {}
        for _, wall, stream, kind, offset, length in frames.records():
            if kind == DATA:
                self._ends.setdefault(stream, []).append(offset + length)
                self._walls.setdefault(stream, []).append(wall)

    def of(self, stream: str, end: int) -> int:
        walls = self._walls.get(stream)
        return walls[min(bisect.bisect_left(self._ends[stream], end), len(walls) - 1)] if walls else 0
