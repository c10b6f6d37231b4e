"""Waiting for something to happen to a session, and following its output. On events; only a port, and a
death that the kernel does not report, are looked for.

`CONDITIONS` has a row for each condition; `WAIT_OPTIONS` also has the options that modify a condition. The flags of the
command line, the parameters of the server and of the native tool, and the reference are made from the rows;
`WaitConditions` has their types, for callers of the Python API. `Wait` judges the conditions. The runner reports that
there is something new; what it is, is read from the files.
"""

from __future__ import annotations

import time

from ..core.records import runner_lives
from ..errors import BadArgument, HoldfastError, RunnerGone, SessionEnded, Unreachable, Unsupported
from ..model import EXITED, LOST, STALE, Woke, format_cursor
from ..model.options import DURATION, NUMBER, OTHER, SWITCH, Option, TypedDict
from .connection import LATE_S
from .driver import Turns, first_death, together
from .observe import from_files, halted, orphans, read_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from typing import Any

    from .connection import Connection
    from .core import Core
    from .log import Page
    from .observe import Observed
    from .search import Matcher


# The groups: the options that a call that writes input has too, and those of `wait` alone.
ALSO_AFTER_INPUT, WAIT_ONLY = "also after input", "wait only"

_CONDITIONS = (
    Option(
        "exit",
        SWITCH,
        ALSO_AFTER_INPUT,
        "the command has ended",
        "The end of the command. It ends every wait; this says that nothing else is waited for.",
    ),
    Option(
        "match",
        OTHER,
        ALSO_AFTER_INPUT,
        "a line of the output matches",
        "A regular expression that a line matches. Without `since`, lines that were printed before count too.",
        metavar="RE",
    ),
    Option(
        "idle",
        DURATION,
        ALSO_AFTER_INPUT,
        "it printed nothing for this long",
        "No output for this long.",
        metavar="T",
    ),
    Option("output", SWITCH, ALSO_AFTER_INPUT, "it printed something new", "New output."),
    Option(
        "port",
        NUMBER,
        WAIT_ONLY,
        "something listens on this local port",
        "Something listens on this local port.",
        metavar="N",
        low=1,
        high=65535,
    ),
    Option(
        "ready",
        SWITCH,
        WAIT_ONLY,
        "it is ready, as defined at its start",
        "It is ready, as defined by the option `ready` of its start.",
    ),
)
# These end no wait: they change how the conditions are judged. Without a text for the command line there is no flag.
_QUALIFIERS = (
    Option("extinct", SWITCH, WAIT_ONLY, "", "The wait ends with the last of its processes, not with the command."),
    Option(
        "since",
        OTHER,
        WAIT_ONLY,
        "count only output after this cursor",
        "Only output after this cursor counts.",
        metavar="CURSOR",
    ),
    Option("stream", OTHER, WAIT_ONLY, "", "Only output of this stream counts, for `match`, `idle` and `output`."),
    Option(
        "timeout",
        DURATION,
        ALSO_AFTER_INPUT,
        "stop waiting after this time",
        "Stop waiting after this time; `reason` is then `timeout`.",
        metavar="T",
    ),
)


class WaitConditions(TypedDict, total=False):
    """None is the same as leaving one out."""

    exit: bool
    match: str | None
    idle: float | str | None
    output: bool | None
    port: int | None
    ready: bool | None
    extinct: bool
    since: str | int | None
    stream: str | None
    timeout: float | str | None


CONDITIONS = {row.name: row for row in _CONDITIONS}
WAIT_OPTIONS = {row.name: row for row in (*_CONDITIONS, *_QUALIFIERS)}


# How often a port is tried: often at first, then less.
_SAMPLE_FIRST_S = 0.05
_SAMPLE_LAST_S = 1.0
# A runner that dies closes its endpoint a moment before it is seen to be dead.
_AGAIN_S = 0.02
# How often to look where the kernel cannot report a death.
_LOOK_S = 1.0
# A broken link to another place may come back within this time, and the wait continues.
_LINK_BACK_S = 60.0


