"""`shell_cmd`, `get_daemon_output` and `stop_daemon`."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from ...errors import HoldfastError, IdentityMismatch, Unreachable
from ...model import EXITED, LOST, RUNNING, STALE, STARTING
from ...signals.wording import spell
from ..owner_sessions import Running
from . import sessions, words
from .sessions import (
    FAILURE,
    PARTIAL,
    STREAMS,
    SUCCESS,
    TERMINAL,
    answer,
    facts,
    gap_lines,
    how,
    last_lines,
    lines_since,
    not_found,
    same_pid_lines,
    state_lines,
    still_running,
    stream_facts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from ...sessions.aio import AsyncSession
    from ..base import Answer
    from .toolset import Dominds


# The environment of a command whose output is captured: no colours, no progress bars.


_REMOVED = (
    *("FORCE_COLOR", "CLICOLOR_FORCE", "COLORTERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION"),
    *("WT_SESSION", "VTE_VERSION", "ANSICON", "ConEmuANSI"),
)
_SET = {
    "NO_COLOR": "1",
    "CLICOLOR": "0",
    "TERM": "dumb",
    "NODE_DISABLE_COLORS": "1",
    "PY_COLORS": "0",
    "CARGO_TERM_COLOR": "never",
    "RUST_LOG_STYLE": "never",
    "YARN_ENABLE_COLORS": "0",
    "npm_config_color": "false",
    "npm_config_progress": "false",
    "pnpm_config_color": "false",
    "pnpm_config_progress": "false",
}
_TOUCHED = {name.upper() for name in (*_REMOVED, *_SET)}


def capture_changes(inherited: Iterable[str]) -> dict[str, str | None]:
    """The changes that a start makes to variables with these names; None removes one. Names are compared without case,
    as the programs that read them do. Another place may have variables that are not inherited here."""
    found: dict[str, str | None] = {name: None for name in inherited if name.upper() in _TOUCHED}
    return {**dict.fromkeys(_REMOVED), **found, **_SET}


# `shell_cmd`: one start request that carries everything. Only the waiting has a limit.


_TOOL = "shell_cmd"
# A receipt shows this much of each stream.
_RECEIPT_CHARS = 2000


async def shell_cmd(
    tools: Dominds,
    *,
    command: str,
    shell: str | None,
    scrollbackLines: int | None,  # noqa: N803  the name is dominds'
    timeoutSeconds: int | None,  # noqa: N803
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Answer:
    shell, lines = shell or sessions.SHELL, scrollbackLines or sessions.VIEW_LINES
    wait_s = timeoutSeconds or sessions.WAIT_S
    start = Running(
        tools.hf,
        command,
        wait=wait_s,
        shell=shell,
        cwd=cwd,
        env={**capture_changes(os.environ), **(env or {})},
        owner=tools.owner,
        labels=tools.labels,
        metadata=sessions.start_metadata(lines=lines, wait_s=wait_s, shell=shell),
        stdin="closed",
        lifetime="detached",
        notify="auto",
        place=tools.place,
    )
    try:
        async with start as running:
            session = await tools.with_progress(running.sessions, running.outcome())
    except HoldfastError as problem:
        why = str(problem)
        if isinstance(problem, Unreachable) and start.session is not None:
            pid = start.session.pid
            why = tools.texts("silent_waiting", pid=pid, read=words.read_call(pid))
        data = {"outcome": "failed", "error": problem.to_json()}
        return answer(FAILURE, [words.NOT_EXECUTED.format(why=why)], data)
    if session.state == EXITED:
        return await _completed(tools, session, lines)
    if session.state in (STALE, LOST):
        evidence = session.metadata.get("evidence", session.state)
        why = tools.texts("lost_waiting", evidence=evidence, read=words.read_call(session.pid))
        return answer(FAILURE, [words.NOT_EXECUTED.format(why=why)], {"outcome": "failed", **facts(session)})
    return await _receipt(tools, session, wait_s, lines)


async def _completed(tools: Dominds, session: AsyncSession, lines: int) -> Answer:
    assert session.exit is not None
    views = [await last_lines(session, stream, lines) for stream in STREAMS]
    for view in views:
        view.cap(tools.result_chars, _TOOL)
    said = [words.COMPLETED.format(how=how(session))]
    scrolled = sum(view.scrolled for view in views)
    said += [words.SCROLLED_DURING.format(count=scrolled)] if scrolled else []
    said += still_running(*sessions.survivors(session))
    said += gap_lines(session, views, tools.texts)
    blocks = []
    for view in views:
        if not view.empty:
            blocks += ["", words.BLOCK.format(stream=view.stream), *words.fenced(view.text)]
    if sessions.survivors(session)[0]:
        tools.show(session.id, views)
    data = {"outcome": "completed", **facts(session), "linesScrolledOut": scrolled}
    status = SUCCESS if session.exit.code == 0 else PARTIAL
    return answer(status, said, {**data, **stream_facts(session, views)}, blocks)


async def _receipt(tools: Dominds, session: AsyncSession, wait_s: float, lines: int) -> Answer:
    views = [await last_lines(session, stream, lines) for stream in STREAMS]
    read, stop = words.read_call(session.pid), words.stop_call(session.pid)
    said = [
        words.RECEIPT.format(command=words.one_line(session.command), pid=session.pid),
        tools.texts("receipt", waited=spell(wait_s), read=read, stop=stop),
        *gap_lines(session, views, tools.texts),
    ]
    blocks = []
    truncated = []
    for view in views:
        view.text, cut = view.tail(_RECEIPT_CHARS)
        truncated += [view.stream] if cut else []
        if not view.empty:
            heading = "so_far_cut" if cut else "so_far"
            blocks += ["", tools.texts(heading, stream=view.stream, limit=_RECEIPT_CHARS), *words.fenced(view.text)]
    if not blocks:
        said.append(tools.texts("nothing_so_far"))
    tools.show(session.id, views)
    data = {"outcome": "running", **facts(session), "waitedSeconds": wait_s, "truncated": truncated}
    return answer(SUCCESS, said, {**data, **stream_facts(session, views)}, blocks)


# `get_daemon_output`: the last lines of a daemon in any state, after waiting for new ones where that is asked for.


_OUTPUT_TOOL = "get_daemon_output"
# A runner that did not answer is asked again after this time.
_AGAIN_S = 0.2
OUTPUT, TIMEOUT, ENDED, UNAVAILABLE = "output", "timeout", "exited", "unavailable"


async def get_daemon_output(
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
        wanted = [TERMINAL]  # its only stream, whichever is asked for
    waited = None
    if wait_for_new_output or timeout_ms is not None:
        waited = await _wait(tools, daemon, wanted, timeout_ms)
        daemon = await daemon.refresh()
    views = []
    for stream in wanted:
        many = lines or sessions.start_fact(daemon, "lines", sessions.VIEW_LINES)
        view = await (last_lines(daemon, stream, many) if since is None else lines_since(daemon, stream, since))
        view.cap(tools.result_chars, _OUTPUT_TOOL)
        views.append(view)
    tools.show(daemon.id, views)
    # A daemon inside the host has no pid of its own.
    name, streams, said = daemon.id if daemon.pid is None else daemon.pid, "/".join(wanted), []
    if waited == TIMEOUT:
        said = [words.TIMED_OUT.format(streams=streams, pid=name, timeout=timeout_ms)]
    elif waited == ENDED:
        said = [words.EXITED_MEANWHILE.format(streams=streams, pid=name)]
    said += same_pid_lines(tools, found, pid)
    said += state_lines(daemon, tools.texts)
    said += gap_lines(daemon, views, tools.texts)
    blocks, scrolled = [], []
    for view in views:
        blocks += [words.DAEMON_BLOCK.format(pid=name, stream=view.stream)]
        blocks += [words.NO_OUTPUT] if view.empty else words.fenced(view.text)
        if view.scrolled:
            scrolled.append(words.SCROLLED.format(count=view.scrolled))
            blocks.append(scrolled[-1])
    status = SUCCESS if daemon.state in (STARTING, RUNNING, EXITED) else PARTIAL
    data = {**facts(daemon), "wait_status": waited, **stream_facts(daemon, views)}
    if daemon.metadata.get("mismatch") is not None:
        data["error"] = {"code": "identity-mismatch", "part": daemon.metadata["mismatch"]}
    return answer(status, said, data, blocks, scrolled)


async def _wait(tools: Dominds, daemon: AsyncSession, wanted: list[str], timeout_ms: int | None) -> str:
    """Wait until a wanted stream has output that was not shown yet, or no more can come."""
    shown = tools.shown(daemon.id)
    timeout = None if timeout_ms is None else timeout_ms / 1000
    if any(daemon.ends.get(stream, 0) > shown.get(stream, 0) for stream in wanted):
        return OUTPUT
    if daemon.state in (STALE, LOST):
        return UNAVAILABLE
    if not sessions.may_print(daemon):
        return ENDED
    conditions: Any = {
        "output": True,
        # The end of the command ends the wait; once it has ended, the end of its last process does.
        "extinct": daemon.state == EXITED,
        "since": ",".join(f"{stream}:{shown.get(stream, 0)}" for stream in wanted),
        "stream": wanted[0] if len(wanted) == 1 else None,
        "timeout": timeout,
    }
    reason = None
    try:
        # The runner keeps the time; this limit is for a runner that does not answer.
        async with asyncio.timeout(timeout):
            while reason is None:
                try:
                    reason = (await tools.with_progress([daemon], daemon.wait(**conditions))).reason
                except Unreachable:
                    await asyncio.sleep(_AGAIN_S)  # it may answer again; the next try notices if it died
    except TimeoutError:
        return TIMEOUT
    except IdentityMismatch:
        return UNAVAILABLE  # the log in its own directory is shown all the same
    return {"output": OUTPUT, "timeout": TIMEOUT, "stale": UNAVAILABLE, "lost": UNAVAILABLE}.get(reason, ENDED)


# `stop_daemon`: dominds' ladder, executed by the runner, or by this host where no runner answers.


# A killed process disappears once the kernel gets to it; after this time, survivors are looked for outside its group.
_KILLED_S = 0.3
# The last rung: how long a process that cannot die at once (it waits for a disk) has before it counts as a survivor.
_LAST_S = 3.0


async def stop_daemon(tools: Dominds, *, pid: int, entire_pg: bool | None) -> Answer:
    found = await sessions.find(tools, pid)
    if not found:
        return not_found(pid)
    daemon = found[0]
    entire = entire_pg is not False
    # Ends that this owner asked for here wake no dialog.
    by = f"{tools.name}:{tools.owner}"
    try:
        stopped = await daemon.stop(grace=tools.stop_grace_s, by=by, ladder=_ladder(tools, entire=entire))
    except HoldfastError as problem:
        if isinstance(problem, IdentityMismatch) and (await daemon.refresh()).state == LOST:
            return await _foreign_pid(tools, found, pid)
        why = words.NOT_STOPPED.format(pid=pid, why=f"{problem.code}: {problem}")
        return answer(FAILURE, [why], {**facts(daemon), "error": problem.to_json()})
    await _acknowledge(tools, daemon)
    left, more = sessions.first_named(stopped.survivors, stopped.survivors_more)
    data = {**facts(daemon), "rung": stopped.rung, "already": stopped.already}
    data |= {"survivors": left, "survivorsMore": more}
    # Without the group, only the command itself has to be gone.
    remaining = [each for each in stopped.survivors if entire or each["pid"] == daemon.pid]
    if remaining:
        more = stopped.survivors_more
        named = sessions.named(remaining, more, states=True, here=tools.place == "local")
        why = tools.texts("survivors", count=len(remaining) + more, named=named)
        return answer(FAILURE, [words.NOT_STOPPED.format(pid=pid, why=why), *same_pid_lines(tools, found, pid)], data)
    if not stopped.survivors:
        tools.retire(daemon)
    if stopped.rung is None:
        # The pid that was asked for may be that of a child that lives on.
        said = [_already(daemon)]
    else:
        said = [words.STOPPED.format(pid=pid, command=words.one_line(daemon.command))]
        said += [tools.texts("ended", how=how(daemon), rung=stopped.rung)]
    said += still_running(stopped.survivors, stopped.survivors_more)
    return answer(SUCCESS, [*said, *same_pid_lines(tools, found, pid)], data)


async def end_stale(tools: Dominds, daemon: AsyncSession) -> bool:
    """End a daemon whose runner is proven dead. False when something of it survives. No call of the agent asked for
    this, so its end wakes a dialog as any other."""
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


async def _foreign_pid(tools: Dominds, found: Sequence[AsyncSession], pid: int) -> Answer:
    """The daemon is lost, and its pid now belongs to another process: nothing to stop, no reminder to keep."""
    daemon = found[0]
    await _acknowledge(tools, daemon)
    tools.retire(daemon)
    said = [_already(daemon), tools.texts("foreign_pid", pid=pid), *same_pid_lines(tools, found, pid)]
    return answer(SUCCESS, said, {**facts(daemon), "rung": None, "already": True, "survivors": [], "survivorsMore": 0})


def _already(daemon: AsyncSession) -> str:
    return words.ALREADY.format(pid=daemon.pid, command=words.one_line(daemon.command), how=how(daemon))


async def _acknowledge(tools: Dominds, daemon: AsyncSession) -> None:
    """The stop is done whether or not this can be recorded; our name on the stop keeps its end silent too."""
    try:
        await tools.acknowledge(daemon)
    except HoldfastError:
        pass
