"""Waiting for something to happen to a session, and following what it prints. On events, never by polling.

The runner says *that* there is something new; what it is, is read from the files.
"""

from __future__ import annotations

import os
import time

from ..errors import BadArgument, RunnerGone, SessionEnded, Unreachable, Unsupported
from ..model import EXITED, LOST, STALE, Woke, format_cursor
from ..runner.records import lock_is_free
from .connection import LATE_S
from .driver import first_death
from .observe import from_files, read_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

    from .connection import Connection
    from .core import Core
    from .log import Page
    from .observe import Observed
    from .search import Matcher

# A port that was asked for is knocked at, first often, then seldom.
_KNOCK_FIRST_S = 0.05
_KNOCK_LAST_S = 1.0
# A runner that dies closes its endpoint a moment before it is seen to be dead.
_AGAIN_S = 0.02
# Where the kernel cannot tell us of a death.
_LOOK_S = 1.0
# A link to another place that breaks may come back within this: who waits does not notice.
_LINK_BACK_S = 60.0


class Wait:
    """One wait: which conditions end it, and how far it has looked."""

    def __init__(
        self,
        core: Core,
        id: str,
        *,
        match: str | None = None,
        output: bool = False,
        idle: float | None = None,
        port: int | None = None,
        ready: bool = False,
        extinct: bool = False,
        since: str | int | None = None,
        stream: str | None = None,
        timeout: float | None = None,
    ) -> None:
        if port is not None and not 1 <= port <= 65535:
            raise BadArgument("port", f"{port} is not a port", "give a number from 1 to 65535")
        if port is not None and read_files(core.home, id).away:
            raise Unsupported("waiting for a port of another place (start it with ready='port:N', and wait for that)")
        self._core = core
        self._id = id
        self._log = core.log(id)
        self._matcher: Matcher | None = None
        if match is not None:
            from .search import Matcher

            self._matcher = Matcher(match, log=self._log)
        self._output = output
        self._idle = idle
        self._port = port
        self._ready = ready
        # Not the end of the command, but of all its processes, as far as its runner is there to tell.
        self._extinct = extinct
        # The one whose output counts.
        self._stream = stream
        if ready and not read_files(core.home, id).spec.get("ready"):
            why = f"session {id} was started without saying when it is ready"
            raise BadArgument("ready", why, "start it with ready=, or wait for a match or a port")
        self._knock_s = _KNOCK_FIRST_S
        self._deadline = None if timeout is None else time.monotonic() + timeout
        # A match may already stand in the log; new output can only be what comes after this moment.
        start_over = since is None and self._matcher is not None
        self._cursor: str = "0" if start_over else str(since) if since is not None else self._log.cursor()
        self._quiet_since = time.monotonic()
        # What the runner said last.
        self._status: dict[str, Any] = {}
        # When the runner was to say at the latest that there is nothing new.
        self._asleep_until: float | None = None
        # Known once it was looked at: only who began while a runner was there has news of its death.
        self._began_stale: bool | None = None

    async def run(self) -> Woke:
        connection: Connection | None = None
        patience = _Patience(self._core, self._id)
        try:
            while True:
                woke = await self._look()
                if woke is not None:
                    return woke
                if connection is None:
                    try:
                        _, connection = await self._core.connect(self._id, _late(self._bound()))
                        patience.renew()
                    except SessionEnded:
                        if self._extinct:
                            await self._core.driver.ready((), (), _AGAIN_S)  # its runner is just leaving
                        continue
                    except Unreachable as problem:
                        await patience.bear(problem, self._bound())
                        continue
                    except RunnerGone:
                        woke = await self._outlive_runner()
                        if woke is not None:
                            return woke
                        continue
                try:
                    woke = self._heard(await self._sleep(connection))
                    if woke is not None:
                        return woke
                except RunnerGone:
                    connection.close()
                    connection = None
                except Unreachable:
                    if self._asleep_until is None or time.monotonic() < self._asleep_until:
                        raise
                    # It is time to look, whatever the runner does.
                    connection.close()
                    connection = None
        finally:
            if connection is not None:
                connection.close()

    async def _look(self) -> Woke | None:
        """Does a condition hold now? Output before exit, so that what was printed last is seen."""
        seen = from_files(read_files(self._core.home, self._id))
        if self._began_stale is None:
            self._began_stale = seen.state == STALE
        before = self._cursor
        matched = self._match()
        if matched is not None:
            return matched
        if self._matcher is None and self._log.parse(before, stream=self._stream) != self._ends():
            self._cursor = self._log.cursor()
        now = time.monotonic()
        if self._cursor != before:
            self._quiet_since = now
            if self._output:
                return Woke("output", cursor=before)  # so that reading from there gives what is new
        if seen.state in (EXITED, LOST) and not (self._extinct and _is_watched(seen)):
            return self._woke("exit" if seen.state == EXITED else "lost")
        if self._port is not None and _listens(self._port):
            return self._woke("port")
        if self._idle is not None and now - self._quiet_since >= self._idle:
            return self._woke("idle")
        if self._deadline is not None and now >= self._deadline:
            return self._woke("timeout")
        return None

    def _ends(self) -> dict[str, int]:
        ends = self._log.ends()
        return ends if self._stream is None else {self._stream: ends.get(self._stream, 0)}

    def _match(self) -> Woke | None:
        matcher = self._matcher
        more = matcher is not None
        while matcher is not None and more:
            page = self._log.read(self._cursor)
            at = self._log.parse(self._cursor)
            self._cursor, more = page.cursor, page.more
            for stream, offset, data in page.chunks:
                match = matcher.feed(stream, offset, data)
                if match is not None:
                    # Right behind the match: what was read along with it is still to come for the caller.
                    at[stream] = max(at.get(stream, 0), match.end)
                    return Woke("match", cursor=format_cursor(at), match=match.text)
                at[stream] = offset + len(data)
        return None

    def _woke(self, reason: str) -> Woke:
        return Woke(reason, cursor=self._cursor)

    def _heard(self, reply: dict[str, Any]) -> Woke | None:
        """What the runner alone knows."""
        self._status = reply.get("status") or {}
        if reply["reason"] != "ready":
            return None
        return self._woke("ready" if reply.get("ok") else "not_ready")

    async def _sleep(self, connection: Connection) -> dict[str, Any]:
        """Until the runner has something new, or it is time to look anyway."""
        fields: dict[str, object] = {"extinct" if self._extinct else "exit": True}
        if self._ready:
            fields["ready"] = True
        if self._matcher is not None or self._output or self._idle is not None:
            fields["output_after"] = behind_gap(self._log.parse(self._cursor, stream=self._stream), self._status)
        bound = self._bound()
        self._asleep_until = None if bound is None else time.monotonic() + bound
        return await told(self._core, connection, bound, **fields)

    def _bound(self) -> float | None:
        now = time.monotonic()
        bounds = []
        if self._deadline is not None:
            bounds.append(self._deadline - now)
        if self._idle is not None:
            bounds.append(self._quiet_since + self._idle - now)
        if self._port is not None:
            bounds.append(self._knock_s)
            self._knock_s = min(self._knock_s * 2, _KNOCK_LAST_S)
        return max(0.0, min(bounds)) if bounds else None

    async def _outlive_runner(self) -> Woke | None:
        """No runner will tell us: watch the processes themselves to their end. Whoever waits for output is told first
        that none comes any more."""
        seen = from_files(read_files(self._core.home, self._id))
        if seen.state != STALE:
            return None
        if self._output and not self._began_stale:
            return await self._look() or self._woke("stale")
        await first_death(self._core.driver, seen.orphans[:1], self._bound(), look_s=_LOOK_S)
        return None


