"""The facts of a session in this toolset's words, the text of its streams, and the answers of its tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core import processes as tree
from ...errors import NotFound
from ...model import EXITED, LIVE_STATES, LOST, RUNNING, STALE, UNREACHABLE
from ...terminal.text import all_visible
from ..base import Answer
from ..owner_sessions import both_ends, end_of
from . import words
from .style import DrainStyle as Style
from .words import TRUNCATED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from ...sessions.aio import AsyncSession
    from ...sessions.log import Chunk, Page
    from .toolset import Dominds
    from .words import Texts


# The facts of a session: how long its start waited, how much is shown of it, which processes are left.


VIEW_LINES = 500
WAIT_S = 5
SHELL = "bash"

# An exit record names this many survivors: only these can be found by their pid.
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


def start_fact(session: AsyncSession, name: str, default: Any) -> Any:
    """One of `start_metadata`."""
    return (session.metadata.get("dominds") or {}).get(name, default)


def survivors(session: AsyncSession) -> tuple[list[Mapping[str, Any]], int]:
    """The processes left by a command that has ended: those that are named, and how many more there are."""
    return ([], 0) if session.exit is None else first_named(session.exit.survivors, session.exit.survivors_more)


def first_named(processes: Sequence[Mapping[str, Any]], more: int) -> tuple[list[Mapping[str, Any]], int]:
    return list(processes[:_NAMED_MAX]), more + max(0, len(processes) - _NAMED_MAX)


def something_lives(session: AsyncSession) -> bool:
    return session.state in LIVE_STATES or bool(survivors(session)[0])


def may_print(session: AsyncSession) -> bool:
    """Whether more of its output can still be captured."""
    return session.state not in (LOST, STALE) and something_lives(session)


async def find(tools: Dominds, pid: int | None, id: str | None = None) -> list[AsyncSession]:
    """The session that is meant, and then earlier ones that had the same pid."""
    if id is not None:
        try:
            session = await tools.find(id)
        except NotFound:
            return []
        return [session] if tools.is_here(session) else []
    assert pid is not None
    found = []
    for each in await tools.hf.sessions(all=True, owner=tools.owner):
        left = any(process["pid"] == pid for process in survivors(each)[0])
        if tools.is_here(each) and (each.pid == pid or left):
            # How sure it is that the pid is this session's now.
            sure = 3 if each.state == RUNNING and each.pid == pid else 2 if left else int(something_lives(each))
            found.append((sure, each.started_at or "", each.id, each))
    return [each[-1] for each in sorted(found, key=lambda each: each[:3], reverse=True)]


def named(processes: Sequence[Mapping[str, Any]], more: int = 0, *, states: bool = False, here: bool = True) -> str:
    """`12 sleep, 13 node`, and `more` as a count. With `states` also what each is doing, to explain why it lives on;
    only processes `here` can be looked at."""
    texts = []
    processes, more = first_named(processes, more)
    for each in processes:
        command = words.one_line(str(each.get("command") or "?")).split() or ["?"]
        text = f"{each['pid']} {command[0].rpartition('/')[2]}"
        if states:
            process = tree.look(each["pid"]) if here else None
            # Another process may have got the pid since the stop.
            same = process is not None and process.start == each.get("start")
            what = [] if process is None or not same else [_STATES.get(process.state, process.state)]
            what += [str(each["error"])] if each.get("error") else []
            text += f" ({', '.join(what)})" if what else ""
        texts.append(text)
    return ", ".join(texts) + (f" and {more} more" if more else "")


# The answer of a tool: a status, the text, and the same facts as fields.


SUCCESS, PARTIAL, FAILURE = "success", "partial_failure", "failure"


def answer(
    status: str,
    lines: Sequence[str],
    data: Mapping[str, Any],
    blocks: Sequence[str] = (),
    behind: Sequence[str] = (),
) -> Answer:
    """`lines` are our words, `blocks` the output. The data has the output by stream, and `behind` in its message."""
    facts = {"status": status, "message": "\n".join((*lines, *behind)), **data}
    return Answer("\n".join((*lines, *blocks)), facts, error=status == FAILURE)


def facts(session: AsyncSession) -> dict[str, Any]:
    """The data of every answer about a session."""
    left, more = survivors(session)
    return {
        "session": session.id,
        "pid": session.pid,
        "command": session.command,
        "state": session.state,
        "exit": None if session.exit is None else session.exit.to_json(),
        "startedAt": session.started_at,
        "endedAt": session.ended_at,
        "survivors": left,
        "survivorsMore": more,
    }


def how(session: AsyncSession) -> str:
    return words.exit_words(*((session.exit.code, session.exit.signal) if session.exit else (None, None)))


def cause(session: AsyncSession, texts: Texts) -> str:
    """Why it ended; empty for a plain exit."""
    if session.exit is None or session.exit.cause == "exit":
        return ""
    by = session.exit.by
    return texts("by", cause=session.exit.cause, by=by) if by else session.exit.cause


def not_found(pid: int | None, id: str | None = None) -> Answer:
    text = words.NOT_FOUND.format(pid=pid if id is None else id)
    return answer(FAILURE, [text], {"pid": pid, "error": {"code": "not-found"}})


def same_pid_lines(tools: Dominds, found: Sequence[AsyncSession], pid: int | None) -> list[str]:
    if len(found) < 2:
        return []
    return [tools.texts("older_pid", pid=pid, id=found[0].id, older=", ".join(each.id for each in found[1:]))]


def state_lines(session: AsyncSession, texts: Texts) -> list[str]:
    """Its state, where it does not simply run."""
    evidence = session.metadata.get("evidence", "")
    stop = words.stop_call(session.pid)
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
    return said + still_running(*survivors(session))


def still_running(left: Sequence[Mapping[str, Any]], more: int) -> list[str]:
    if not left:
        return []
    return [words.STILL_RUNNING.format(count=len(left) + more, named=named(left, more))]


def gap_lines(session: AsyncSession, views: Iterable[View], texts: Texts) -> list[str]:
    """Which output is missing, and why."""
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
    """The shown text of each stream, and where it is in the log."""
    gaps = session.metadata.get("gaps") or []
    found: dict[str, Any] = {"output": {}, "streams": {}}
    for view in views:
        first = next((gap["from"] for gap in gaps if gap["stream"] == view.stream), None)
        found["output"][view.stream] = view.text
        found["streams"][view.stream] = {**view.to_json(), "incompleteFrom": first}
    return found


# The text of one stream as an agent sees it: the last lines, how many are before them, and what a cap left out.


STREAMS = ("stdout", "stderr")
# A session that the owner started by other means may have a terminal.
TERMINAL = "tty"
# The share of a long text's limit that its beginning gets.
_HEAD_SHARE = 0.67
# More than any log holds, and a number that the machine can count to.
_LINES_MAX = 1 << 40


class View:
    """`text` begins at offset `start` and ends at `end`; `scrolled` lines of the stream are before it."""

    __slots__ = ("_chunks", "dropped_before", "empty", "end", "omitted", "scrolled", "start", "stream", "text")

    def __init__(self, stream: str, page: Page, end: int, scrolled: int) -> None:
        self.stream = stream
        self.text = Style.harmless(all_visible(page.text.removesuffix("\n")))
        # A blank line has no text, but it is output.
        self.empty = not page.text
        self.end = end
        self.start = page.chunks[0][1] if page.chunks else end
        self.scrolled = scrolled
        self.dropped_before = page.dropped_before.get(stream, 0)
        # What the cap left out: how many characters, and between which offsets.
        self.omitted: dict[str, int] | None = None
        self._chunks = page.chunks

    def to_json(self) -> dict[str, Any]:
        return {
            "start": self.start,
            "end": self.end,
            "linesScrolledOut": self.scrolled,
            "droppedBefore": self.dropped_before,
            "omitted": self.omitted,
        }

    def cap(self, limit: int, tool: str) -> None:
        """Leave out the middle of a text that is longer than `limit`."""
        text = self.text
        if len(text) <= limit:
            return
        facts = {"tool": tool, "chars": len(text), "limit": limit}
        # The mark counts; it is longest with the largest number.
        room = max(0, limit - len(TRUNCATED.format(**facts, omitted=len(text))) - 2)
        head, tail = both_ends(text, room, _HEAD_SHARE)
        begin, end = _offset(self._chunks, text, head, up=False), _offset(self._chunks, text, tail, up=True)
        self.omitted = {"from": begin, "to": end, "chars": tail - head}
        mark = TRUNCATED.format(**facts, omitted=tail - head)
        self.text = f"{text[:head]}\n{mark}\n{text[tail:]}"

    def tail(self, limit: int) -> tuple[str, bool]:
        return end_of(self.text, limit)


async def last_lines(session: AsyncSession, stream: str, lines: int) -> View:
    return await _view(session, stream, await session.last(min(lines, _LINES_MAX), stream=stream))


async def lines_since(session: AsyncSession, stream: str, offset: int) -> View:
    return await _view(session, stream, await session.read(f"{stream}:{offset}", stream=stream))


async def _view(session: AsyncSession, stream: str, page: Page) -> View:
    if not page.chunks:
        return View(stream, page, session.ends.get(stream, 0), 0)
    _, offset, data = page.chunks[-1]
    return View(stream, page, offset + len(data), await session.lines_before(stream, page.chunks[0][1]))


def _offset(chunks: list[Chunk], text: str, position: int, *, up: bool) -> int:
    """The log offset of a character of the text. Lines of the text are lines of the log; in a line whose bytes are not
    all text it is the beginning of the line, or with `up` its end."""
    number = text.count("\n", 0, position)
    first = text.rfind("\n", 0, position) + 1
    line = text[first:].partition("\n")[0]
    at = chunks[0][1]
    rest = b""
    for index, (_, offset, data) in enumerate(chunks):
        ends = data.count(b"\n")
        at, rest = offset, data
        if number <= ends:
            rest = data.split(b"\n", number)[-1]
            at = offset + len(data) - len(rest)
            rest += b"".join(later for _, _, later in chunks[index + 1 :])
            break
        number -= ends
    raw = rest.partition(b"\n")[0]
    if raw == line.encode("utf-8", "replace"):
        return at + len(text[first:position].encode("utf-8", "replace"))
    return at + len(raw) if up else at
