"""What a view knows about each node while a reader looks at it: one exchange a node, its events, then its newest
sessions.

Without a reader nothing is transferred. The rows of a node that stops answering stay, with the time of its last answer.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

from ..core import jsontext
from ..core.clock import rfc3339
from ..errors import HoldfastError
from ..server.tokens import Caller
from .far_app import ask, fetch
from .rows import clean, far_shot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
    from typing import Any

    from starlette.types import Message

    from .far_app import Calls
    from .joining import Viewing
    from .rows import FarShot

    # A session of a node changed (`updated`, `removed`, ...); or, without a session, the node is `connected`,
    # `unreachable` or `forgotten`.
    Heard = Callable[["Followed", str, FarShot | None], None]


NEWEST = 200
# Following ends this long after the last request.
_LINGER_S = 60.0
# The state of a machine that wakes up is current within 10 s: the time from one attempt to the next, and the time that
# an attempt waits for an answer.
_RETRY_S, _RETRY_MAX_S = 1.0, 7.0
_OPEN_S = 5.0
# This many lists are transferred at a time: a fabric keeps what its reader has not taken yet, and a thousand nodes
# answer faster than a view can read. A slow node keeps its turn no longer than this.
_LISTS, _TURN_S = 32, 2.0
# The limit of sessions kept of one node: those it reported last.
ROWS_MAX = 1000
# Limits of texts that a node may have written.
WHY_CHARACTERS, _VERSION_CHARACTERS = 300, 40
_REASONS = 5
_CHANGES = ("created", "updated", "ended", "removed")
# Limit of one event, which has one session.
_EVENT_MAX_BYTES = 1 << 20


class Followed:
    """One node: its state, and its sessions by id as it reports them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: dict[str, FarShot] = {}
        # All sessions that were created after this are known; None if there are no others.
        self.floor: str | None = None
        # Sessions with an event since the stream began; None after the list has arrived.
        self.changed: set[str] | None = None
        self.why: str | None = "no answer yet"
        self.seen_at: str | None = None
        self.version: str | None = None
        self.answered = asyncio.Event()
        self.since_s = asyncio.get_running_loop().time()
        self.task: asyncio.Task[None] | None = None

    def put(self, shot: FarShot) -> None:
        self.rows[shot.id] = shot
        if len(self.rows) > ROWS_MAX:
            dropped = self.rows.pop(next(iter(self.rows)))
            self.floor = max(self.floor or "", dropped.created_at or "")

    def heard(self) -> None:
        self.seen_at = rfc3339(time.time_ns())


