"""The supervisor as openclaw knows it, over sessions: spawn, cancel, scopes, records.

It holds no process: any host may cancel, adopt and wait for what another one has spawned. Agents and tools use it; it
knows nothing of them.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from ...errors import AmbiguousId, HoldfastError, NameTaken, NotFound, Removed, ShuttingDown, StdinClosed
from ...host.claims import Claim
from ...model import FINAL_STATES
from ...runner import records
from . import runs, slugs
from .managed import ManagedRun, Stdin, check_reason
from .runs import MANUAL_CANCEL, METADATA, SCOPE_LABEL, RunExit
from .scopes import Scope, label, moment
from .spawning import KILL_GRACE_MAX_MS, KILL_GRACE_MS, Secret

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from ...host.aio import AsyncHoldfast, AsyncSession
    from ...model import Snapshot
    from .runs import RunRecord
    from .spawning import SpawnInput

_FINALIZED = "finalized.json"
_NAME_TRIES = 3
# Of those that ended, so many are shown.
_RECORDS = 2000
_SHUT_DOWN = "process supervisor is shut down"


class _NoStdin(Stdin):
    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    async def write(self, data: str | bytes) -> int:
        raise StdinClosed(self._run_id, "it was withdrawn before it began")

    async def end(self) -> None:
        """Nobody reads it."""


class Withdrawn(ManagedRun):
    """A spawn that a newer replacement or a cancel overtook: it has no session, and never had a process."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.pid = None
        self.started_at_ms = None
        self.stdin = _NoStdin(run_id)
        self.reused = False
        self._exit = RunExit(MANUAL_CANCEL)
        self._foreground = None
        self._stopping = None
        self._forced = False
        self._telling = None

    async def begin_cancel(self) -> None:
        """It has ended already."""

    async def captured(self) -> tuple[str, str]:
        return "", ""

    async def wait_for_extinction(self) -> None:
        """Nothing of it ever lived."""


@dataclass(frozen=True)
class Finalized:
    """`first` is true for whoever finalized it; `metadata` is what that one said."""

    first: bool
    record: RunRecord
    metadata: dict[str, Any]


class _Startup:
    """A spawn that has no session yet."""

    def __init__(self, scope: str) -> None:
        self.scope = scope
        self.cancelled = asyncio.Event()
        # By somebody who gives it no time to leave.
        self.forced = False
        # From here on there may be a session: it is ended, not withdrawn.
        self.launching = False


