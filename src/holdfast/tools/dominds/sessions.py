"""What this family knows of a session: how long it was waited for, how much is shown of it, who is left of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import NotFound
from ...model import LIVE_STATES, LOST, RUNNING
from ...runner import tree
from . import wording

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from ...host.aio import AsyncSession
    from .family import Dominds

VIEW_LINES = 500
WAIT_S = 5
SHELL = "bash"

# As many as an exit record names: these alone are found again by their pid.
_NAMED_MAX = 20
# As `ps` has them.
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "uninterruptible sleep",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "I": "idle",
}


def start_metadata(*, lines: int, wait_s: int, shell: str) -> dict[str, Any]:
    return {"dominds": {"lines": lines, "wait_s": wait_s, "shell": shell}}


def _fact(session: AsyncSession, name: str, default: Any) -> Any:
    return (session.metadata.get("dominds") or {}).get(name, default)


def view_lines(session: AsyncSession) -> int:
    lines: int = _fact(session, "lines", VIEW_LINES)
    return lines


def wait_s(session: AsyncSession) -> float:
    length: float = _fact(session, "wait_s", WAIT_S)
    return length


def shell(session: AsyncSession) -> str:
    named: str = _fact(session, "shell", "")
    return named


def survivors(session: AsyncSession) -> list[Mapping[str, Any]]:
    """Who is left of a command that has ended, as far as they are named."""
    return [] if session.exit is None else some(session.exit.survivors, 0)[0]


def survivors_more(session: AsyncSession) -> int:
    """How many are left beside those."""
    return 0 if session.exit is None else some(session.exit.survivors, session.exit.survivors_more)[1]


def some(processes: Sequence[Mapping[str, Any]], more: int) -> tuple[list[Mapping[str, Any]], int]:
    """Those that are named, and how many there are beside them."""
    return list(processes[:_NAMED_MAX]), more + max(0, len(processes) - _NAMED_MAX)


def something_lives(session: AsyncSession) -> bool:
    return session.state in LIVE_STATES or bool(survivors(session))


def may_print(session: AsyncSession) -> bool:
    """Could anything of it still be captured?"""
    return session.state not in (LOST, "stale") and something_lives(session)


async def find(tools: Dominds, pid: int | None, id: str | None = None) -> list[AsyncSession]:
    """The session that is meant, and then earlier ones that had the same pid."""
    if id is None:
        assert pid is not None
        return by_pid(await tools.sessions_here(), pid)
    try:
        session = await tools.find(id)
    except NotFound:
        return []
    return [session] if tools.is_here(session) else []


def by_pid(sessions: Iterable[AsyncSession], pid: int) -> list[AsyncSession]:
    """Those that have or had this pid, the one that is meant first: one that lives, else the one started last."""
    found = [each for each in sessions if each.pid == pid or any(left["pid"] == pid for left in survivors(each))]
    return sorted(found, key=lambda each: (_liveness(each, pid), each.started_at or "", each.id), reverse=True)


def _liveness(session: AsyncSession, pid: int) -> int:
    """How sure it is that this pid is the session's now."""
    if session.state == RUNNING and session.pid == pid:
        return 3
    if any(left["pid"] == pid for left in survivors(session)):
        return 2
    return 1 if something_lives(session) else 0


def named(processes: Sequence[Mapping[str, Any]], more: int = 0, *, states: bool = False, here: bool = True) -> str:
    """`12 sleep, 13 node`; with what each is doing, where somebody has to find out why it lives on. `more` are counted
    alone; what is not `here` cannot be looked at."""
    said = []
    processes, more = some(processes, more)
    for each in processes:
        text = f"{each['pid']} {_name(each)}"
        if states:
            process = tree.look(each["pid"]) if here else None
            # Between the stop and this look somebody else may have got the number.
            same = process is not None and process.start == each.get("start")
            what = [] if process is None or not same else [_STATES.get(process.state, process.state)]
            what += [str(each["error"])] if each.get("error") else []
            text += f" ({', '.join(what)})" if what else ""
        said.append(text)
    return ", ".join(said) + (f" and {more} more" if more else "")


def _name(process: Mapping[str, Any]) -> str:
    words = wording.one_line(str(process.get("command") or "?")).split()
    return words[0].rpartition("/")[2] if words else "?"