class Wait:
    """One wait: which conditions end it, and how far it has looked. `deadline` is on the monotonic clock, for a caller
    that gives no `timeout`."""

    def __init__(self, core: Core, id: str, deadline: float | None = None, /, **conditions: Any) -> None:
        unknown = sorted(set(conditions) - set(WAIT_OPTIONS))
        if unknown:
            raise BadArgument(unknown[0], "no such condition", f"one or more of {', '.join(WAIT_OPTIONS)}")
        given: dict[str, Any] = {
            name: WAIT_OPTIONS[name].check(value) for name, value in conditions.items() if value is not None
        }
        if given.get("exit") is False:
            raise BadArgument("exit", "the end of the command ends every wait", "leave it out, and look at `reason`")
        self._core = core
        self._id = id
        self.log = core.log(id)
        self._output: bool = given.get("output", False)
        self._idle: float | None = given.get("idle")
        self._port: int | None = given.get("port")
        self._ready: bool = given.get("ready", False)
        self._extinct: bool = given.get("extinct", False)
        self._stream: str | None = given.get("stream")
        if self._port is not None and read_files(core.home, id).away:
            raise Unsupported("waiting for a port of another place (start it with ready='port:N', and wait for that)")
        if self._ready and not read_files(core.home, id).spec.get("ready"):
            why = f"session {id} was started without a `ready` condition"
            raise BadArgument("ready", why, "start it with ready=, or wait for a match or a port")
        self._matcher: Matcher | None = None
        if "match" in given:
            from .search import Matcher

            self._matcher = Matcher(given["match"], log=self.log)
        # After this time it looks again at what nothing announces; doubled at each look.
        self._sample_s = _SAMPLE_FIRST_S / 2
        self.deadline = time.monotonic() + given["timeout"] if "timeout" in given else deadline
        # New output is what comes behind this cursor. A match may already be in the log: without `since` it is looked
        # for from the beginning.
        self._new_after = str(given["since"]) if "since" in given else self.log.cursor()
        self._cursor = self._new_after if self._matcher is None or "since" in given else "0"
        self._quiet_since = time.monotonic()
        # The last status of the runner.
        self._status: dict[str, Any] = {}
        self._connection: Connection | None = None
        # Whether the runner said that the command has ended.
        self.end_answered = False
        # Since when the runner could not be reached; None while it can.
        self._unreachable_since: float | None = None
        # When the runner answers at the latest, also if there is nothing new.
        self._asleep_until: float | None = None
        # Whether the runner was already gone at the first look: then its death does not end the wait.
        self._began_stale: bool | None = None

    async def run(self) -> Woke:
        try:
            return await self._next()
        finally:
            self.close()

    async def output_after(self, cursor: str) -> bool:
        """Wait for output behind a cursor; False when no more will come, or after the deadline."""
        self._cursor = self._new_after = cursor
        while (reason := (await self._next()).reason) == "stale":
            self._began_stale = True  # wait for the end of its processes, too
        return reason == "output"

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _next(self) -> Woke:
        """The first condition that holds."""
        while True:
            woke = await self._look()
            if woke is not None:
                return woke
            if self._connection is None:
                try:
                    _, self._connection = await self._core.connect(self._id, self._bound(LATE_S))
                    self._unreachable_since = None
                except SessionEnded:
                    if self._extinct:
                        await self._await_survivors()
                    continue
                except Unreachable as problem:
                    await self._retry_later(problem)
                    continue
                except RunnerGone:
                    woke = await self._await_orphans()
                    if woke is not None:
                        return woke
                    continue
            try:
                woke = self._take_reply(await self._sleep(self._connection))
                if woke is not None:
                    return woke
            except RunnerGone:
                self.close()
            except Unreachable:
                if self._asleep_until is None or time.monotonic() < self._asleep_until:
                    raise
                self.close()  # it is time to look, whatever the runner does

    async def _look(self) -> Woke | None:
        """The condition that holds now. Output before exit, so that the last output is seen."""
        seen = from_files(read_files(self._core.home, self._id))
        if self._began_stale is None:
            self._began_stale = seen.state == STALE
        matched = self._match()
        if matched is not None:
            return matched
        if self._matcher is None:
            self._cursor = self.log.end_after(self._cursor, stream=self._stream) or self._cursor
        now = time.monotonic()
        if self._cursor != self._new_after and self._has_new():
            self._quiet_since = now
            if self._output:
                return Woke("output", cursor=self._new_after)  # so that reading from there gives what is new
            self._new_after = self._cursor
        if seen.state in (EXITED, LOST) and not (self._extinct and self._goes_on(seen)):
            return self._woke("exit" if seen.state == EXITED else "lost")
        if self._port is not None and _listens(self._port):
            return self._woke("port")
        self._sample_s = min(self._sample_s * 2, _SAMPLE_LAST_S)
        if self._idle is not None and now - self._quiet_since >= self._idle:
            return self._woke("idle")
        if self.deadline is not None and now >= self.deadline:
            return self._woke("timeout")
        return None

    def _goes_on(self, seen: Observed) -> bool:
        """Whether the command has ended, and `extinct` waits for processes that it left. Output of
        processes that a dead runner left behind is not recorded."""
        if seen.final:
            return False
        return runner_lives(seen.files.directory) or (not self._output and bool(orphans(seen.files)))

    def _has_new(self) -> bool:
        """Whether what was looked at goes beyond `_new_after`. As offsets: one place has several texts."""
        start, end = (self.log.parse(cursor, stream=self._stream) for cursor in (self._new_after, self._cursor))
        return any(end[name] > start.get(name, 0) for name in end)

    def _match(self) -> Woke | None:
        matcher = self._matcher
        more = matcher is not None
        while matcher is not None and more:
            page = self.log.read(self._cursor, stream=self._stream)
            # The page's cursor has the other streams, too, where the caller's had them.
            at = {**self.log.parse(page.cursor), **self.log.parse(self._cursor, stream=self._stream)}
            self._cursor, more = page.cursor, page.more
            for stream, offset, data in page.chunks:
                match = matcher.feed(stream, offset, data)
                if match is not None:
                    # Right behind the match: the caller has not seen the rest of what was read.
                    at[stream] = max(at.get(stream, 0), match.end)
                    return Woke("match", cursor=format_cursor(at), match=match.text)
                at[stream] = offset + len(data)
        return None

    def _woke(self, reason: str) -> Woke:
        return Woke(reason, cursor=self._cursor)

    def _take_reply(self, reply: dict[str, Any]) -> Woke | None:
        """The condition that only the runner can judge. Every other reason only means: look again."""
        self._status = reply.get("status") or {}
        self.end_answered = reply["reason"] == "exit"
        if reply["reason"] != "ready":
            return None
        return self._woke("ready" if reply.get("ok") else "not_ready")

    async def _sleep(self, connection: Connection) -> dict[str, Any]:
        """Until the runner has something new, or it is time to look anyway."""
        # One of the two: a runner that is asked for `exit` does not wait for more.
        fields: dict[str, object] = {"extinct" if self._extinct else "exit": True}
        if self._ready:
            fields["ready"] = True
        if self._matcher is not None or self._output or self._idle is not None:
            fields["output_after"] = _behind_gap(self.log.parse(self._cursor, stream=self._stream), self._status)
        bound = self._bound()
        self._asleep_until = None if bound is None else time.monotonic() + bound
        if bound is not None:
            fields["timeout"] = bound
        reply_s = self._core.config.hosts_reply_timeout
        await connection.ask("wait", reply_s, **fields)
        return await connection.answer_in_time(bound, reply_s)

    async def _retry_later(self, problem: Unreachable) -> None:
        """Wait a moment: the runner may be about to exit, or the link to it is down. Raise `problem` once that has
        lasted as long as an answer may take."""
        away = read_files(self._core.home, self._id).away
        now = time.monotonic()
        if self._unreachable_since is None:
            self._unreachable_since = now - problem.waited_s
        if now - self._unreachable_since >= (_LINK_BACK_S if away else self._core.config.hosts_reply_timeout):
            raise problem
        pause_s, bound = _SAMPLE_LAST_S if away else _AGAIN_S, self._bound()
        await self._core.driver.ready((), (), pause_s if bound is None else max(0.0, min(pause_s, bound)))

    def _bound(self, late_s: float = 0.0) -> float | None:
        """How long until it is time to look again, and `late_s` more; None for as long as it takes."""
        now = time.monotonic()
        bounds = []
        if self.deadline is not None:
            bounds.append(self.deadline - now)
        if self._idle is not None:
            bounds.append(self._quiet_since + self._idle - now)
        if self._port is not None:
            bounds.append(self._sample_s)
        return max(0.0, min(bounds)) + late_s if bounds else None

    async def _await_survivors(self) -> None:
        """The command has ended, and its runner is about to exit, or died and left processes behind."""
        left = orphans(read_files(self._core.home, self._id))
        if left:
            await first_death(self._core.driver, left[:1], self._bound(), look_s=_LOOK_S)
        else:
            await self._core.driver.ready((), (), _AGAIN_S)

    async def _await_orphans(self) -> Woke | None:
        """Without a runner, watch the processes themselves to their end. A wait for output ends: no more will come."""
        seen = from_files(read_files(self._core.home, self._id))
        if seen.state != STALE:
            return None
        if self._output and not self._began_stale:
            return await self._look() or self._woke("stale")
        await first_death(self._core.driver, seen.orphans[:1], self._bound(), look_s=_LOOK_S)
        return None


