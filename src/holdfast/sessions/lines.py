"""Clean lines of logs with the times at which they were printed, of one session or of several."""

from __future__ import annotations

import bisect

from ..errors import BadArgument
from ..model.session import seconds
from ..runner.log import DATA

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from queue import SimpleQueue

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

            with self._log.look() as look:
                self._terminal = Reading(look, offset, live=self._follow)
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
    """The cursor of the first byte that was printed then or later."""
    from ..model.session import format_cursor

    with log.look() as look:
        at = dict(look.ends)
        for _, wall, stream, kind, offset, _ in look.whole_frames().records():
            if kind == DATA and wall >= since * 1e9 and stream in at:
                at[stream] = min(at[stream], offset)
        return format_cursor(at)


def read_lines(
    hf: Holdfast,
    ids: Iterable[str],
    *,
    follow: bool = False,
    since: float | None = None,
    until: float | None = None,
    last: int | None = None,
    stream: str | None = None,
) -> Iterator[list[Line]]:
    """Batches of lines, each in the order of their times: one of all that is retained, or, with `follow`, one whenever
    something has arrived, until all have ended. Lines of one session keep their order."""
    from queue import Empty, SimpleQueue
    from threading import Thread

    ids = list(ids)
    arrived: SimpleQueue[list[Line] | BaseException | None] = SimpleQueue()
    for id in ids:
        work = (hf, id, arrived, since, last, stream, follow)
        Thread(target=_read_one, args=work, name=f"lines of {id}", daemon=True).start()
    running = len(ids)
    whole: list[Line] = []
    while running:
        found = [arrived.get()]
        try:
            while True:
                found.append(arrived.get_nowait())
        except Empty:
            pass
        batch: list[Line] = []
        for each in found:
            if each is None:
                running -= 1
            elif isinstance(each, BaseException):
                raise each
            else:
                batch += each
        batch = [line for line in batch if until is None or line[0] <= until * 1e9]
        if follow and batch:
            yield sorted(batch, key=lambda line: line[0])
        elif not follow:
            whole += batch
    if whole:
        yield sorted(whole, key=lambda line: line[0])


def _read_one(
    hf: Holdfast,
    id: str,
    arrived: SimpleQueue[list[Line] | BaseException | None],
    since: float | None,
    last: int | None,
    stream: str | None,
    follow: bool,
) -> None:
    from .api import Holdfast

    try:
        # A host of its own: two threads do not share one.
        with Holdfast(hf.home.path, config=hf.config) as own:
            session, log = own.get(id), own._core.log(id)
            cursor = None if since is None else since_moment(log, since)
            lines = _Lines(log, id)
            if last is not None:
                page = log.tail(last, stream=stream)
                arrived.put(lines.of(page))
                cursor = page.cursor
            if follow:
                for page in session.follow(cursor, stream=stream):
                    arrived.put(lines.of(page))
            elif last is None:
                while True:
                    page = session.read(cursor, stream=stream)
                    arrived.put(lines.of(page))
                    cursor = page.cursor
                    if not page.more:
                        break
            arrived.put(lines.rest())
        arrived.put(None)
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
        with self._log.look() as look:
            recent = all(look.frames.covers(stream, offset, offset + len(data)) for stream, offset, data in page.chunks)
            times = _Times(look.frames if recent else look.whole_frames())
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
                with self._log.look() as look:
                    times = _Times(look.whole_frames())
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
