"""What a view knows of each node while it is looked at: one exchange a node, its events, then its newest sessions.

Without a reader nothing is transferred. The rows of a node that stops answering stay, with the time of its last answer.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ..core import jsontext
from ..core.clock import rfc3339
from ..errors import HoldfastError
from ..server.tokens import Caller
from .far_app import ask, fetch
from .rows import far_shot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from starlette.types import Message

    from .far_app import Calls
    from .joining import Viewing
    from .rows import FarShot

    # The node, what happened, and the session; None where all rows of the node may have changed.
    Changed = Callable[[str, str, FarShot | None], None]


NEWEST = 200
# A look ends this long after the last request.
_LINGER_S = 60.0
_RETRY_S, _RETRY_MAX_S = 1.0, 30.0
_NS = 1_000_000_000
# What is kept of one node is bounded: its newest sessions.
ROWS_MAX = 10_000
# Limit of one event, which has one session.
_EVENT_MAX_BYTES = 1 << 20


class Followed:
    """One node: its state, and its sessions by id as it reports them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: dict[str, FarShot] = {}
        self.why: str | None = "no answer yet"
        self.seen_at: str | None = None
        self.version: str | None = None
        self.answered = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def put(self, row: object) -> FarShot | None:
        shot = far_shot(self.name, row)
        if shot is not None and (shot.id in self.rows or len(self.rows) < ROWS_MAX):
            self.rows[shot.id] = shot
        return shot

    def heard(self) -> None:
        self.seen_at = rfc3339(time.time_ns())


class Following:
    def __init__(self, calls: Calls, viewing: Viewing) -> None:
        self._calls = calls
        self._viewing = viewing
        self._followed: dict[str, Followed] = {}
        self._listeners: set[Changed] = set()
        self._end: asyncio.TimerHandle | None = None
        # What the view itself may; the rows are filtered for each caller of it.
        self._caller = Caller("view", "view", "observe", b"")

    async def look(self, names: Iterable[str] | None = None, within_s: float = 2.0) -> list[Followed]:
        """The nodes, each followed from now on; those that have not answered in time say why."""
        known = self._viewing.nodes()
        for name in self._followed.keys() - known.keys():
            self._forget(name)
        wanted = [name for name in known if names is None or name in set(names)]
        for name in wanted:
            if name not in self._followed:
                followed = self._followed[name] = Followed(name)
                followed.task = asyncio.create_task(self._follow(followed))
        self._linger()
        waiting = [asyncio.create_task(self._followed[name].answered.wait()) for name in wanted]
        if waiting:
            await asyncio.wait(waiting, timeout=within_s)
            for task in waiting:
                task.cancel()
        return [self._followed[name] for name in wanted]

    def seen_at(self, name: str) -> str | None:
        """When it last answered; None if it is not followed."""
        return self._followed[name].seen_at if name in self._followed else None

    def listen(self, changed: Changed) -> Callable[[], None]:
        """Call it for each change, until the returned function is called."""
        self._listeners.add(changed)
        return lambda: self._listeners.discard(changed)

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
        self._end = loop.call_later(_LINGER_S, self._stop_unless_heard)

    def _stop_unless_heard(self) -> None:
        if self._listeners:
            self._linger()
            return
        for name in list(self._followed):
            self._forget(name)

    def _forget(self, name: str) -> None:
        followed = self._followed.pop(name)
        if followed.task is not None:
            followed.task.cancel()

    def _tell(self, node: str, change: str, row: FarShot | None) -> None:
        for listener in list(self._listeners):
            listener(node, change, row)

    async def _follow(self, node: Followed) -> None:
        retry_s = _RETRY_S
        while True:
            try:
                await self._events(node)
                retry_s = _RETRY_S
                why = "the stream of its events ended"
            except HoldfastError as problem:
                why = str(problem.facts.get("why") or problem.message)
            except (OSError, ValueError) as problem:
                why = str(problem) or type(problem).__name__
            if node.why != why:
                node.why = why
                self._tell(node.name, "unreachable", None)
            node.answered.set()
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _RETRY_MAX_S)

    async def _events(self, node: Followed) -> None:
        """Until the stream ends. The list is read when the stream has begun, so that no change falls between."""
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
                listing = asyncio.create_task(self._list(node))
                # Without the list the events are of no use.
                listing.add_done_callback(lambda done: None if done.cancelled() or not done.exception() else stop())
                return
            text.extend(event["body"])
            if len(text) > _EVENT_MAX_BYTES:
                raise HoldfastError("it sent an event that is too long")
            while (end := text.find(b"\n\n")) >= 0:
                block = bytes(text[:end]).decode("utf-8", "replace")
                del text[: end + 2]
                self._take(node, block)

        asking = asyncio.ensure_future(ask(self._calls, node.name, "/v1/events", self._caller, "types=session", send))
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
        _, about = await fetch(self._calls, node.name, "/v1/info", self._caller)
        _, page = await fetch(self._calls, node.name, "/v1/sessions", self._caller, f"limit={NEWEST}")
        version = about.get("version")
        node.version = version if isinstance(version, str) else None
        known = node.rows
        node.rows = {}
        for row in page.get("items") or ():
            node.put(row)
        for id, row in known.items():
            # Those that are older than the page are as they were.
            if len(node.rows) >= NEWEST:
                node.rows.setdefault(id, row)
        node.why = None
        node.heard()
        node.answered.set()
        self._tell(node.name, "connected", None)

    def _take(self, node: Followed, block: str) -> None:
        fields = dict(line.partition(": ")[::2] for line in block.split("\n"))
        if fields.get("event") == "reset":
            raise HoldfastError("its index is new")
        if fields.get("event") != "session":
            return
        row = jsontext.read(fields.get("data", "{}").encode())
        if not isinstance(row, dict):
            return
        change = str(row.pop("change", "updated"))
        shown = node.rows.pop(str(row.get("id")), None) if change == "removed" else node.put(row)
        if shown is not None:
            self._tell(node.name, change, shown)
