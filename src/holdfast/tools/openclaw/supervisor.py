"""openclaw's supervisor over sessions: spawn, cancel, scopes, records.

It holds no process: any host can cancel, adopt and wait for a run that another host spawned. Agents and tools use it;
it does not depend on them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from ...core import records
from ...errors import AmbiguousId, HoldfastError, NameTaken, NotFound, Removed, ShuttingDown
from ...model import FINAL_STATES
from ...sessions.claims import Claim
from ..owner_sessions import Running, is_extinct, unless
from . import runs
from .runs import MANUAL_CANCEL, METADATA, SCOPE_LABEL, ManagedRun, Withdrawn, check_reason, moment, scope_label
from .spawn import KILL_GRACE_MAX_MS, KILL_GRACE_MS, Secret

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from ...home import Home
    from ...model import Snapshot
    from ...sessions.aio import AsyncHoldfast, AsyncSession
    from .runs import RunRecord
    from .spawn import SpawnInput


# Names that a model can remember: an adjective and a noun.


_ADJECTIVES = (
    "amber azure bold brave brisk calm clear cool coral crisp dawn deep eager faint fast fleet fresh gentle glad "
    "golden grand hazel hidden humble ivory jolly keen kind lively lucid lunar marine mellow mild misty neat noble "
    "oaken olive patient plain proud quick quiet rapid royal rustic salty sharp silent silver sleek smooth solar "
    "steady still stone sunny swift tender tidal vivid warm wild winter"
)
_NOUNS = (
    "atlas badger basin beacon birch bloom breeze brook canyon cedar cliff cloud comet coral cove crane creek delta "
    "dune eagle ember falcon fern field fjord forest fox galaxy garden glade grove harbor haven hawk heron island "
    "lagoon lark lotus maple meadow mesa nebula nova oasis ocean orchard otter peak pebble pine prairie raven reef "
    "ridge river sable sage shore sparrow spruce summit thicket trail valley willow wren"
)

_PLAIN_TRIES = 12


def new_slug(is_free: Callable[[str], bool]) -> str:
    """A free name, with a number appended where two words do not suffice."""
    for _ in range(_PLAIN_TRIES):
        slug = f"{secrets.choice(_ADJECTIVES.split())}-{secrets.choice(_NOUNS.split())}"
        if is_free(slug):
            return slug
    number = 2
    while not is_free(f"{slug}-{number}"):
        number += 1
    return f"{slug}-{number}"


_FINALIZED = "finalized.json"
_NAME_TRIES = 3
# `list_by_scope` shows this many finished runs.
_RECORDS = 2000
_SHUT_DOWN = "process supervisor is shut down"


@dataclass(frozen=True)
class Finalized:
    """`first` is true for the call that finalized the run; `metadata` is what that call recorded."""

    first: bool
    record: RunRecord
    metadata: dict[str, Any]


class _Startup:
    """A spawn that has no session yet. In a scope, every replacement and every cancel draws a ticket, and overtakes all
    spawns that were asked for before."""

    def __init__(self, home: Home, scope: str, *, replaces: bool) -> None:
        self.scope = scope
        self.replaces = replaces and bool(scope)
        self.cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Whether the cancel gives it no grace.
        self.forced = False
        self.claim = _claim(home, scope)
        self._ticket = self.claim.ticket() if self.replaces else self.claim.tickets()
        self.asked = moment()

    def cancel(self, *, force: bool = False) -> None:
        self.forced = self.forced or force
        if not self.cancelled.done():
            self.cancelled.set_result(None)

    def is_overtaken(self) -> bool:
        return self.cancelled.done() or not self.claim.newest(self._ticket)


class Supervisor:
    """With an owner, only that owner's runs are visible. `by` is recorded as the requester of stops."""

    def __init__(
        self,
        hf: AsyncHoldfast,
        owner: str | None = None,
        *,
        by: str | None = None,
        kill_grace_ms: int = KILL_GRACE_MS,
    ) -> None:
        self._hf = hf
        self._owner = owner
        self._by = by or owner
        self._grace_ms = min(max(kill_grace_ms, 0), KILL_GRACE_MAX_MS)
        self._startups: dict[str, _Startup] = {}
        # Marks the runs that this object spawned.
        self._instance = os.urandom(8).hex()
        # A wait and a cancel in the same host share a handle.
        self._handles: WeakValueDictionary[str, ManagedRun] = WeakValueDictionary()
        self._shut_down = False

    def __repr__(self) -> str:
        return f"<Supervisor of {self._owner or 'everybody'}>"

    async def spawn(self, input: SpawnInput, *, wait_s: float | None = 0.0) -> ManagedRun:
        """Start a run; with `replace_existing_scope` after everything earlier in its scope has ended. A caller that
        waits for the end gives `wait_s` (None: no limit) and then calls `first_wait`."""
        if self._shut_down:
            raise HoldfastError.from_wire({"code": ShuttingDown.code, "message": _SHUT_DOWN, "fix": "open another"})
        input.check()
        for attempt in range(_NAME_TRIES):
            run_id = input.run_id or new_slug(self._is_free)
            startup = _Startup(self._hf.home, input.scope, replaces=input.replace_existing_scope)
            self._startups[run_id] = startup
            try:
                return await self._start(input, run_id, startup, wait_s)
            except NameTaken:
                # Another host just took the same two words.
                if input.run_id is not None or attempt + 1 == _NAME_TRIES:
                    raise
            finally:
                self._startups.pop(run_id, None)
        raise AssertionError

    async def cancel(self, run_id: str, reason: str = MANUAL_CANCEL, *, force: bool = False) -> bool:
        """Stop a run of any host, or withdraw a spawn of this one. False if there is nothing to stop. `force` kills
        without grace."""
        check_reason(reason)
        startup = self._startups.get(run_id)
        if startup is not None:
            startup.cancel(force=force)
        session = await self._find(run_id)
        if session is None or is_extinct(session):
            return startup is not None
        await self._managed(session).cancel(reason, force=force)
        return True

    async def cancel_scope(self, scope_key: str, reason: str = MANUAL_CANCEL) -> int:
        """Stop everything that is starting or running in the scope now; return the number of runs."""
        check_reason(reason)
        if not scope_key.strip():
            return 0
        _claim(self._hf.home, scope_key).ticket()
        now = moment()
        starting = [run_id for run_id, each in self._startups.items() if each.scope == scope_key]
        for run_id in starting:
            self._startups[run_id].cancel()
        found = [each for each in await self._members(scope_key) if _asked(each) < now]
        await _all([self._managed(each).cancel(reason) for each in found])
        return len({*starting, *map(runs.run_id, found)})

    async def get_record(self, run_id: str) -> RunRecord | None:
        session = await self._find(run_id)
        if session is None:
            return None
        found = runs.record(session)
        startup, handle = self._startups.get(run_id), self._handles.get(run_id)
        asked = (startup is not None and startup.cancelled.done()) or (handle is not None and handle.is_cancelled)
        if asked and found.state != "exited":
            # The runner may not have received the request yet.
            return replace(found, state="exiting", termination_reason=found.termination_reason or MANUAL_CANCEL)
        return found

    async def list_by_scope(self, scope_key: str) -> list[RunRecord]:
        """Newest last; of finished runs the newest 2000."""
        if not scope_key.strip():
            return []
        found = await self._members(scope_key, all=True)
        over = [each for each in found if is_extinct(each)][-_RECORDS:]
        shown = {each.id for each in over}
        return [runs.record(each) for each in found if each.id in shown or not is_extinct(each)]

    async def adopt(self, run_id: str) -> ManagedRun | None:
        """The handle of a run that any host spawned."""
        session = await self._find(run_id)
        return None if session is None else self._managed(session)

    async def finalize(self, run_id: str, **metadata: Any) -> Finalized | None:
        """Record once, for all hosts, what became of a run's result. None: no such run, or it has not ended."""
        session = await self._find(run_id)
        if session is None or session.state not in FINAL_STATES:
            return None
        said, first = _say_once(self._hf.home.session(session.id), metadata)
        return Finalized(first, runs.record(session), said)

    async def reconcile_orphans(self) -> dict[str, list[str]]:
        """What became of the runs while no host was there. Kills nothing."""
        found = await self._hf.recover()

        def mine(sessions: list[Any]) -> list[str]:
            return [runs.run_id(each) for each in sessions if METADATA in each.metadata and self._is_mine(each)]

        return {
            "reattached": mine([*found.live, *found.unreachable]),
            "ended_while_away": mine(found.exited),
            "stale": mine(found.stale),
            "lost": mine(found.lost),
        }

    async def shutdown(self, stop: bool = False) -> None:
        """Refuse further spawns. Runs continue, including those that are starting, unless their lifetime is `owner`;
        with `stop` all runs of this object are stopped."""
        self._shut_down = True
        if stop:
            for startup in self._startups.values():
                startup.cancel()
        living = await self._hf.sessions(owner=self._owner)
        mine = [each for each in living if runs.facts(each).get("instance") == self._instance]
        over = [each for each in mine if stop or (await runs.limits(each)).get("lifetime") == "owner"]
        await _all([self._managed(each).cancel() for each in over])
        for run in list(self._handles.values()):
            run.detach()

    # Spawning.

    async def _start(self, input: SpawnInput, run_id: str, startup: _Startup, wait_s: float | None) -> ManagedRun:
        with contextlib.ExitStack() as held:
            if startup.replaces:
                await unless(startup.cancelled, self._replace(startup, held))
            if startup.is_overtaken():
                return Withdrawn(run_id)
            run = await self._launch(input, run_id, startup.asked, wait_s)
        if not run.reused and startup.is_overtaken():
            # A cancel during the start may have found no session to stop.
            await run.cancel(force=startup.forced)
        return run

    async def _replace(self, startup: _Startup, held: contextlib.ExitStack) -> None:
        """Take the scope's lock. Then stop, without a notice, everything in the scope that was asked for before; a run
        that cannot be stopped blocks nothing. A cancel of this spawn ends the waiting, not the stops."""
        held.enter_context(await startup.claim.acquire(self._hf._core.driver, None))
        if startup.is_overtaken():
            return
        earlier = [each for each in await self._members(startup.scope) if _asked(each) < startup.asked]
        await _all([each.update(notify="never") for each in earlier if not is_extinct(each)])
        await _all([self._managed(each).cancel() for each in earlier])

    async def _launch(self, input: SpawnInput, run_id: str, asked: int, wait_s: float | None) -> ManagedRun:
        options = input.options(run_id, self._owner, self._grace_ms, {"asked": asked, "instance": self._instance})
        with Secret(input.secret_input) as passed:
            options["pass_fds"] = passed
            if wait_s == 0:
                session = await self._hf.start(input.command, **options)
                run = ManagedRun(session, input, by=self._by)
                run.reused = run.run_id != run_id
            else:
                start = Running(self._hf, input.command, wait=wait_s, **options)
                run = await ManagedRun.begun(start, input, run_id, by=self._by)
        self._handles[run.run_id] = run
        return run

    # Finding.

    def _is_free(self, name: str) -> bool:
        """Whether no kept session has the name, and no spawn here is about to take it."""
        if name in self._startups:
            return False
        holder = Claim(self._hf.home, "name", name).peek()
        return holder is None or not os.path.lexists(self._hf.home.session(holder))

    async def _find(self, run_id: str) -> AsyncSession | None:
        """By name or full id only: a pid or a prefix may mean another run tomorrow."""
        try:
            session = await self._hf.get(run_id, owner=self._owner)
        except (NotFound, AmbiguousId, Removed):
            return None
        return session if METADATA in session.metadata and run_id in (session.id, session.name) else None

    async def _members(self, scope_key: str, *, all: bool = False) -> list[AsyncSession]:
        labels = {SCOPE_LABEL: scope_label(scope_key)}
        return await self._hf.sessions(all=all, owner=self._owner, labels=labels)

    def _managed(self, session: AsyncSession) -> ManagedRun:
        known = self._handles.get(runs.run_id(session))
        if known is not None and known.session.id == session.id:
            return known
        made = self._handles[runs.run_id(session)] = ManagedRun(session, by=self._by)
        return made

    def _is_mine(self, shot: Snapshot) -> bool:
        return self._owner is None or shot.owner == self._owner


def _claim(home: Home, scope: str) -> Claim:
    """Its lock admits one replacement at a time; its tickets order replacements and cancels of all hosts."""
    return Claim(home, "key", f"openclaw.scope:{scope}")


def _say_once(directory: str, metadata: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """What the first call recorded, and whether that was this one."""
    mark = os.urandom(8).hex()
    path = os.path.join(directory, _FINALIZED)
    records.write_once(None, path, {"mark": mark, "metadata": metadata})
    said = records.read(path)
    return said["metadata"], said["mark"] == mark


def _asked(shot: Snapshot) -> int:
    """When the run was asked for."""
    asked = runs.facts(shot).get("asked")
    return asked if isinstance(asked, int) else 0


async def _all(work: list[Coroutine[Any, Any, Any]]) -> None:
    """Concurrently; a run that fails does not affect the others."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, HoldfastError):
            raise outcome
