"""The fabric in a server: this home as a node, as a view, or as both, as its files say.

The files are watched: a home that joins while its server runs is offered at once, and a view that is revoked loses what
it has open.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import threading
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

from ..errors import DamagedRecord
from ..server.tokens import SCOPES, Caller
from ..server.watching import NAMES, Watching
from .far_app import Calls
from .following import Following
from .joining import JOINED, VIEWING, Joined, Viewing, caller_id, level
from .offering import Offering, far_end

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..home import Home
    from ..server.tokens import Tokens
    from .fabric import Address
    from .joining import View
    from .offering import Serve


_log = logging.getLogger("holdfast.nodes")

OFFERING = "offering.lock"
# A file that cannot be used is read again after this, whether it was seen to change or not.
_AGAIN_S = 1.0


class Nodes:
    """A context manager: while it is open, this process takes part in the fabric."""

    def __init__(self, home: Home, serve: Serve, note: Callable[..., None], tokens: Tokens) -> None:
        self._tokens = tokens
        self._path = os.path.join(home.path, "nodes")
        self._home_path = home.path
        self._stack = AsyncExitStack()
        self._changed = asyncio.Event()
        self._joined, self.viewing = Joined(home), Viewing(home)
        self._offering = Offering(self._joined, serve, _caller, far_end(), note)
        # Of the servers of one home, only one answers for the node.
        self._is_first = False
        self._offered: dict[tuple[Address, str], AsyncExitStack] = {}
        self._as_view: tuple[Address, AsyncExitStack] | None = None
        # The views, each with what it may do as an index of `SCOPES`.
        self._trusted: dict[str, int] = {}
        self._known: set[str] = set()
        # What is wrong with the files, as it was logged.
        self._problems: list[str] = []
        self.calls = Calls(self.viewing)
        self.calls.note = note
        self.following = Following(self.calls, self.viewing)

    async def __aenter__(self) -> Nodes:
        self._stack.push_async_callback(self._leave)
        for work in (self._watch(), self._become_first()):
            self._stack.push_async_callback(_ended, asyncio.create_task(work))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _watch(self) -> None:
        loop, changed = asyncio.get_running_loop(), self._changed
        with Watching() as watching:
            watching.watch(self._home_path, "home", NAMES)
            watching.watch(self._path, "nodes", NAMES)
            loop.add_reader(watching.fileno(), changed.set)
            try:
                while True:
                    wait_s = await self._look()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(changed.wait(), wait_s)
                    changed.clear()
                    seen = watching.read()
                    if seen is None or ("home", "nodes") in seen:
                        watching.watch(self._path, "nodes", NAMES)
            finally:
                loop.remove_reader(watching.fileno())

    async def _become_first(self) -> None:
        self._stack.callback(os.close, await _only_one(os.path.join(self._path, OFFERING)))
        self._is_first = True
        self._changed.set()

    async def _look(self) -> float | None:
        """Connect and disconnect as the files say. Returns when to look again, if a file cannot be used."""
        problems = []
        for name, look in ((JOINED, self._look_as_node), (VIEWING, self._look_as_view)):
            try:
                await look()
            except DamagedRecord as problem:
                problems.append(str(problem))
            except Exception as problem:  # noqa: BLE001
                problems.append(f"{os.path.join(self._path, name)} cannot be used: {problem!r}")
        for text in problems:
            if text not in self._problems:
                _log.error("%s", text)
        self._problems = problems
        return _AGAIN_S if problems else None

    async def _look_as_node(self) -> None:
        views: dict[str, int] = {}
        wanted: set[tuple[Address, str]] = set()
        try:
            views = {view.name: level(view.scope) for view in self._joined.views().values()}
            wanted = self._joined.fabrics() if self._is_first else wanted
        finally:
            # While the file cannot be used, no view is trusted.
            lost = {name for name, most in self._trusted.items() if views.get(name, -1) < most}
            self._trusted = views
            await self._offering.revoked(lost)
            for name in lost:
                # Those that it has made since the command that revoked it.
                self._tokens.revoke_made_by(caller_id(name))
            for gone in self._offered.keys() - wanted:
                await self._offered.pop(gone).aclose()
            for new in wanted - self._offered.keys():
                stack = self._offered[new] = AsyncExitStack()
                await stack.enter_async_context(self._offering.through(*new))

    async def _look_as_view(self) -> None:
        nodes = set(self.viewing.nodes())
        for node in self._known - nodes:
            await self.calls.forgotten(node)
        if nodes != self._known:
            await self.following.refresh()
        self._known = nodes
        address = self.viewing.address
        if address is not None and (self._as_view is None or self._as_view[0] != address):
            if self._as_view is not None:
                await self._as_view[1].aclose()
            stack = AsyncExitStack()
            await stack.enter_async_context(self.calls.through(address))
            self._as_view = address, stack

    async def _leave(self) -> None:
        await self.following.close()
        await self._offering.close()
        for stack in (*self._offered.values(), *(() if self._as_view is None else (self._as_view[1],))):
            await stack.aclose()


async def _only_one(path: str) -> int:
    """Of the servers of one home, only one answers for the node; another takes over when that one is gone."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd
    except BlockingIOError:
        pass
    loop, taken = asyncio.get_running_loop(), asyncio.Event()

    def wait() -> None:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with suppress(RuntimeError):  # the server was shut down meanwhile
            loop.call_soon_threadsafe(taken.set)

    # A thread of the executor would delay the shutdown of the server.
    threading.Thread(target=wait, name="holdfast offering", daemon=True).start()
    await taken.wait()
    return fd


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _caller(view: View, claims: dict[str, Any]) -> Caller:
    """What the caller of a view claims, limited to what this node grants that view."""
    claimed = claims.get("scope")
    scope = SCOPES[min(level(claimed), level(view.scope))]
    ids, owner, labels = claims.get("sessions"), claims.get("owner"), claims.get("labels") or {}
    sessions = None if ids is None else frozenset(str(each) for each in ids)
    labels = {str(key): str(value) for key, value in labels.items()}
    conflicting = any(labels.get(key, value) != value for key, value in view.labels.items())
    if conflicting or (owner is not None and view.owner is not None and owner != view.owner):
        sessions = frozenset()
    label = f"{str(claims.get('label'))[:64]}@{view.name}"
    narrowed = {**labels, **view.labels}
    return Caller(caller_id(view.name), label, scope, b"", sessions, view.owner or owner, narrowed)
