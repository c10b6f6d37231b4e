"""Errors that teach: what is wrong, then the call that works, in one line."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from ... import errors
from ...model import FINAL_STATES
from ..answer import Answer
from .wording import ago, call, called, ending, label, quoted, ref, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...errors import HoldfastError
    from ...host.aio import AsyncSession
    from ...model import Snapshot
    from ..toolset import Tool, Toolset

_NAMED = 8


async def answer(tools: Toolset, tool: Tool, problem: HoldfastError) -> Answer:
    text = await _worded(tools, tool, problem)
    # What others have is not told, not even which ids there are.
    return Answer(text, {"error": {"code": problem.code, "message": text}}, error=True)


async def _worded(tools: Toolset, tool: Tool, problem: HoldfastError) -> str:
    if isinstance(problem, (errors.NotFound, errors.Removed)):
        missing = problem.ref if isinstance(problem, errors.NotFound) else problem.id
        return _not_found(missing, await tools.hf.sessions(owner=tools.owner, all=True))
    if isinstance(problem, errors.AmbiguousId):
        return f"{quoted(problem.ref)} fits {', '.join(problem.candidates[:_NAMED])}; give more of the id"
    if isinstance(problem, errors.NameTaken):
        return await _name_taken(tools, problem)
    if isinstance(problem, errors.KeyReused):
        holder = await _mine(tools, problem.holder)
        runs = f", which runs as {holder.id}" if holder else ""
        return f"the key stands for another command{runs}; run(..., replace=true) stops it first, or give another key"
    if isinstance(problem, errors.BadKey):
        near = f"did you mean {' or '.join(problem.suggestions[:3])}? " if problem.suggestions else ""
        return f"no key {quoted(problem.key)}; {near}text goes in text=, keys are such as Enter, C-c, M-x, Up, F5"
    if isinstance(problem, errors.BadArgument):
        return _bad_argument(tool, problem)
    if isinstance(problem, errors.DiskFull):
        return f"the disk is full, {size(problem.free)} are free: nothing was started; free some space and try again"
    if isinstance(problem, errors.SpawnError):
        return f"{problem.message}; check the program and cwd"
    session = await _known(tools, problem)
    return _plain(problem) if session is None else _about(session, tool, problem)


def _plain(problem: HoldfastError) -> str:
    """In the library's words; a fix for people at a shell is none for an agent."""
    return problem.message if "`hold" in problem.fix else f"{problem.message}; {problem.fix}"


def _about(session: Snapshot, tool: Tool, problem: HoldfastError) -> str:
    who, name = called(session), ref(session)
    if isinstance(problem, (errors.SessionEnded, errors.AlreadyEnded)):
        when = ago(session.ended_at, session.observed_at)
        return f"{who} has ended: {ending(session)}, {when}; {call('read', id=name)} still works, run starts it anew"
    if isinstance(problem, errors.StdinClosed):
        return f'stdin of {who} is closed; start it with run(..., stdin="open") or run(..., tty=true)'
    if isinstance(problem, errors.NotATty):
        instead = call("read", id=name) if tool.name == "screen" else call("send", id=name, text="...")
        return f"{who} is not a terminal; {instead}, or start it with run(..., tty=true)"
    if isinstance(problem, errors.RunnerGone):
        if session.state in FINAL_STATES:
            return f"{who} is over: {ending(session)}; {call('read', id=name)} still works, run starts it anew"
        return (
            f"the supervisor of {who} is gone, its command still runs: it takes no input and is told of by nobody; "
            f"{call('read', id=name)} gives what was kept, {call('stop', ids=name)} ends it with its processes"
        )
    if isinstance(problem, errors.Unreachable):
        return (
            f"the supervisor of {who} is alive and does not answer; try again, {call('read', id=name)} works without "
            f"it, {call('stop', ids=name)} ends the command past it"
        )
    return _plain(problem)


async def _known(tools: Toolset, problem: HoldfastError) -> AsyncSession | None:
    id = problem.facts.get("id")
    return await _mine(tools, id if isinstance(id, str) else None)


def _not_found(missing: str, sessions: Sequence[Snapshot]) -> str:
    live = [each for each in sessions if each.state not in FINAL_STATES]
    names = {word: each for each in sessions for word in (each.id, each.name) if word}
    near = list(dict.fromkeys(called(names[word]) for word in get_close_matches(missing, names, 3)))
    said = [f"no session {quoted(missing)}"]
    if near:
        said.append(f"nearest is {' or '.join(near)}")
    if live:
        more = ", ..." if len(live) > _NAMED else ""
        said.append(f"running: {', '.join(label(ref(each), 40) for each in live[-_NAMED:])}{more}")
    else:
        said.append("nothing of yours runs")
    said.append("list(all=true) shows all" if len(sessions) > len(live) else "run starts one")
    return "; ".join(said)


async def _name_taken(tools: Toolset, problem: errors.NameTaken) -> str:
    holder = await _mine(tools, problem.holder)
    if holder is None:
        return f"the name {quoted(problem.name)} is taken; choose another"
    return (
        f"the name {quoted(problem.name)} belongs to running {holder.id}; use that one, choose another name, or "
        "run(..., replace=true) without key stops it first"
    )


async def _mine(tools: Toolset, id: str | None) -> AsyncSession | None:
    try:
        return await tools.find(id) if id else None
    except errors.HoldfastError:
        return None


def _bad_argument(tool: Tool, problem: errors.BadArgument) -> str:
    """In the tool's own names for things."""
    name = problem.argument
    known = [each.name for each in tool.parameters]
    if name not in known and f"{name}_s" in known:
        name = f"{name}_s"
    if name == "pattern" and name not in known and "search" in known:
        name = "search"
    return f"{name}: {problem.why}; {problem.fix}"
