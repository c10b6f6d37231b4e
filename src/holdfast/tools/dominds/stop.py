"""`stop_daemon`: the ladder of dominds, climbed by the runner, or by this host where there is none that answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import HoldfastError, IdentityMismatch
from ...model import LOST
from ...signals.records import Signal
from . import sessions, wording
from .answers import FAILURE, SUCCESS, answer, facts, how, not_found, same_pid_lines, still_running

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ...host.aio import AsyncSession
    from ...model import Stopped
    from ...signals.records import Note
    from ..answer import Answer
    from .family import Dominds

# A killed process is gone as soon as the kernel gets to it; what is left then is looked for outside its group.
_KILLED_S = 0.3
# The last rung: so long what cannot be killed at once (it waits for a disk) is given before it is called a survivor.
_LAST_S = 3.0


async def stop(tools: Dominds, *, pid: int, entire_pg: bool | None) -> Answer:
    found = await sessions.find(tools, pid)
    if not found:
        return not_found(pid)
    daemon = found[0]
    entire = entire_pg is not False
    try:
        stopped = await daemon.stop(grace=tools.stop_grace_s, by=author(tools), ladder=_ladder(tools, entire=entire))
    except IdentityMismatch as problem:
        await daemon.refresh()
        if daemon.state == LOST:
            return await _stranger(tools, found, pid)
        return _refused(daemon, pid, problem)
    except HoldfastError as problem:
        return _refused(daemon, pid, problem)
    await _acknowledge(tools, daemon, stopped.signal_id)
    left = _left(daemon, stopped, entire)
    found_again, more = sessions.some(stopped.survivors, stopped.survivors_more)
    data = {**facts(daemon), "rung": stopped.rung, "already": stopped.already}
    data |= {"survivors": found_again, "survivorsMore": more}
    if left:
        more = stopped.survivors_more
        named = sessions.named(left, more, states=True, here=tools.place == "local")
        why = tools.texts("survivors", count=len(left) + more, named=named)
        return answer(FAILURE, [_not_stopped(pid, why), *same_pid_lines(tools, found, pid)], data)
    if not stopped.survivors:
        tools.retire(daemon)
    said = [_stopped(tools, daemon, stopped, pid), *same_pid_lines(tools, found, pid)]
    return answer(SUCCESS, said, data)


def author(tools: Dominds) -> str:
    """How the stops of this owner are recorded. Their endings wake nobody."""
    return f"{tools.name}:{tools.owner}"


async def end_stale(tools: Dominds, daemon: AsyncSession) -> bool:
    """End one whose runner is proven dead. False when something of it lives on. No call of the agent asked for this,
    so its end is told as any other."""
    by = f"recover:{tools.owner}"
    stopped = await daemon.stop(grace=tools.stop_grace_s, by=by, ladder=_ladder(tools, entire=True))
    if stopped.survivors:
        return False
    tools.retire(daemon)
    return True


def _ladder(tools: Dominds, *, entire: bool) -> list[dict[str, Any]]:
    grace = tools.stop_grace_s
    gentle = {"signal": "TERM", "target": "command", "wait_s": grace}
    if not entire:
        return [gentle, {"signal": "KILL", "target": "command", "wait_s": _LAST_S}]
    return [
        gentle,
        {"signal": "TERM", "target": "group", "wait_s": grace},
        {"signal": "KILL", "target": "group", "wait_s": _KILLED_S},
        {"signal": "KILL", "target": "tree", "wait_s": _LAST_S},
    ]


def _left(daemon: AsyncSession, stopped: Stopped, entire: bool) -> list[Any]:
    """Who should be gone and is not: without the group that is the command alone."""
    return [each for each in stopped.survivors if entire or each["pid"] == daemon.pid]


def _refused(daemon: AsyncSession, pid: int, problem: HoldfastError) -> Answer:
    why = f"{problem.code}: {problem}"
    return answer(FAILURE, [_not_stopped(pid, why)], {**facts(daemon), "error": problem.to_json()})


async def _stranger(tools: Dominds, found: Sequence[AsyncSession], pid: int) -> Answer:
    """It is lost, and its pid means another process by now: there is nothing to stop and nothing to remind of."""
    daemon = found[0]
    await _acknowledge(tools, daemon, None)
    tools.retire(daemon)
    command = wording.one_line(daemon.command)
    said = [wording.ALREADY.format(pid=daemon.pid, command=command, how=how(daemon))]
    said += [tools.texts("foreign_pid", pid=pid), *same_pid_lines(tools, found, pid)]
    return answer(SUCCESS, said, {**facts(daemon), "rung": None, "already": True, "survivors": [], "survivorsMore": 0})


async def _acknowledge(tools: Dominds, daemon: AsyncSession, signal_id: str | None) -> None:
    """This answer tells the end: nobody is woken for it. Where that cannot be noted, our name on the stop does it, and
    the stop is done all the same."""
    try:
        consumer = tools.consumer()
        if signal_id is None:
            await consumer.pending()  # whoever looks writes what a dead runner did not
        ended = signal_id or _ended_id(await daemon.told())
        if ended is not None:
            await consumer.ack(ended)
    except HoldfastError:
        pass


def _ended_id(told: Sequence[Signal | Note]) -> str | None:
    """The id of the record of its ending."""
    return next((each.id for each in told if isinstance(each, Signal) and each.ends_session), None)


def _stopped(tools: Dominds, daemon: AsyncSession, stopped: Stopped, pid: int) -> str:
    command = wording.one_line(daemon.command)
    if stopped.rung is None:
        # The pid that was asked for may be that of a child which lives on.
        said = [wording.ALREADY.format(pid=daemon.pid, command=command, how=how(daemon))]
    else:
        said = [wording.STOPPED.format(pid=pid, command=command)]
        said += [tools.texts("ended", how=how(daemon), rung=stopped.rung)]
    said += still_running(stopped.survivors, stopped.survivors_more)
    return "\n".join(said)


def _not_stopped(pid: int, why: str) -> str:
    return wording.NOT_STOPPED.format(pid=pid, why=why)
