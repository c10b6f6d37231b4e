"""`get_daemon_output`: the last lines of a daemon, in whatever state it is, and waiting for more of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...errors import IdentityMismatch, Unreachable
from ...model import EXITED, LOST, RUNNING, STALE, STARTING
from . import sessions, wording
from .answers import (
    PARTIAL,
    SUCCESS,
    answer,
    facts,
    gap_lines,
    not_found,
    same_pid_lines,
    state_lines,
    stream_facts,
)
from .streams import STREAMS, TERMINAL, last_lines, lines_since

if TYPE_CHECKING:
    from ...host.aio import AsyncSession
    from ..answer import Answer
    from .family import Dominds

_TOOL = "get_daemon_output"
# After so long a runner that did not answer is asked again.
_AGAIN_S = 0.2
OUTPUT, TIMEOUT, ENDED, UNAVAILABLE = "output", "timeout", "exited", "unavailable"


async def read(
    tools: Dominds,
    *,
    pid: int | None,
    stdout: bool | None,
    stderr: bool | None,
    wait_for_new_output: bool | None,
    timeout_ms: int | None,
    session: str | None = None,
    since: int | None = None,
    lines: int | None = None,
) -> Answer:
    wanted = [stream for stream, ask in zip(STREAMS, (stdout, stderr), strict=True) if ask is not False]
    found = await sessions.find(tools, pid, session)
    if not found:
        return not_found(pid, session)
    daemon = found[0]
    if TERMINAL in daemon.ends:
        wanted = [TERMINAL]  # one stream is all it has, whichever is asked for
    waited = None
    if wait_for_new_output or timeout_ms is not None:
        waited = await _wait(tools, daemon, wanted, timeout_ms)
        daemon = await daemon.refresh()
    views = []
    for stream in wanted:
        many = lines or sessions.view_lines(daemon)
        view = await (last_lines(daemon, stream, many) if since is None else lines_since(daemon, stream, since))
        view.cap(tools.result_chars, _TOOL)
        views.append(view)
    tools.show(daemon.id, {view.stream: view.end for view in views})
    said = _waited_lines(daemon, waited, wanted, timeout_ms)
    said += same_pid_lines(tools, found, pid)
    said += state_lines(daemon, tools.texts)
    said += gap_lines(daemon, views, tools.texts)
    blocks, scrolled = [], []
    for view in views:
        blocks += [wording.DAEMON_BLOCK.format(pid=_named(daemon), stream=view.stream)]
        blocks += [wording.NO_OUTPUT] if view.empty else wording.fenced(view.text)
        if view.scrolled:
            scrolled.append(wording.SCROLLED.format(count=view.scrolled))
            blocks.append(scrolled[-1])
    status = SUCCESS if daemon.state in (STARTING, RUNNING, EXITED) else PARTIAL
    data = {**facts(daemon), "wait_status": waited, **stream_facts(daemon, views)}
    if daemon.metadata.get("mismatch") is not None:
        data["error"] = {"code": "identity-mismatch", "part": daemon.metadata["mismatch"]}
    return answer(status, said, data, blocks, scrolled)


async def _wait(tools: Dominds, daemon: AsyncSession, wanted: list[str], timeout_ms: int | None) -> str:
    """Until a wanted stream has what was not shown yet, or nothing more can come."""
    shown = tools.shown(daemon.id)
    timeout = None if timeout_ms is None else timeout_ms / 1000
    if any(daemon.ends.get(stream, 0) > shown.get(stream, 0) for stream in wanted):
        return OUTPUT
    if daemon.state in (STALE, LOST):
        return UNAVAILABLE
    if not sessions.may_print(daemon):
        return ENDED
    # Whoever asks before the command has ended is told of its end; afterwards only what is left of it can print.
    had_ended = daemon.state == EXITED
    cursor = ",".join(f"{stream}:{shown.get(stream, 0)}" for stream in wanted)

    async def woken() -> str:
        while True:
            try:
                outcome = daemon.wait(
                    output=True,
                    extinct=had_ended,
                    since=cursor,
                    stream=wanted[0] if len(wanted) == 1 else None,
                    timeout=timeout,
                )
                return (await tools.waiting([daemon], outcome)).reason
            except Unreachable:
                # It may answer again, and is no end of the wait; one that dies is noticed by the next try.
                await asyncio.sleep(_AGAIN_S)

    try:
        # A runner that stands still answers no wait, and must not lengthen it.
        async with asyncio.timeout(timeout):
            reason = await woken()
    except TimeoutError:
        reason = TIMEOUT
    except IdentityMismatch:
        return UNAVAILABLE  # what its own directory has is shown all the same
    if reason == "output":
        return OUTPUT
    if reason in ("stale", "lost"):
        return UNAVAILABLE
    return TIMEOUT if reason == "timeout" else ENDED


def _waited_lines(daemon: AsyncSession, waited: str | None, wanted: list[str], timeout_ms: int | None) -> list[str]:
    streams = "/".join(wanted)
    if waited == TIMEOUT:
        return [wording.TIMED_OUT.format(streams=streams, pid=_named(daemon), timeout=timeout_ms)]
    if waited == ENDED:
        return [wording.EXITED_MEANWHILE.format(streams=streams, pid=_named(daemon))]
    return []


def _named(daemon: AsyncSession) -> int | str:
    """What runs inside a host has no pid of its own."""
    return daemon.id if daemon.pid is None else daemon.pid
