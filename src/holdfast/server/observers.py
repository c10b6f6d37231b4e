"""Observers of a session share one connection to its runner, and read the files of its log at their own cursors.

The connection reports how far the log has come, and other changes. Its newest output is kept, so that observers that
keep up read no file.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING

from ..core.records import TTY
from ..errors import HoldfastError, ObserveOnly, OffsetAhead
from ..model import EXITED, RUNNING
from ..model.events import Bell, Clients, Data, Exit, Gap, Init, Mode, Size
from ..sessions.attach import between
from ..sessions.observe import read_files
from ..sessions.screens import restore_at
from ..sessions.wait import Wait
from .responses import PIECE_BYTES, TooManyConnections

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Self

    from ..model.events import Event
    from ..sessions.aio import AsyncSession
    from .attach import AttachParams, Dialect


# How many pieces, and messages with pieces, are kept.
_RECENT, _SPELLED = 16, 32
# Changes of size that an observer has not reached yet; if there are more, it sees the last one.
_SIZES = 1000
LABEL = "observers"


class Feed:
    """The connection that the observers of one session share."""

    def __init__(self, session: AsyncSession, stream: str) -> None:
        self.session = session
        self.stream = stream
        self.log = session._core.log(session.id)
        self.observers = 0
        self.end = 0
        # The last bytes, in pieces that end at multiples of their size, and where they begin.
        self._recent: deque[bytearray] = deque()
        self.recent_from = 0
        self._spelled: dict[tuple[int, int, str], str | bytes] = {}
        # The current state, and how often it changed.
        self.state: dict[str, Any] | None = None
        self.size: tuple[int, int] = (0, 0)
        self.clients: list[dict[str, Any]] = []
        self.client_id: str | None = None
        self.news: dict[str, tuple[int, Event]] = {}
        self.sizes: deque[tuple[int, Size]] = deque(maxlen=_SIZES)
        self.sized = 0
        self.exit: Exit | None = None
        self.error: HoldfastError | None = None
        self.is_over = False
        self._has_begun = False
        self._changed = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        try:
            await (self._read_terminal() if self.stream == TTY else self._read_pipe())
        except HoldfastError as error:
            self.error = error
        finally:
            self.is_over = True
            self.stir()

    async def _read_terminal(self) -> None:
        attachment = await self.session.attach(
            role="observe", since="now", lag="exact", kind="web", label=LABEL, visible=False, history_rows=0
        )
        async with attachment:
            while events := await attachment.wait():
                for event in events:
                    self._take(event)
                self.stir()

    async def _read_pipe(self) -> None:
        """How far the log of a pipe has come, to the end of the command and of everything that it left behind."""
        for extinct in (False, True):
            wait = Wait(self.session._core, self.session.id, output=True, stream=self.stream, extinct=extinct)
            try:
                more = True
                while more:
                    self.end = self.log.ends().get(self.stream, 0)
                    self._has_begun = True
                    self.stir()
                    more = await wait.output_after(f"{self.stream}:{self.end}")
            finally:
                wait.close()
            self.end = self.log.ends().get(self.stream, 0)
            exit = (await self.session.refresh()).exit
            if exit is None or self.exit is not None:
                return
            self._take(Exit(exit.code, exit.signal, exit.cause, exit.complete, bool(exit.survivors)))
            if not exit.survivors:
                return

    async def begun(self) -> None:
        """Wait for the first answer of the runner; its refusal is raised."""
        while not self._has_begun and not self.is_over:
            await self.changed()
        if self.error is not None and not self._has_begun:
            raise self.error

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _take(self, event: Event) -> None:
        if isinstance(event, Data):
            self._keep(event.offset, event.data)
        elif isinstance(event, Init):
            self._keep_from(event.at)
            self.state, self.size = event.state, event.size
            self.clients, self.client_id = event.clients, event.client_id
            self._has_begun = True
        elif isinstance(event, Gap):
            self._keep_from(max(self.end, event.end))
        elif isinstance(event, Size):
            self.size = event.rows, event.cols
            self.sizes.append((self.end, event))
            self.sized += 1
        elif isinstance(event, Exit):
            self.exit = event
        elif isinstance(event, Mode | Clients | Bell):
            if isinstance(event, Mode):
                self.state = event.state
            elif isinstance(event, Clients):
                self.clients = event.clients
            kind = type(event).__name__
            self.news[kind] = self.news.get(kind, (0, event))[0] + 1, event

    def stir(self) -> None:
        """Wake all observers."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def changed(self) -> None:
        await self._changed.wait()

    def _keep_from(self, offset: int) -> None:
        self._recent.clear()
        self.end = self.recent_from = offset

    def _keep(self, offset: int, data: bytes) -> None:
        if offset != self.end:
            self._keep_from(offset)
        at = 0
        while at < len(data):
            room = PIECE_BYTES - self.end % PIECE_BYTES
            if room == PIECE_BYTES or not self._recent:
                self._recent.append(bytearray())
            part = data[at : at + room]
            self._recent[-1] += part
            at += len(part)
            self.end += len(part)
        while len(self._recent) > _RECENT:
            self.recent_from += len(self._recent.popleft())

    def recent(self, at: int, end: int) -> bytes:
        """What is kept from `at` on, up to the end of a piece; nothing if that is no longer kept."""
        behind = at - self.recent_from
        if behind < 0 or not self._recent:
            return b""
        first = len(self._recent[0])
        number = 0 if behind < first else 1 + (behind - first) // PIECE_BYTES
        begin = 0 if number == 0 else first + (number - 1) * PIECE_BYTES
        return bytes(self._recent[number][behind - begin : end - self.recent_from - begin])

    def spelled(self, dialect: Dialect, offset: int, data: bytes) -> str | bytes:
        """A message with output, as most observers send it at about the same time."""
        key = offset, len(data), dialect.name
        found = self._spelled.get(key)
        if found is None:
            found = self._spelled[key] = dialect.spell({"type": "data", "offset": offset, "data": data})
            if len(self._spelled) > _SPELLED:
                del self._spelled[next(iter(self._spelled))]
        return found


