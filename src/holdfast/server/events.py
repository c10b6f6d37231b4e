"""The stream of events: sessions as they change, and every signal once, in order.

One watch of the home serves all readers, and runs only while there is one. For sessions the last value wins, so what
waits for a reader is bounded by their number; signals are read from the index, at the reader's own position.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..core import processes
from ..core.clock import epoch, rfc3339
from ..errors import HoldfastError, NotFound, Removed
from ..home import is_id
from ..model import FINAL_STATES
from ..sessions.aio import AsyncSession
from .endpoints import record, redacted
from .responses import LOST, TooManyConnections
from .watching import CONTENTS, NAMES, Watching

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from typing import Any

    from starlette.types import Scope

    from ..model import Snapshot
    from ..nodes.following import Followed
    from ..nodes.rows import FarShot
    from ..nodes.serving import Nodes
    from ..sessions.aio import AsyncHoldfast
    from ..signals.consumers import Listing
    from ..signals.lines import Signal
    from ..signals.waker import Waker
    from .metrics import Metrics
    from .tokens import Caller, Tokens


USUAL_TYPES = ("session", "signal")
TYPES = (*USUAL_TYPES, "node")
_RETRY_MS = 2000
_COMMENT_S = 15.0
# A session is shown at most four times a second.
_PAUSE_S = 0.25
# The event of a session may be this much later than the signal of the same change.
_LATE_S = 10.0
# A reader that is further behind has to list again.
_BEHIND = 1000
# A position after all others: for an id that this server did not issue.
_NOWHERE = 1 << 53
_PAGE = 50
# A burst of changes is handled together.
_GATHER_S = 0.02
# A reader that disconnects most often comes back at once.
_LINGER_S = 5.0
# How often to check the runners of sessions that a reader sees: the kernel does not report stopped processes to us.
_HALTED_S = 2.0
_HOME, _SESSIONS = "/", "/sessions"


def signal_json(signal: Signal) -> dict[str, Any]:
    return {**redacted(signal.record), "id": signal.id, "variant": signal.variant}


@dataclass(frozen=True)
class Wanted:
    """What one reader wants, and may see."""

    types: frozenset[str]
    session: str | None
    owner: str | None
    labels: Mapping[str, str]
    caller: Caller

    def fits(self, id: str | None, owner: str | None, labels: Mapping[str, str]) -> bool:
        return (
            self.session in (None, id)
            and self.owner in (None, owner)
            and all(labels.get(key) == value for key, value in self.labels.items())
            and self.caller.sees(id, owner, labels)
        )


class _Shown(NamedTuple):
    """What readers know about a session."""

    is_over: bool
    # The hash of all its facts.
    hash: int
    owner: str | None
    labels: dict[str, str]
    # The pid of its runner, if that is a process of this machine.
    pid: int | None


class _Reader:
    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.stirred = asyncio.Event()
        self.has_missed = False
        # By node and session: what the reader has not been sent yet.
        self._waiting: dict[tuple[str | None, str], list[tuple[str, dict[str, Any]]]] = {}
        self._nodes: dict[str, dict[str, Any]] = {}

    def hear(self, node: Followed, change: str, shot: FarShot | None) -> None:
        """Handle a change on a node: of a session there, or of whether the node answers."""
        if shot is None:
            self._nodes[node.name] = {"node": node.name, "state": change, "why": node.why, "seen_at": node.seen_at}
            self.stirred.set()
        # A caller that may see only some sessions of this home may see none of a node.
        elif self.wanted.fits(None, shot.owner, shot.labels):
            self.put(change, record(shot))

    def put(self, change: str, shown: dict[str, Any]) -> None:
        """`created`, `ended` and `removed` are each sent; of several updates only the last is."""
        node = shown.get("node")
        if ("session" if node is None else "node") not in self.wanted.types:
            return
        waiting = self._waiting.setdefault((node, shown["id"]), [])
        if waiting and change == "updated" and waiting[-1][0] in ("created", "updated"):
            change = waiting.pop()[0]
        elif waiting and waiting[-1][0] == "updated":
            waiting.pop()
        waiting.append((change, shown))
        if len(self._waiting) > _BEHIND:
            self._waiting.clear()
            self.has_missed = True
        self.stirred.set()

    def take(self) -> list[dict[str, Any]]:
        waiting, self._waiting = self._waiting, {}
        return [{**shown, "change": change} for each in waiting.values() for change, shown in each]

    def take_nodes(self) -> list[dict[str, Any]]:
        nodes, self._nodes = self._nodes, {}
        return list(nodes.values())


class Events:
    def __init__(
        self, hf: AsyncHoldfast, instance: str, metrics: Metrics, tokens: Tokens, leaving: asyncio.Event
    ) -> None:
        self._hf = hf
        self._core = hf._core
        self._instance = instance
        self._metrics = metrics
        self._tokens = tokens
        self._leaving = leaving
        self._readers: set[_Reader] = set()
        self._watch: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        # Set when the watch has seen everything once.
        self._is_watching = asyncio.Event()
        self._known: dict[str, _Shown] = {}
        # Sessions whose runner was stopped by a signal at the last check.
        self._halted: set[str] = set()
        self._changed: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    # One reader.

    def check(self) -> None:
        """Refuse one reader too many, before its answer begins."""
        most = self._hf.config.server_sse_readers
        if len(self._readers) >= most:
            raise TooManyConnections("sse_readers", most)

    async def stream(
        self, wanted: Wanted, last: str | None, scope: Scope, nodes: Nodes | None = None
    ) -> AsyncIterator[bytes]:
        reader = _Reader(wanted)
        self._readers.add(reader)
        connected = self._metrics.clients
        connected["sse", "observe"] += 1
        try:
            await self._begin()
            lost: asyncio.Event = scope["extensions"][LOST]
            following = nodes.following if nodes is not None and "node" in wanted.types else None
            with self._tokens.in_use(wanted.caller), following.heard_by(reader.hear) if following else nullcontext():
                if following is not None:
                    await following.refresh()
                async for text in self._written(reader, last, (self._leaving, wanted.caller.revoked, lost)):
                    yield text.encode()
                    # Its end is noticed only when other tasks have their turn.
                    await asyncio.sleep(0)
                    if lost.is_set():
                        return
            if self._leaving.is_set():
                yield _event("bye", {"retry_ms": _RETRY_MS}).encode()
            elif wanted.caller.revoked.is_set():
                yield _event("bye", {"retry_ms": None, "reason": "revoked"}).encode()
        finally:
            connected["sse", "observe"] -= 1
            self._readers.discard(reader)
            asyncio.get_running_loop().call_later(_LINGER_S, self._close_unless_read)

    async def _written(self, reader: _Reader, last: str | None, ends: tuple[asyncio.Event, ...]) -> AsyncIterator[str]:
        listing = self._core.consumers.listing()
        await listing.look()
        generation, at = self._generation(), await listing.newest()
        facts = {"instance": self._instance, "generation": generation, "pos": at, "features": TYPES}
        yield f"retry: {_RETRY_MS}\n\n" + _event("hello", facts)
        if last is not None:
            known, pos = _parsed(last)
            oldest = await listing.oldest()
            if known != generation or pos > at:
                yield self._reset("new_generation", generation, at)
            elif oldest is not None and pos < oldest - 1:
                yield self._reset("too_old", generation, at)
            else:
                async for text in self._changed_since(reader, generation, pos, await listing.time_of(pos)):
                    yield text
                async for text in self._signals(reader, listing, generation, pos, at):
                    yield text
        while not any(each.is_set() for each in ends):
            if self._generation() != generation:
                await listing.look()
                generation, at = self._generation(), await listing.newest()
                yield self._reset("new_generation", generation, at)
            newest = await listing.newest()
            if reader.has_missed or newest - at > _BEHIND:
                reader.has_missed, at = False, newest
                reader.take()
                yield self._reset("overflow", generation, at)
            for shown in reader.take():
                yield _event("session", shown)
            for facts in reader.take_nodes():
                yield _event("node", facts)
            if newest > at:
                async for text in self._signals(reader, listing, generation, at, newest):
                    yield text
                at = newest
            if not await _happens((reader.stirred, *ends), _COMMENT_S):
                yield ":\n\n"
            reader.stirred.clear()

    async def _signals(
        self, reader: _Reader, listing: Listing, generation: str | None, at: int, upto: int
    ) -> AsyncIterator[str]:
        """The signals after one position and up to another."""
        if "signal" not in reader.wanted.types:
            return
        following: int | None = at
        while following is not None and following < upto:
            found, following = await listing.after(following, _PAGE)
            events = []
            for each in found:
                signal = each.signal
                if each.pos <= upto and reader.wanted.fits(signal.session, signal.owner, self._labels(signal)):
                    self._metrics.delivered(epoch(signal.at))
                    events.append(_event("signal", signal_json(signal), f"{generation}:{each.pos}"))
            if events:
                yield "".join(events)

    async def _changed_since(
        self, reader: _Reader, generation: str | None, pos: int, at: str | None
    ) -> AsyncIterator[str]:
        """One event for each session that may have changed since the signal at this position."""
        if "session" not in reader.wanted.types:
            return
        since_s = max(0.0, (epoch(at or "") or 0.0) - _LATE_S)
        for shot in await self._hf.sessions(all=True):
            if reader.wanted.fits(shot.id, shot.owner, shot.labels) and self._may_be_new(shot, since_s):
                change = "ended" if shot.state in FINAL_STATES else "updated"
                reader.put(change, record(shot))
        removed = self._core.index.removed_since(rfc3339(int(since_s * 1e9)))
        if removed and reader.wanted.caller.is_narrowed:
            # Whether the reader may know of them is recorded nowhere.
            yield self._reset("too_old", generation, pos)
            removed = []
        for id in removed:
            reader.put("removed", {"id": id})
        for shown in reader.take():
            yield _event("session", shown)

    def _may_be_new(self, shot: Snapshot, since_s: float) -> bool:
        """Each change of a finished session replaces a file in its directory."""
        if shot.state not in FINAL_STATES:
            return True
        try:
            return os.stat(self._core.home.session(shot.id)).st_mtime >= since_s
        except FileNotFoundError:
            return False

    def _labels(self, signal: Signal) -> Mapping[str, str]:
        known = self._known.get(signal.session or "")
        return known.labels if known is not None else signal.snapshot.get("labels") or {}

    def _reset(self, reason: str, generation: str | None, at: int) -> str:
        self._metrics.add("sse_resets_total", reason)
        return _event("reset", {"reason": reason}, f"{generation}:{at}")

    def _generation(self) -> str | None:
        return self._core.index.generation()

    # The watch of the home.

    async def _begin(self) -> None:
        if self._watch is None or self._watch.done():
            self._is_watching.clear()
            self._watch = asyncio.ensure_future(self._watch_home())
        waited = asyncio.ensure_future(self._is_watching.wait())
        await asyncio.wait([waited, self._watch], return_when=asyncio.FIRST_COMPLETED)
        waited.cancel()
        if self._watch.done():
            self._watch.result()

    def _close_unless_read(self) -> None:
        if not self._readers:
            self._closing = asyncio.ensure_future(self.close())

    async def close(self) -> None:
        """End the watch of the home."""
        tasks = [task for task in (self._watch, *self._tasks.values()) if task is not None]
        self._watch = None
        self._tasks.clear()
        self._known.clear()
        self._halted.clear()
        self._changed.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch_home(self) -> None:
        core = self._core
        listing = core.consumers.listing()
        with listing.waker() as waker, Watching() as watching:
            watching.watch(core.home.path, _HOME, NAMES)
            watching.watch(core.home.sessions, _SESSIONS, NAMES)
            await self._look_at_all(watching)
            self._is_watching.set()
            halted = asyncio.ensure_future(self._watch_halted())
            try:
                while True:
                    ready = await core.driver.ready([waker.fileno(), watching.fileno()], (), listing.again_s)
                    try:
                        await self._look_again(listing, waker, watching, is_woken=ready != {watching.fileno()})
                    except HoldfastError:
                        pass  # the index is busy: the next change is handled with this one
                    await asyncio.sleep(_GATHER_S)
            finally:
                halted.cancel()

    async def _watch_halted(self) -> None:
        """Notice when a runner is stopped by a signal or continues, for sessions that a reader sees."""
        while True:
            await asyncio.sleep(_HALTED_S)
            self._halted &= self._known.keys()
            for id, known in list(self._known.items()):
                if known.is_over or known.pid is None or not self._is_seen(id, known.owner, known.labels):
                    continue
                process = processes.look(known.pid)
                if (process is not None and process.state == "T") != (id in self._halted):
                    self._halted ^= {id}
                    self._look_at(id)

    def _is_seen(self, id: str, owner: str | None, labels: Mapping[str, str]) -> bool:
        return any("session" in each.wanted.types and each.wanted.fits(id, owner, labels) for each in self._readers)

    async def _look_again(self, listing: Listing, waker: Waker, watching: Watching, *, is_woken: bool) -> None:
        home = self._core.home
        found = watching.read()
        named = waker.clear()
        for directory, entry in found or ():
            if directory == _SESSIONS and is_id(entry):
                watching.watch(home.session(entry), entry, CONTENTS)
                self._look_at(entry)
            elif is_id(directory):
                self._look_at(directory)
        for id in named:
            self._look_at(id)
        if found is None:
            await self._look_at_all(watching)
        # Output alone brings no signal.
        if is_woken or found is None or any(where == _HOME or entry.startswith("signals") for where, entry in found):
            await listing.look()
            for reader in self._readers:
                reader.stirred.set()

    async def _look_at_all(self, watching: Watching) -> None:
        shots = await self._hf.sessions(all=True)
        for shot in shots:
            # When a process that the command left behind ends, the record changes.
            if shot.state not in FINAL_STATES or (shot.exit is not None and shot.exit.survivors):
                watching.watch(self._core.home.session(shot.id), shot.id, CONTENTS)
            if self._is_watching.is_set():
                self._look_at(shot.id)
            else:
                self._note(record(shot), is_over=shot.state in FINAL_STATES)
        for id in self._known.keys() - {shot.id for shot in shots}:
            self._look_at(id)

    def _look_at(self, id: str) -> None:
        """Read a session soon, and at most four times a second."""
        if not is_id(id):
            return
        self._changed.add(id)
        if id not in self._tasks:
            self._tasks[id] = asyncio.ensure_future(self._follow(id))
            self._tasks[id].add_done_callback(lambda _: self._tasks.pop(id, None))

    async def _follow(self, id: str) -> None:
        while id in self._changed:
            self._changed.discard(id)
            try:
                seen = await self._core.observe(id)
                shot = AsyncSession(self._core, seen.snapshot())
            except (NotFound, Removed):
                known = self._known.pop(id, None)
                if known is not None:
                    self._send("removed", {"id": id, "owner": known.owner, "labels": known.labels})
                return
            except HoldfastError:
                return
            shown, is_over = record(shot), shot.state in FINAL_STATES
            before = self._known.get(id)
            if self._note(shown, is_over=is_over):
                change = "created" if before is None else "ended" if is_over and not before.is_over else "updated"
                self._send(change, shown, before)
                if before is None and is_over:
                    self._send("ended", shown)
            await asyncio.sleep(_PAUSE_S)

    def _note(self, shown: dict[str, Any], *, is_over: bool) -> bool:
        """Remember what was shown; returns whether it is new."""
        facts = {key: value for key, value in shown.items() if key != "observed_at"}
        digest = hash(json.dumps(facts, sort_keys=True, default=str))
        pid = shown["runner_pid"] if shown["place"] == "local" else None
        now = _Shown(is_over, digest, shown["owner"], shown["labels"], pid)
        is_new = self._known.get(shown["id"]) != now
        self._known[shown["id"]] = now
        return is_new

    def _send(self, change: str, shown: dict[str, Any], before: _Shown | None = None) -> None:
        """For a reader the session is removed once it no longer fits, and created once it does."""
        for reader in self._readers:
            fits = reader.wanted.fits
            fitted = before is not None and fits(shown["id"], before.owner, before.labels)
            if fits(shown["id"], shown["owner"], shown["labels"]):
                reader.put(change if fitted or before is None else "created", shown)
            elif fitted and before is not None:
                reader.put("removed", {"id": shown["id"], "owner": before.owner, "labels": before.labels})


def _event(name: str, data: dict[str, Any], id: str | None = None) -> str:
    # In ASCII, and so in one line.
    numbered = "" if id is None else f"id: {id}\n"
    return f"event: {name}\n{numbered}data: {json.dumps(data, default=str)}\n\n"


def _parsed(last: str) -> tuple[str, int]:
    generation, _, pos = last.rpartition(":")
    return generation, int(pos) if pos.isascii() and pos.isdigit() and len(pos) <= 16 else _NOWHERE


async def _happens(events: tuple[asyncio.Event, ...], timeout: float) -> bool:
    """Returns whether one of them is set within the time."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for task in tasks:
            task.cancel()
