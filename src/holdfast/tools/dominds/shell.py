"""`shell_cmd`: one start that carries everything, and a wait that only ends the waiting."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...errors import HoldfastError, Unreachable
from ...model import EXITED, LOST, STALE
from ...signals.words import spell
from . import capture, sessions, wording
from .answers import FAILURE, PARTIAL, SUCCESS, answer, facts, gap_lines, how, stream_facts, survivor_lines
from .streams import STREAMS, View, last_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...host.aio import AsyncSession
    from ..answer import Answer
    from .family import Dominds

_TOOL = "shell_cmd"
# So much of each stream a receipt shows.
_RECEIPT_CHARS = 2000


async def run(
    tools: Dominds,
    *,
    command: str,
    shell: str,
    lines: int,
    wait_s: int,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Answer:
    running: list[AsyncSession] = []
    try:
        run = tools.hf.run(
            command,
            wait=wait_s,
            started=running.append,
            shell=shell,
            cwd=cwd,
            env={**capture.changes(os.environ), **(env or {})},
            owner=tools.owner,
            labels=tools.labels,
            metadata=sessions.start_metadata(lines=lines, wait_s=wait_s, shell=shell),
            stdin="closed",
            lifetime="detached",
            notify="auto",
            place=tools.place,
        )
        session = await tools.waiting(running, run)
    except Unreachable as problem:
        pid = running[0].pid if running else None
        why = tools.texts("silent_waiting", pid=pid, read=wording.read_call(pid)) if running else str(problem)
        return _failed(why, problem)
    except HoldfastError as problem:
        return _failed(str(problem), problem)
    if session.state == EXITED:
        return await _completed(tools, session, lines)
    if session.state in (STALE, LOST):
        evidence = session.metadata.get("evidence", session.state)
        why = tools.texts("lost_waiting", evidence=evidence, read=wording.read_call(session.pid))
        return answer(FAILURE, [wording.NOT_EXECUTED.format(why=why)], {"outcome": "failed", **facts(session)})
    return await _receipt(tools, session, wait_s, lines)


def _failed(why: str, problem: HoldfastError) -> Answer:
    data = {"outcome": "failed", "error": problem.to_json()}
    return answer(FAILURE, [wording.NOT_EXECUTED.format(why=why)], data)


async def _completed(tools: Dominds, session: AsyncSession, lines: int) -> Answer:
    assert session.exit is not None
    views = [await last_lines(session, stream, lines) for stream in STREAMS]
    for view in views:
        view.cap(tools.result_chars, _TOOL)
    said = [wording.COMPLETED.format(how=how(session))]
    scrolled = sum(view.scrolled for view in views)
    said += [wording.SCROLLED_DURING.format(count=scrolled)] if scrolled else []
    said += survivor_lines(session)
    said += gap_lines(session, views, tools.texts)
    blocks = []
    for view in views:
        if not view.empty:
            blocks += ["", wording.BLOCK.format(stream=view.stream), *wording.fenced(view.text)]
    if sessions.survivors(session):
        _show(tools, session, views)
    data = {"outcome": "completed", **facts(session), "linesScrolledOut": scrolled}
    status = SUCCESS if session.exit.code == 0 else PARTIAL
    return answer(status, said, {**data, **stream_facts(session, views)}, blocks)


async def _receipt(tools: Dominds, session: AsyncSession, wait_s: float, lines: int) -> Answer:
    views = [await last_lines(session, stream, lines) for stream in STREAMS]
    read, stop = wording.read_call(session.pid), wording.stop_call(session.pid)
    said = [
        wording.RECEIPT.format(command=wording.one_line(session.command), pid=session.pid),
        tools.texts("receipt", waited=spell(wait_s), read=read, stop=stop),
        *gap_lines(session, views, tools.texts),
    ]
    blocks = []
    truncated = []
    for view in views:
        text, cut = view.tail(_RECEIPT_CHARS)
        truncated += [view.stream] if cut else []
        if not view.empty:
            heading = "so_far_cut" if cut else "so_far"
            blocks += ["", tools.texts(heading, stream=view.stream, limit=_RECEIPT_CHARS), *wording.fenced(text)]
        view.text = text
    if not blocks:
        said.append(tools.texts("nothing_so_far"))
    _show(tools, session, views)
    data = {"outcome": "running", **facts(session), "waitedSeconds": wait_s, "truncated": truncated}
    return answer(SUCCESS, said, {**data, **stream_facts(session, views)}, blocks)


def _show(tools: Dominds, session: AsyncSession, views: list[View]) -> None:
    tools.show(session.id, {view.stream: view.end for view in views})
