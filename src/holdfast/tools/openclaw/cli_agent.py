"""Runs command-line agents: one run per conversation, with a watchdog for silence. Any host can take the answer.

A client of the supervisor, with no process code of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import HoldfastError
from . import runs
from .runs import NO_OUTPUT_TIMEOUT, OVERALL_TIMEOUT, Withdrawn
from .spawn import SpawnInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...sessions.aio import AsyncSession
    from .runs import ManagedRun, RunExit
    from .supervisor import Supervisor


# How long an agent may be silent. All the numbers are here.


# Once added to the limit while an agent compacts its conversation, which prints nothing.
COMPACTION_GRACE_MS = 300_000

_MARGIN_MS = 1000
_LEAST_MS = 1000
_RATIO_MIN, _RATIO_MAX = 0.05, 0.95


@dataclass(frozen=True)
class Profile:
    name: str
    ratio: float
    min_ms: int
    max_ms: int


FRESH = Profile("fresh", 0.8, 180_000, 600_000)
RESUME = Profile("resume", 0.3, 60_000, 180_000)


@dataclass(frozen=True)
class Configured:
    """A backend's own numbers. They do not change which profile applies. `no_output_ms` of 0 turns the watchdog off."""

    no_output_ms: int | None = None
    ratio: float | None = None
    min_ms: int | None = None
    max_ms: int | None = None


def profile_for(*, resumed: bool, explicit_timeout: bool = False, scheduled: bool = False) -> Profile:
    """A resumed conversation answers soon, unless it has an explicit timeout or is scheduled."""
    return RESUME if resumed and not explicit_timeout and not scheduled else FRESH


def no_output_ms(timeout_ms: int, profile: Profile, configured: Configured | None = None) -> int | None:
    """The watchdog's limit; None for no watchdog. A timeout of 0 means no timeout."""
    own = configured or Configured()
    if own.no_output_ms == 0:
        return None
    if own.no_output_ms is not None:
        wanted = own.no_output_ms
    else:
        ratio = profile.ratio if own.ratio is None else min(max(own.ratio, _RATIO_MIN), _RATIO_MAX)
        least = profile.min_ms if own.min_ms is None else own.min_ms
        most = profile.max_ms if own.max_ms is None else own.max_ms
        wanted = min(max(round(timeout_ms * ratio), least), most) if timeout_ms else most
    return max(min(wanted, timeout_ms - _MARGIN_MS) if timeout_ms else wanted, _LEAST_MS)


# The agent.


DEFAULT_TIMEOUT_MS = 600_000
_TAIL_LINES, _TAIL_CHARS = 20, 4000


@dataclass(frozen=True)
class Backend:
    """`resume` replaces `command` for a conversation that is resumed."""

    id: str
    command: Sequence[str]
    resume: Sequence[str] | None = None
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    watchdogs: Mapping[str, Configured] | None = None

    def no_output_ms(self, timeout_ms: int, profile: Profile) -> int | None:
        return no_output_ms(timeout_ms, profile, (self.watchdogs or {}).get(profile.name))


@dataclass(frozen=True)
class Turn:
    """One message to one conversation. `timeout_ms` is an explicit timeout."""

    conversation: str
    prompt: str
    resumed: bool = False
    scheduled: bool = False
    timeout_ms: int | None = None
    cwd: str | None = None
    env: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Result:
    """`trouble` says what went wrong; None for an answer. `retried`: this is the second, fresh attempt."""

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
        """One scope for fresh and resumed runs of a conversation: only one runs at a time."""
        return f"cli:{self._backend.id}:{os.path.basename(self._backend.command[0])}:{conversation}"

    async def answer(self, turn: Turn) -> Result:
        """Ask, and wait for the answer. A resumed conversation that printed nothing until its silence limit is retried
        once as a fresh one. Other failures may have had effects and are not retried."""
        result = await self._asked(turn, resumed=turn.resumed)
        silent = result.exit.reason == NO_OUTPUT_TIMEOUT and not (result.exit.stdout or result.exit.stderr)
        if turn.resumed and silent:
            again = await self._asked(turn, resumed=False)
            return Result(again.run_id, again.exit, again.trouble, retried=True)
        return result

    async def ask(self, turn: Turn, *, resumed: bool | None = None) -> ManagedRun:
        """Ask; any host can `take` the answer."""
        resumes = turn.resumed if resumed is None else resumed
        limit_ms, profile, silence_ms = self.limits(turn, resumed=resumes)
        words = self._backend.resume if resumes and self._backend.resume else self._backend.command
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
        """The timeout, the profile, and the limit of silence."""
        explicit = turn.timeout_ms is not None
        limit_ms = self._backend.timeout_ms if turn.timeout_ms is None else turn.timeout_ms
        profile = profile_for(resumed=resumed, explicit_timeout=explicit, scheduled=turn.scheduled)
        return limit_ms, profile, self._backend.no_output_ms(limit_ms, profile)

    async def take(self, conversation: str) -> Result | None:
        """Wait for the answer that any host asked for. None: there is none, or it was taken."""
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
        """Allow one longer silence, until the run prints again."""
        usual_s = (await run.session.records())["spec"].get("idle_timeout")
        if usual_s is None:
            return  # there is no watchdog
        await run.session.update(idle_timeout=usual_s + COMPACTION_GRACE_MS / 1000)
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
        """What exactly went wrong."""
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