def _is_watched(seen: Observed) -> bool:
    """Has the command ended, and left processes with a runner that keeps what they print?"""
    return not seen.final and not lock_is_free(os.path.join(seen.files.directory, "spec.json"))


def _late(bound: float | None) -> float | None:
    return None if bound is None else bound + LATE_S


class _Patience:
    """With a runner that is not to be reached: it may be dying, and then the next look tells how it stands; or the link
    to it is down."""

    def __init__(self, core: Core, id: str) -> None:
        away = read_files(core.home, id).away
        self._longest_s = _LINK_BACK_S if away else core.config.hosts_reply_timeout
        self._pause_s = _KNOCK_LAST_S if away else _AGAIN_S
        self._core = core
        self._since: float | None = None

    def renew(self) -> None:
        self._since = None

    async def bear(self, problem: Unreachable, bound: float | None) -> None:
        """Wait a moment, at most `bound`; raise what came once that went on for as long as an answer may take."""
        now = time.monotonic()
        if self._since is None:
            self._since = now - problem.waited_s
        if now - self._since >= self._longest_s:
            raise problem
        pause_s = self._pause_s if bound is None else max(0.0, min(self._pause_s, bound))
        await self._core.driver.ready((), (), pause_s)


def behind_gap(at: dict[str, int], status: dict[str, Any]) -> dict[str, int]:
    """Offsets behind what a full disk refuses just now, for a reader that has all that came before: those bytes cannot
    be read, and a wait for output before them would return at once, again and again."""
    gaps: list[dict[str, Any]] = status.get("gaps") or []
    behind = dict(at)
    for gap in gaps:
        stream, end = gap["stream"], gap["to"]
        if gap["from"] <= at.get(stream, -1) < end == status["ends"].get(stream):
            behind[stream] = end
    return behind


