"""The fabric in a server: this home as a node, as a view, or as both, as its files say.

The files are watched: a home that joins while its server runs is offered at once, and a view that is revoked loses what
it has open.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

from ..server.tokens import SCOPES, Caller
from ..server.watching import NAMES, Watching
from .fabric import Fabric
from .far_app import Calls
from .following import Following
from .joining import Joined, Viewing
from .offering import Offering, far_end

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..home import Home
    from .fabric import Address
    from .joining import View
    from .offering import Serve


_OFFERING = "offering.lock"


class Nodes:
    """A context manager: while it is open, this process takes part in the fabric."""

    def __init__(self, home: Home, serve: Serve, note: Callable[..., None]) -> None:
        self._home = home
        self._note = note
        self._path = os.path.join(home.path, "nodes")
        self._serve = serve
        self._stack = AsyncExitStack()
        self._as_node: tuple[Address, AsyncExitStack, Offering] | None = None
        self._as_view: tuple[Address, AsyncExitStack] | None = None
        self._viewing: Viewing | None = None
        self._joined: Joined | None = None
        self._trusted: set[str] = set()
        self._known: set[str] = set()
        self.calls: Calls | None = None
        self.following: Following | None = None

    async def __aenter__(self) -> Nodes:
        task = asyncio.create_task(self._watch())
        self._stack.push_async_callback(_ended, task)
        self._stack.push_async_callback(self._leave)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def viewing(self) -> Viewing | None:
        return self._viewing

    async def _watch(self) -> None:
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        with Watching() as watching:
            watching.watch(self._home.path, "home", NAMES)
            watching.watch(self._path, "nodes", NAMES)
            loop.add_reader(watching.fileno(), changed.set)
            try:
                while True:
                    await self._look()
                    await changed.wait()
                    changed.clear()
                    seen = watching.read()
                    if seen is None or ("home", "nodes") in seen:
                        watching.watch(self._path, "nodes", NAMES)
            finally:
                loop.remove_reader(watching.fileno())

    async def _look(self) -> None:
        """Bring what we take part in in line with the files."""
        if self._joined is None:
            self._joined, self._viewing = Joined(self._home), Viewing(self._home)
            self.calls = Calls(self._viewing)
            self.calls.note = self._note
            self.following = Following(self.calls, self._viewing)
        assert self._viewing is not None
        assert self.calls is not None
        nodes = set(self._viewing.nodes())
        for node in self._known - nodes:
            await self.calls.forgotten(node)
        self._known = nodes
        address = self._viewing.address
        if address is not None and (self._as_view is None or self._as_view[0] != address):
            if self._as_view is not None:
                await self._as_view[1].aclose()
            stack = AsyncExitStack()
            calls = self.calls
            name = f"{self._viewing.name}.{calls.process}"
            calls.fabric = await stack.enter_async_context(Fabric(address, "v", name, calls.heard, calls.lost))
            self._as_view = address, stack
        await self._offer(self._joined)

    async def _offer(self, joined: Joined) -> None:
        views = set(joined.views())
        if self._as_node is not None:
            for view in self._trusted - views:
                self._as_node[2].revoked(view)
        self._trusted = views
        address, name = joined.address, joined.name
        if address is None or name is None or (self._as_node is not None and self._as_node[0] == address):
            return
        if self._as_node is not None:
            await self._as_node[1].aclose()
        stack = AsyncExitStack()
        offering = Offering(joined, self._serve, _caller, far_end(), self._note)
        lock = await _only_one(os.path.join(self._path, _OFFERING))
        stack.callback(os.close, lock)
        stack.push_async_callback(offering.close)
        offering.fabric = await stack.enter_async_context(Fabric(address, "n", name, offering.heard, offering.lost))
        self._as_node = address, stack, offering

    async def _leave(self) -> None:
        if self.following is not None:
            await self.following.close()
        for side in (self._as_node, self._as_view):
            if side is not None:
                await side[1].aclose()


async def _only_one(path: str) -> int:
    """Of the servers of one home only one answers for it; another takes over when that one is gone."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd
    except BlockingIOError:
        pass
    loop, taken = asyncio.get_running_loop(), asyncio.Event()

    def wait() -> None:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with suppress(RuntimeError):  # the server has left meanwhile
            loop.call_soon_threadsafe(taken.set)

    # A thread of the executor would keep the server from leaving.
    threading.Thread(target=wait, name="holdfast offering", daemon=True).start()
    await taken.wait()
    return fd


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _caller(view: View, claims: dict[str, Any]) -> Caller:
    """What the caller of a view claims, cut down to what this node grants that view."""
    claimed = claims.get("scope")
    scope = SCOPES[min(SCOPES.index(claimed) if claimed in SCOPES else 0, SCOPES.index(view.scope))]
    ids, owner, labels = claims.get("sessions"), claims.get("owner"), claims.get("labels") or {}
    sessions = None if ids is None else frozenset(str(each) for each in ids)
    labels = {str(key): str(value) for key, value in labels.items()}
    conflicting = any(labels.get(key, value) != value for key, value in view.labels.items())
    if conflicting or (owner is not None and view.owner is not None and owner != view.owner):
        sessions = frozenset()
    label = f"{str(claims.get('label'))[:64]}@{view.name}"
    narrowed = {**labels, **view.labels}
    return Caller(f"view-{view.name}", label, scope, b"", sessions, view.owner or owner, narrowed)