def _behind_gap(at: dict[str, int], status: dict[str, Any]) -> dict[str, int]:
    """Offsets behind the bytes that a full disk refuses now, for a reader that has all before them: those bytes cannot
    be read, and a wait for output before them would return at once, again and again."""
    gaps: list[dict[str, Any]] = status.get("gaps") or []
    behind = dict(at)
    for gap in gaps:
        stream, end = gap["stream"], gap["to"]
        if gap["from"] <= at.get(stream, -1) < end == status["ends"].get(stream):
            behind[stream] = end
    return behind


async def follow(
    core: Core, id: str, since: str | int | None, stream: str | None, *, until: float | None = None
) -> AsyncIterator[Page]:
    """Pages as they come, until the command has ended and all output was returned, or the clock shows `until`."""
    cursor = "0" if since is None else str(since)
    new_output = Wait(core, id, until, output=True, since=cursor, stream=stream)
    log = new_output.log
    last: dict[str, int] | None = None
    try:
        while True:
            page = log.read(cursor, stream=stream)
            if page.chunks or page.gaps:
                yield page
            cursor = page.cursor
            if until is not None and time.monotonic() >= until:
                # Output that was printed in time is returned; a command that never stops must not hold the caller.
                last = log.ends() if last is None else last
                if all(at >= last.get(name, 0) for name, at in log.parse(cursor, stream=stream).items()):
                    return
            if not page.more and not await new_output.output_after(cursor):
                return
    finally:
        new_output.close()


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


