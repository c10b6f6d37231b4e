"""Command lines that are agents themselves: one run per conversation, watched for silence, found again by any host.

A client of the supervisor, with no process code of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import HoldfastError
from . import runs, watchdogs
from .runs import NO_OUTPUT_TIMEOUT, OVERALL_TIMEOUT
from .spawning import SpawnInput
from .supervisor import Withdrawn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...host.aio import AsyncSession
    from .managed import ManagedRun
    from .runs import RunExit
    from .supervisor import Supervisor
    from .watchdogs import Configured, Profile

DEFAULT_TIMEOUT_MS = 600_000
_TAIL_LINES, _TAIL_CHARS = 20, 4000


@dataclass(frozen=True)
class Backend:
    """`resume` are the words in the place of `command` for a conversation that goes on."""

    id: str
    command: Sequence[str]
    resume: Sequence[str] | None = None
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    watchdogs: Mapping[str, Configured] | None = None

    def no_output_ms(self, timeout_ms: int, profile: Profile) -> int | None:
        return watchdogs.no_output_ms(timeout_ms, profile, (self.watchdogs or {}).get(profile.name))


@dataclass(frozen=True)
class Turn:
    """One message to one conversation. A timeout that somebody gave is `timeout_ms`."""

    conversation: str
    prompt: str
    resumed: bool = False
    scheduled: bool = False
    timeout_ms: int | None = None
    cwd: str | None = None
    env: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Result:
    """`trouble` says in full what went wrong; None is an answer. `retried`: the second attempt, begun afresh."""

    run_id: str
    exit: RunExit
    trouble: str | None
    retried: bool = False

    @property
    def text(self) -> str:
        return self.exit.stdout


class CliAgent:
    def __init__(self, supervisor: Supervisor, backend: Backend) -> None:
        self._supervisor = supervisor
        self._backend = backend
        self._compacting: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<CliAgent {self._backend.id}>"

    def scope(self, conversation: str) -> str:
        """Fresh and resumed runs of a conversation are never two at once."""
        return f"cli:{self._backend.id}:{os.path.basename(self._backend.command[0])}:{conversation}"

    async def answer(self, turn: Turn) -> Result:
        """Ask, and wait for the answer. Silence from a resumed conversation that said nothing is tried once more, as a
        fresh one; whatever else went wrong may have had effects, and is not."""
        result = await self._asked(turn, resumed=turn.resumed)
        silent = result.exit.reason == NO_OUTPUT_TIMEOUT and not (result.exit.stdout or result.exit.stderr)
        if turn.resumed and silent:
            again = await self._asked(turn, resumed=False)
            return Result(again.run_id, again.exit, again.trouble, retried=True)
        return result

    async def ask(self, turn: Turn, *, resumed: bool | None = None) -> ManagedRun:
        """Ask, and let any host take the answer."""
        goes_on = turn.resumed if resumed is None else resumed
        limit_ms, profile, silence_ms = self.limits(turn, resumed=goes_on)
        words = self._backend.resume if goes_on and self._backend.resume else self._backend.command
        spawn = SpawnInput(
            argv=list(words),
            input=turn.prompt,
            session_id=turn.conversation,
            backend_id=self._backend.id,
            scope_key=self.scope(turn.conversation),
            replace_existing_scope=True,
            cwd=turn.cwd,
            env=turn.env,
            timeout_ms=limit_ms,
            no_output_timeout_ms=silence_ms,
            metadata={"profile": profile.name},
        )
        return await self._supervisor.spawn(spawn)

    def limits(self, turn: Turn, *, resumed: bool) -> tuple[int, Profile, int | None]:
        """How long it may take, by which profile, and how long it may be silent."""
        explicit = turn.timeout_ms is not None
        limit_ms = self._backend.timeout_ms if turn.timeout_ms is None else turn.timeout_ms
        profile = watchdogs.profile_for(resumed=resumed, explicit_timeout=explicit, scheduled=turn.scheduled)
        return limit_ms, profile, self._backend.no_output_ms(limit_ms, profile)

    async def take(self, conversation: str) -> Result | None:
        """The answer of a run that another host asked for; it is waited for where it is not there yet. None: there is
        none, or somebody took it."""
        found = await self._supervisor.list_by_scope(self.scope(conversation))
        if not found:
            return None
        run = await self._supervisor.adopt(found[-1].run_id)
        if run is None:
            return None
        exit = await run.wait()
        taken = await self._supervisor.finalize(run.run_id, conversation=conversation)
        return Result(run.run_id, exit, await self._trouble(run, exit)) if taken is not None and taken.first else None

    async def compacts(self, run: ManagedRun) -> None:
        """It is silent with good reason for a while: one renewal, until it prints again."""
        usual_s = (await run.session.records())["spec"].get("idle_timeout")
        if usual_s is None:
            return  # it may be silent as long as it likes
        await run.session.update(idle_timeout=usual_s + watchdogs.COMPACTION_GRACE_MS / 1000)
        ending = asyncio.ensure_future(self._compacted(run.session, run.session.cursor, usual_s))
        self._compacting.add(ending)
        ending.add_done_callback(self._compacting.discard)

    async def _compacted(self, session: AsyncSession, since: str, usual_s: float) -> None:
        with contextlib.suppress(HoldfastError):
            await session.wait(output=True, since=since)
            await session.update(idle_timeout=usual_s)

    async def _asked(self, turn: Turn, *, resumed: bool) -> Result:
        run = await self.ask(turn, resumed=resumed)
        exit = await run.wait()
        if not isinstance(run, Withdrawn):
            await self._supervisor.finalize(run.run_id, conversation=turn.conversation)
        return Result(run.run_id, exit, await self._trouble(run, exit))

    async def _trouble(self, run: ManagedRun, exit: RunExit) -> str | None:
        """What it is, and not merely that something failed."""
        if isinstance(run, Withdrawn):
            return "a newer message of the same conversation, or a cancel, came first"
        if exit.reason == "exit" and exit.exit_code == 0:
            return None
        spec = await runs.limits(run.session)
        profile = runs.facts(run.session).get("profile")
        said = {
            OVERALL_TIMEOUT: f"overall timeout of {spec.get('timeout')} s (profile {profile})",
            NO_OUTPUT_TIMEOUT: f"no output for {spec.get('idle_timeout')} s (profile {profile})",
        }.get(exit.reason, f"{exit.reason}, code {exit.exit_code}, signal {exit.exit_signal}")
        last = "\n".join((exit.stderr + exit.stdout).splitlines()[-_TAIL_LINES:])[-_TAIL_CHARS:]
        return f"{self._backend.id}: {said}" + (f"; its last output:\n{last}" if last else "; it printed nothing")