async def told(core: Core, connection: Connection, bound: float | None, **conditions: object) -> dict[str, Any]:
    """Until the runner says that a condition holds, or that the time is over."""
    reply_s = core.config.hosts_reply_timeout
    if bound is not None:
        conditions["timeout"] = bound
    await connection.ask("wait", reply_s, **conditions)
    return await connection.outcome(bound, reply_s)


async def follow(
    core: Core, id: str, since: str | int | None, stream: str | None, *, until: float | None = None
) -> AsyncIterator[Page]:
    """Pages as they come, until the command has ended and its output was given out, or the clock shows `until`."""
    log = core.log(id)
    cursor = "0" if since is None else str(since)
    connection: Connection | None = None
    patience = _Patience(core, id)
    status: dict[str, Any] = {}
    try:
        while True:
            seen = from_files(read_files(core.home, id))
            page = log.read(cursor, stream=stream)
            last: dict[str, int] | None = None
            while page.chunks or page.gaps:
                yield page
                cursor = page.cursor
                if until is not None and time.monotonic() >= until:
                    # What was printed in time is given out; a command that never stops must not keep us.
                    last = log.ends() if last is None else last
                    if all(at >= last.get(name, 0) for name, at in log.parse(cursor, stream=stream).items()):
                        return
                page = log.read(cursor, stream=stream)
            left = None if until is None else until - time.monotonic()
            if seen.state in (EXITED, LOST) or (left is not None and left <= 0):
                return
            try:
                if connection is None:
                    try:
                        _, connection = await core.connect(id, _late(left))
                    except Unreachable as problem:
                        await patience.bear(problem, left)
                        continue
                    patience.renew()
                after = behind_gap(log.parse(cursor, stream=stream), status)
                try:
                    status = (await told(core, connection, left, exit=True, output_after=after)).get("status") or {}
                except Unreachable:
                    if until is None or time.monotonic() < until:
                        raise
                    connection.close()
                    connection = None
            except SessionEnded:
                continue
            except RunnerGone:
                if connection is not None:
                    connection.close()
                    connection = None
                seen = from_files(read_files(core.home, id))
                if seen.state == STALE:
                    await first_death(core.driver, seen.orphans[:1], left, look_s=_LOOK_S)
    finally:
        if connection is not None:
            connection.close()


def _listens(port: int) -> bool:
    import socket

    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.settimeout(0.2)
                probe.connect((address, port))
                return True
        except OSError:
            continue
    return False