class Feeds:
    """The feeds of a server by session, each as long as there is an observer."""

    def __init__(self, observers_per_session: int, skip_bytes: int) -> None:
        self._most = observers_per_session
        self.skip_bytes = skip_bytes
        self._feeds: dict[tuple[str, str], Feed] = {}

    async def join(self, session: AsyncSession, stream: str) -> Feed | None:
        """None for a terminal of which only the files are left, or whose files are in another place: such observers
        read alone."""
        if stream == TTY and (session.place != "local" or session.state != RUNNING):
            return None
        key = session.id, stream
        feed = self._feeds.get(key)
        if feed is None or feed.is_over:
            feed = self._feeds[key] = Feed(session, stream)
        if feed.observers >= self._most:
            raise TooManyConnections("observers_per_session", self._most)
        feed.observers += 1
        try:
            await feed.begun()
        except BaseException:
            await self.leave(feed)
            raise
        return feed

    async def leave(self, feed: Feed) -> None:
        feed.observers -= 1
        if not feed.observers:
            key = feed.session.id, feed.stream
            if self._feeds.get(key) is feed:
                del self._feeds[key]
            await feed.close()


class Observing:
    """One observer: a cursor. It has the methods of an attachment that a viewer needs."""

    def __init__(self, feeds: Feeds, feed: Feed, params: AttachParams) -> None:
        self._feeds = feeds
        self._feed = feed
        self._log = feed.log
        self.stream = feed.stream
        self.spelled = feed.spelled
        self._lag = params.lag
        rows = params.history_rows
        self.history_rows = feed.session._core.config.terminal_history_rows if rows is None else rows
        self._at = 0
        self._sizes = 0
        self._seen: dict[str, int] = {}
        self._is_exit_sent = False
        self._is_leaving = False
        self._due: Iterator[Event] = iter(())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._feeds.leave(self._feed)

    @property
    def end(self) -> int:
        return self._feed.end

    @property
    def state(self) -> str:
        return RUNNING if self._feed.exit is None else EXITED

    async def begin(self, since: str | int) -> None:
        """As a runner begins (runner/terminal/attach.py); an offset that is ahead is refused."""
        feed = self._feed
        with self._log.snapshot() as snapshot:
            first, end = snapshot.begin(self.stream), max(feed.end, snapshot.ends.get(self.stream, 0))
        if since == "screen" and self._has_screen:
            await self._start_over()
        elif since == "now":
            self._start_at(end)
        elif isinstance(since, str):
            self._start_at(first)
        elif since > end:
            raise OffsetAhead(self.stream, since, end)
        elif since < first:
            await self._resume(Gap(since, first, "dropped"))
        elif self._is_far_behind(since):
            await self._resume(Gap(since, end, "skipped"))
        else:
            self._start_at(since)

    async def wait(self) -> list[Event]:
        """What comes next; nothing when all has come."""
        feed = self._feed
        while not self._is_leaving:
            event = next(self._due, None) or await self._next()
            if event is not None:
                return [event]
            if feed.is_over:
                if feed.error is not None:
                    raise feed.error
                break
            await feed.changed()
        return []

    async def _next(self) -> Event | None:
        feed = self._feed
        size = self._next_size()
        if size is not None and size[0] <= self._at:
            self._sizes += 1
            return size[1]
        if self._at < feed.end:
            return await self._output(feed.end if size is None else min(size[0], feed.end))
        for kind, (number, event) in feed.news.items():
            if self._seen.get(kind) != number:
                self._seen[kind] = number
                return event
        if feed.exit is not None and not self._is_exit_sent:
            self._is_exit_sent = True
            return feed.exit
        return None

    def _next_size(self) -> tuple[int, Size] | None:
        feed = self._feed
        self._sizes = max(self._sizes, feed.sized - len(feed.sizes))
        return None if self._sizes == feed.sized else feed.sizes[self._sizes - feed.sized]

    async def _output(self, end: int) -> Event | None:
        feed, at = self._feed, self._at
        if self._is_far_behind(at):
            await self._resume(Gap(at, feed.end, "skipped"))
            return next(self._due)
        data = feed.recent(at, end)
        if not data:
            # Up to where others read from, so that the messages are the same.
            end = min(end, (at // PIECE_BYTES + 1) * PIECE_BYTES)
            with self._log.snapshot() as snapshot:
                begin, data = snapshot.piece(self.stream, at, end, PIECE_BYTES)
                dropped = snapshot.begin(self.stream)
            if begin > at or not data:
                await self._resume(Gap(at, begin if data else end, "dropped" if at < dropped else "disk"))
                return next(self._due)
        self._at += len(data)
        return Data(at, data)

    @property
    def _has_screen(self) -> bool:
        return self.stream == TTY

    def _is_far_behind(self, at: int) -> bool:
        return self._lag == "skip" and self._feed.end - at > self._feeds.skip_bytes

    async def _resume(self, gap: Gap) -> None:
        """After a gap, a terminal is shown the screen again, and an exact reader gets what there is."""
        if self._lag == "skip" and self._has_screen:
            await self._start_over()
        else:
            self._start_at(gap.end)
        self._due = chain([Gap(gap.begin, self._at, gap.reason)], self._due)

    def _start_at(self, at: int) -> None:
        feed = self._feed
        self._begin_at(at)
        self._due = iter([Init(at, feed.size, feed.state, [], [], True, feed.clients, feed.client_id, None)])

    async def _start_over(self) -> None:
        feed = self._feed
        sized = None
        while sized != feed.sized:  # again after a change of size that this screen may not have
            sized = feed.sized
            files = read_files(feed.session._core.home, feed.session.id)
            restore = await asyncio.to_thread(restore_at, self._log, files, feed.end, self.history_rows)
        state, plan = restore.state, restore.plan
        self._begin_at(restore.at)
        ranges, size = plan["ranges"], tuple(state["size"])
        init = Init(restore.at, size, state, ranges, restore.resizes, plan["exact"], feed.clients, feed.client_id, None)
        self._due = chain([init], *(between(self._log, part["from"], part["to"]) for part in ranges))

    def _begin_at(self, at: int) -> None:
        self._at = at
        self._sizes = self._feed.sized
        self._seen = {kind: number for kind, (number, _) in self._feed.news.items()}

    # An observer says nothing to the session.

    def _refuse(self, *_: object, **__: object) -> int:
        raise ObserveOnly(self._feed.client_id or "")

    send = send_parts = resize = _refuse

    def focus(self, focused: bool) -> None:
        pass

    def observe(self) -> None:
        pass

    async def drain(self) -> None:
        pass

    def detach(self) -> None:
        self._is_leaving = True
        self._feed.stir()