def by_reason(silent: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Names of nodes by the reason why each does not answer, the most frequent first. Some reasons are the words of a
    node, so their number is bounded."""
    found: dict[str, list[str]] = {}
    for name, why in silent:
        found.setdefault(why, []).append(name)
    ordered = sorted(found.items(), key=lambda each: -len(each[1]))
    others = [name for _, names in ordered[_REASONS:] for name in names]
    return dict(ordered[:_REASONS]) | ({"another reason": others} if others else {})


def far_shots(node: str, page: dict[str, Any]) -> list[FarShot]:
    """The sessions of a page that a node has sent."""
    items = page.get("items")
    shots = (far_shot(node, row) for row in items[:NEWEST]) if isinstance(items, list) else ()
    return [shot for shot in shots if shot is not None]


class Following:
    def __init__(self, calls: Calls, viewing: Viewing) -> None:
        self._calls = calls
        self._viewing = viewing
        self._followed: dict[str, Followed] = {}
        self._end: asyncio.TimerHandle | None = None
        self._turn = asyncio.Semaphore(_LISTS)
        self._readers: list[Heard] = []
        # What the view itself may; the rows are filtered for each caller of it.
        self._caller = Caller("view", "view", "observe", b"")

    async def look(self, names: Collection[str] | None = None, within_s: float = 2.0) -> list[Followed]:
        """The nodes, each followed from now on. A node that has never answered is waited for once: later calls return
        what is known about it."""
        known = self._viewing.nodes()
        for name in self._followed.keys() - known.keys():
            self._tell(self._followed[name], "forgotten")
            self._forget(name)
        wanted = [name for name in known if names is None or name in names]
        for name in wanted:
            if name not in self._followed:
                new = self._followed[name] = Followed(name)
                new.task = asyncio.create_task(self._follow(new))
        self._linger()
        followed = [self._followed[name] for name in wanted]
        now = asyncio.get_running_loop().time()
        awaited = [each for each in followed if not each.answered.is_set() and now < each.since_s + within_s]
        waiting = [asyncio.create_task(each.answered.wait()) for each in awaited]
        if waiting:
            await asyncio.wait(waiting, timeout=max(each.since_s for each in awaited) + within_s - now)
            for task in waiting:
                task.cancel()
        return followed

    @contextmanager
    def heard_by(self, reader: Heard) -> Iterator[None]:
        """Report changes on any node; all nodes are followed meanwhile."""
        self._readers.append(reader)
        try:
            yield
        finally:
            self._readers.remove(reader)
            self._linger()

    async def refresh(self) -> None:
        """The nodes of this view have changed: open readers follow the new ones."""
        if self._readers:
            await self.look(within_s=0)

    def _tell(self, node: Followed, change: str, shot: FarShot | None = None) -> None:
        for reader in self._readers:
            reader(node, change, shot)

    def seen_at(self, name: str) -> str | None:
        """When it last answered; None if it is not followed."""
        return self._followed[name].seen_at if name in self._followed else None

    async def close(self) -> None:
        if self._end is not None:
            self._end.cancel()
        tasks = [each.task for each in self._followed.values() if each.task is not None]
        for name in list(self._followed):
            self._forget(name)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _linger(self) -> None:
        loop = asyncio.get_running_loop()
        if self._end is not None:
            self._end.cancel()
        self._end = loop.call_later(_LINGER_S, self._stop)

    def _stop(self) -> None:
        if self._readers:
            self._linger()
            return
        for name in list(self._followed):
            self._forget(name)

    def _forget(self, name: str) -> None:
        followed = self._followed.pop(name)
        if followed.task is not None:
            followed.task.cancel()

    async def _follow(self, node: Followed) -> None:
        retry_s, loop = _RETRY_S, asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._events(node)
                retry_s = _RETRY_S
                why = "the stream of its events ended"
            except HoldfastError as problem:
                why = str(problem.facts.get("why") or problem.message)
            except (OSError, ValueError, TypeError, RecursionError) as problem:
                why = f"its answer is invalid: {str(problem) or type(problem).__name__}"
            why = clean(why[:WHY_CHARACTERS])
            if why != node.why:
                node.why = why
                self._tell(node, "unreachable")
            node.answered.set()
            await asyncio.sleep(max(_RETRY_S, began + retry_s - loop.time()))
            retry_s = min(2 * retry_s, _RETRY_MAX_S)

    async def _events(self, node: Followed) -> None:
        """Read events until the stream ends. The list is read after the stream has begun, so that no change is missed
        in between."""
        text = bytearray()
        listing: asyncio.Task[None] | None = None

        def stop() -> None:
            asking.cancel()

        async def send(event: Message) -> None:
            nonlocal listing
            node.heard()
            if event["type"] == "http.response.start":
                if event["status"] != 200:
                    raise HoldfastError(f"it answers with status {event['status']}")
                node.changed = set()
                listing = asyncio.create_task(self._list(node))
                # Without the list the events cannot be used.
                listing.add_done_callback(lambda done: None if done.cancelled() or not done.exception() else stop())
                return
            text.extend(event["body"])
            if len(text) > _EVENT_MAX_BYTES:
                raise HoldfastError("it sent an event that is too long")
            while (end := text.find(b"\n\n")) >= 0:
                block = bytes(text[:end]).decode("utf-8", "replace")
                del text[: end + 2]
                self._take(node, block)

        # At first a thousand nodes are asked at once, and some answers come later.
        talk = await self._calls.open(node.name, _OPEN_S if node.seen_at else None)
        query = "types=session"
        asking = asyncio.ensure_future(ask(self._calls, node.name, "/v1/events", self._caller, query, send, talk))
        try:
            await asking
        except asyncio.CancelledError:
            if listing is None or not listing.done() or listing.cancelled() or listing.exception() is None:
                raise
        finally:
            asking.cancel()
            if listing is not None:
                listing.cancel()
                with suppress(asyncio.CancelledError):
                    await listing

    async def _list(self, node: Followed) -> None:
        async with self._in_turn():
            _, about = await fetch(self._calls, node.name, "/v1/info", self._caller)
            newest, is_cut = await self._sessions(node)
            running = (await self._sessions(node, "&state=running"))[0] if is_cut else []
        version = about.get("version")
        node.version = clean(version[:_VERSION_CHARACTERS]) if isinstance(version, str) else None
        changed, node.changed = node.changed or set(), None
        node.rows = {id: row for id, row in node.rows.items() if id in changed}
        node.floor = min((shot.created_at or "" for shot in newest), default="") if is_cut else None
        for shot in (*reversed(newest), *running):
            # An event is newer than the list, which was asked for when the events had begun.
            if shot.id not in changed:
                node.put(shot)
        node.why = None
        node.heard()
        node.answered.set()
        self._tell(node, "connected")

    async def _sessions(self, node: Followed, query: str = "") -> tuple[list[FarShot], bool]:
        """The newest sessions, and whether there are more."""
        _, page = await fetch(self._calls, node.name, "/v1/sessions", self._caller, f"limit={NEWEST}{query}")
        return far_shots(node.name, page), page.get("next") is not None

    async def page(self, node: Followed, caller: Caller, query: str) -> dict[str, Any] | None:
        """What the node itself answers to a request for sessions; None if it does not answer."""
        try:
            async with asyncio.timeout(_TURN_S), self._in_turn():
                status, page = await fetch(self._calls, node.name, "/v1/sessions", caller, query)
        except (HoldfastError, TimeoutError, OSError, ValueError, TypeError, RecursionError):
            return None
        return page if status == 200 else None

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        await self._turn.acquire()
        slow = asyncio.get_running_loop().call_later(_TURN_S, self._turn.release)
        try:
            yield
        finally:
            if slow.when() > asyncio.get_running_loop().time():
                slow.cancel()
                self._turn.release()

    def _take(self, node: Followed, block: str) -> None:
        fields = dict(line.partition(": ")[::2] for line in block.split("\n"))
        if fields.get("event") == "reset":
            raise HoldfastError("its index is new")
        if fields.get("event") != "session":
            return
        row = jsontext.read_finite(fields.get("data", "{}").encode())
        if not isinstance(row, dict):
            return
        change = str(row.pop("change", "updated"))
        if node.changed is not None and len(node.changed) < ROWS_MAX:
            node.changed.add(str(row.get("id")))
        if change == "removed":
            shot = node.rows.pop(str(row.get("id")), None)
        else:
            shot = far_shot(node.name, row)
            if shot is not None:
                node.put(shot)
        if shot is not None and change in _CHANGES:
            self._tell(node, change, shot)