async def wait(core: Core, id: str, **conditions: Any) -> Woke:
    """Wait for the first of these conditions; None is the same as leaving one out."""
    return await _woken(core, id, Wait(core, id, **conditions))


async def _woken(core: Core, id: str, waiting: Wait) -> Woke:
    woke = await waiting.run()
    if woke.reason in ("exit", "lost"):
        if not waiting.end_answered:
            await _end_signalled(core, id, waiting.deadline)
        woke.signal_id = core.ensure_end_signal(id)
    return woke


async def _end_signalled(core: Core, id: str, deadline: float | None) -> None:
    """`exit.json` comes first, then the signal of the end, which a caller that drains next expects. A runner that lives
    answers when it has written both. One that hangs delays no wait beyond its deadline."""
    files = read_files(core.home, id)
    if runner_lives(files.directory) and not halted(files):
        within = None if deadline is None else max(0.0, deadline - time.monotonic()) + LATE_S
        try:
            await core.request(id, "wait", within, exit=True)
        except HoldfastError:
            pass  # it left, or will write it later


async def wait_all(core: Core, asked: Mapping[str, Mapping[str, object]], *, any: bool) -> dict[str, Woke]:
    """Wait at the same time for each of these sessions, with its conditions, or with `any` for the first of them. Then
    a session that cannot be waited for fails only if none of the others can."""
    import copy

    turns = copy.copy(core)
    turns.driver = Turns()
    waits = {id: Wait(turns, id, **conditions) for id, conditions in asked.items()}
    found = await together(core.driver, [_woken(turns, id, each) for id, each in waits.items()], any=any)
    ids = list(waits)
    return {ids[n]: found[n] for n in sorted(found)}