class Supervisor:
    """With an owner, only that owner's runs exist. `by` is who asks, as a record will say."""

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
        # By this its own runs are known.
        self._instance = os.urandom(8).hex()
        # Who waits and who cancels in the same host share a handle.
        self._handles: WeakValueDictionary[str, ManagedRun] = WeakValueDictionary()
        self._shut_down = False

    def __repr__(self) -> str:
        return f"<Supervisor of {self._owner or 'everybody'}>"

    async def spawn(self, input: SpawnInput, *, wait_s: float | None = 0.0) -> ManagedRun:
        """Start it; with `replace_existing_scope` after everything earlier in its scope has ended. Whoever will wait
        for its end says how long (None: until it comes) and goes on with `first_wait`."""
        if self._shut_down:
            raise HoldfastError.from_wire({"code": ShuttingDown.code, "message": _SHUT_DOWN, "fix": "open another"})
        input.check()
        for attempt in range(_NAME_TRIES):
            run_id = input.run_id or slugs.new_slug(self._is_free)
            startup = self._startups[run_id] = _Startup(input.scope)
            try:
                run = await self._in_scope(input, run_id, startup, wait_s)
            except NameTaken:
                # Another host was quicker with the same two words.
                if input.run_id is not None or attempt + 1 == _NAME_TRIES:
                    raise
                continue
            finally:
                self._startups.pop(run_id, None)
            return run
        raise AssertionError

    async def cancel(self, run_id: str, reason: str = MANUAL_CANCEL, *, force: bool = False) -> bool:
        """End a run of any host, or withdraw a spawn of this one. False where there is nothing to end. With `force` it
        is given no time to leave."""
        check_reason(reason)
        startup = self._startups.get(run_id)
        if startup is not None:
            startup.forced = startup.forced or force
            startup.cancelled.set()
        session = await self._find(run_id)
        if session is None or _is_over(session):
            return startup is not None
        await self._managed(session).cancel(reason, force=force)
        return True

    async def cancel_scope(self, scope_key: str, reason: str = MANUAL_CANCEL) -> int:
        """End what is starting or running there at this moment; how many that were."""
        check_reason(reason)
        if not scope_key.strip():
            return 0
        scope = Scope(self._hf.home, scope_key)
        starting = [run_id for run_id, each in self._startups.items() if each.scope == scope_key]
        now = scope.cancel()
        for run_id in starting:
            self._startups[run_id].cancelled.set()
        await scope.startups_done()
        found = [each for each in await self._members(scope_key) if _asked(each) < now]
        await _all([self._managed(each).cancel(reason) for each in found])
        return len({*starting, *map(runs.run_id, found)})

    async def get_record(self, run_id: str) -> RunRecord | None:
        session = await self._find(run_id)
        if session is None:
            return None
        found = runs.record(session)
        startup, handle = self._startups.get(run_id), self._handles.get(run_id)
        asked = (startup is not None and startup.cancelled.is_set()) or (handle is not None and handle.is_cancelled)
        if asked and found.state != "exited":
            # Its runner may not have heard of it yet.
            return replace(found, state="exiting", termination_reason=found.termination_reason or MANUAL_CANCEL)
        return found

    async def list_by_scope(self, scope_key: str) -> list[RunRecord]:
        """Newest last; of those that ended the newest 2000."""
        if not scope_key.strip():
            return []
        found = await self._members(scope_key, all=True)
        over = [each for each in found if _is_over(each)][-_RECORDS:]
        shown = {each.id for each in over}
        return [runs.record(each) for each in found if each.id in shown or not _is_over(each)]

    async def adopt(self, run_id: str) -> ManagedRun | None:
        """A run that this or another host spawned, to wait for."""
        session = await self._find(run_id)
        return None if session is None else self._managed(session)

    async def finalize(self, run_id: str, **metadata: Any) -> Finalized | None:
        """Say once, for all hosts, what became of a run's result. None: there is no such run, or it has not ended."""
        session = await self._find(run_id)
        if session is None or session.state not in FINAL_STATES:
            return None
        said, first = _say_once(self._hf.home.session(session.id), metadata)
        return Finalized(first, runs.record(session), said)

    async def reconcile_orphans(self) -> dict[str, list[str]]:
        """What became of the runs while nobody looked. Kills nothing."""
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
        """No more spawns. Runs live on, also those that are just starting, unless their lifetime is that of their
        owner; with `stop` all of this object are ended."""
        self._shut_down = True
        if stop:
            for startup in self._startups.values():
                startup.cancelled.set()
        living = await self._hf.sessions(owner=self._owner)
        mine = [each for each in living if runs.facts(each).get("instance") == self._instance]
        over = [each for each in mine if stop or (await runs.limits(each)).get("lifetime") == "owner"]
        await _all([self._managed(each).cancel() for each in over])
        for run in list(self._handles.values()):
            run.detach()

    # Spawning.

    async def _in_scope(self, input: SpawnInput, run_id: str, startup: _Startup, wait_s: float | None) -> ManagedRun:
        if not input.scope:
            return await self._wanted(await self._launch(input, run_id, moment(), wait_s), None, startup, 0)
        scope = Scope(self._hf.home, input.scope)
        if input.replace_existing_scope:
            return await self._unless_cancelled(self._replace(scope, input, run_id, startup, wait_s), run_id, startup)
        asked = moment()
        async with scope.startup():
            if startup.cancelled.is_set() or scope.cancelled_since(asked):
                return Withdrawn(run_id)
            run = await self._launch(input, run_id, asked, wait_s)
        return await self._wanted(run, scope, startup, asked)

    async def _replace(
        self, scope: Scope, input: SpawnInput, run_id: str, startup: _Startup, wait_s: float | None
    ) -> ManagedRun:
        ticket = scope.ticket()
        asked = moment()

        def is_overtaken() -> bool:
            return startup.cancelled.is_set() or scope.cancelled_since(asked) or not scope.is_newest(ticket)

        async with scope.fence():
            if is_overtaken():
                return Withdrawn(run_id)
            await scope.startups_done()
            await self._end_earlier(scope.key, asked)
            if is_overtaken():
                return Withdrawn(run_id)
            startup.launching = True
            run = await self._launch(input, run_id, asked, wait_s)
        return await self._wanted(run, scope, startup, asked)

    async def _unless_cancelled(
        self, work: Coroutine[Any, Any, ManagedRun], run_id: str, startup: _Startup
    ) -> ManagedRun:
        """A cancel need not wait until it is our turn."""
        cancelled = asyncio.ensure_future(startup.cancelled.wait())
        replacing = asyncio.ensure_future(work)
        try:
            await asyncio.wait({replacing, cancelled}, return_when=asyncio.FIRST_COMPLETED)
            if replacing.done() or startup.launching:
                return await replacing
            return Withdrawn(run_id)
        finally:
            cancelled.cancel()
            replacing.cancel()
            await asyncio.gather(cancelled, replacing, return_exceptions=True)

    async def _wanted(self, run: ManagedRun, scope: Scope | None, startup: _Startup, asked: int) -> ManagedRun:
        """A cancel that came while it started may have seen no session to end."""
        if run.reused:
            return run  # not ours to end; a cancel of its scope finds it
        if startup.cancelled.is_set() or (scope is not None and scope.cancelled_since(asked)):
            await run.cancel(force=startup.forced)
        return run

    async def _end_earlier(self, scope_key: str, asked: int) -> None:
        """What was asked for before; one that cannot be ended blocks nobody. None of them is told of."""
        earlier = [each for each in await self._members(scope_key) if _asked(each) < asked]
        await _all([each.update(notify="never") for each in earlier if not _is_over(each)])
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
                run = await ManagedRun.begun(self._hf, input, options, wait_s, by=self._by)
        self._handles[run.run_id] = run
        return run

    # Finding.

    def _is_free(self, name: str) -> bool:
        """Nobody bears it, not even one whose output is still kept, for so long its claim stands; and nobody is just
        being given it here."""
        if name in self._startups:
            return False
        holder = Claim(self._hf.home, "name", name).peek()
        return holder is None or not os.path.lexists(self._hf.home.session(holder))

    async def _find(self, run_id: str) -> AsyncSession | None:
        """By what it is called alone: a pid, or the beginning of an id, may be another's tomorrow."""
        try:
            session = await self._hf.get(run_id, owner=self._owner)
        except (NotFound, AmbiguousId, Removed):
            return None
        return session if METADATA in session.metadata and run_id in (session.id, session.name) else None

    async def _members(self, scope_key: str, *, all: bool = False) -> list[AsyncSession]:
        labels = {SCOPE_LABEL: label(scope_key)}
        return await self._hf.sessions(all=all, owner=self._owner, labels=labels)

    def _managed(self, session: AsyncSession) -> ManagedRun:
        known = self._handles.get(runs.run_id(session))
        if known is not None and known.session.id == session.id:
            return known
        made = self._handles[runs.run_id(session)] = ManagedRun(session, by=self._by)
        return made

    def _is_mine(self, shot: Snapshot) -> bool:
        return self._owner is None or shot.owner == self._owner


def _say_once(directory: str, metadata: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """What the first who finalized it said, and whether that is us."""
    mark = os.urandom(8).hex()
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        records.write_once(fd, _FINALIZED, {"mark": mark, "metadata": metadata})
    finally:
        os.close(fd)
    said = records.read(os.path.join(directory, _FINALIZED))
    return said["metadata"], said["mark"] == mark


def _is_over(shot: Snapshot) -> bool:
    return shot.state in FINAL_STATES and not (shot.exit and shot.exit.survivors)


def _asked(shot: Snapshot) -> int:
    """When it was asked for; of another boot, before everything."""
    asked = runs.facts(shot).get("asked")
    return asked if isinstance(asked, int) else 0


async def _all(work: list[Coroutine[Any, Any, Any]]) -> None:
    """At once, and what fails for one is its own affair."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, HoldfastError):
            raise outcome
