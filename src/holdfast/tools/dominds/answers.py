"""What a tool of this family gives back: a status, the text, and the same facts as fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model import EXITED, LOST, STALE, UNREACHABLE
from ..answer import Answer
from . import sessions, wording

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from ...host.aio import AsyncSession
    from .family import Dominds
    from .streams import View
    from .wording import Texts

SUCCESS, PARTIAL, FAILURE = "success", "partial_failure", "failure"


def answer(
    status: str,
    lines: Sequence[str],
    data: Mapping[str, Any],
    blocks: Sequence[str] = (),
    behind: Sequence[str] = (),
) -> Answer:
    """`lines` are our own words; `blocks` the output, which the data has by stream, with `behind` of ours in them."""
    facts = {"status": status, "message": "\n".join((*lines, *behind)), **data}
    return Answer("\n".join((*lines, *blocks)), facts, error=status == FAILURE)


def facts(session: AsyncSession) -> dict[str, Any]:
    """What every answer about a session has."""
    return {
        "session": session.id,
        "pid": session.pid,
        "command": session.command,
        "state": session.state,
        "exit": None if session.exit is None else session.exit.to_json(),
        "startedAt": session.started_at,
        "endedAt": session.ended_at,
        "survivors": sessions.survivors(session),
        "survivorsMore": sessions.survivors_more(session),
    }


def how(session: AsyncSession) -> str:
    return wording.exit_words(*((session.exit.code, session.exit.signal) if session.exit else (None, None)))


def cause(session: AsyncSession, texts: Texts) -> str:
    """Why it ended; empty for a plain exit."""
    if session.exit is None or session.exit.cause == "exit":
        return ""
    by = session.exit.by
    return texts("by", cause=session.exit.cause, by=by) if by else session.exit.cause


def not_found(pid: int | None, id: str | None = None) -> Answer:
    text = wording.NOT_FOUND.format(pid=pid if id is None else id)
    return answer(FAILURE, [text], {"pid": pid, "error": {"code": "not-found"}})


def same_pid_lines(tools: Dominds, found: Sequence[AsyncSession], pid: int | None) -> list[str]:
    if len(found) < 2:
        return []
    return [tools.texts("older_pid", pid=pid, id=found[0].id, older=", ".join(each.id for each in found[1:]))]


def state_lines(session: AsyncSession, texts: Texts) -> list[str]:
    """How it stands, where it does not simply run."""
    evidence = session.metadata.get("evidence", "")
    stop = wording.stop_call(session.pid)
    if session.state == UNREACHABLE:
        part = session.metadata.get("mismatch")
        if part is not None:
            return [texts("state_mismatch", part=part, evidence=evidence)]
        return [texts("state_unreachable", evidence=evidence)]
    if session.state == STALE:
        return [texts("state_stale", stop=stop)]
    if session.state not in (EXITED, LOST):
        return []
    said = [texts("state_lost", evidence=evidence)]
    if session.state == EXITED:
        said = [texts("state_exited", how=how(session))]
    why = cause(session, texts)
    said += [texts("cause", cause=why)] if why else []
    return said + survivor_lines(session)


def survivor_lines(session: AsyncSession) -> list[str]:
    return still_running(sessions.survivors(session), sessions.survivors_more(session))


def still_running(left: Sequence[Mapping[str, Any]], more: int) -> list[str]:
    if not left:
        return []
    return [wording.STILL_RUNNING.format(count=len(left) + more, named=sessions.named(left, more))]


def gap_lines(session: AsyncSession, views: Iterable[View], texts: Texts) -> list[str]:
    """What of the output is missing, and why."""
    said = []
    gaps = session.metadata.get("gaps") or []
    for view in views:
        if view.dropped_before:
            said.append(texts("dropped", stream=view.stream, offset=view.dropped_before))
        for gap in gaps:
            if gap["stream"] == view.stream:
                count = gap["to"] - gap["from"]
                said.append(texts("gap", stream=view.stream, offset=gap["from"], count=count))
    return said


def stream_facts(session: AsyncSession, views: Iterable[View]) -> dict[str, Any]:
    """What is shown of each stream, and where that is in its log."""
    gaps = session.metadata.get("gaps") or []
    found: dict[str, Any] = {"output": {}, "streams": {}}
    for view in views:
        first = next((gap["from"] for gap in gaps if gap["stream"] == view.stream), None)
        found["output"][view.stream] = view.text
        found["streams"][view.stream] = {**view.to_json(), "incompleteFrom": first}
    return found
