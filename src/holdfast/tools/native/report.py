"""One session in an answer: how it stands, then its output as far as it fits, then what to do next. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model import COMPLETED, FINAL_STATES
from .budget import clip, cost, cut
from .lines import shown
from .wording import Sheet, call, called, cursor, ending, lines_and_bytes, quoted, ref, size, standing, waits

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ...host.search import Hit
    from ...model import Snapshot
    from .excerpt import Excerpt
    from .lines import Line

BUDGET = 8000
# What worked needs no reading.
SUCCESS_BUDGET = 2000

_OLDER_NAMED = 5


def status(session: Snapshot, *said: str) -> str:
    """The line about a session: who, how it stands, what was found, where its output ends."""
    parts = [f"{called(session)} {standing(session)}", *filter(None, said)]
    if session.exit is None:
        parts += filter(None, [readiness(session), waits(session)])
    elif session.exit.survivors:
        count = len(session.exit.survivors) + session.exit.survivors_more
        parts.append(f"{count} of its processes live on, {call('stop', ids=session.id)} ends them")
    return ", ".join(parts)


def readiness(session: Snapshot) -> str:
    found: dict[str, Any] | None = session.metadata.get("ready")
    if not found:
        return ""
    if found.get("ok"):
        return f"ready on {str(found.get('probe')).replace(':', ' ', 1)}"
    return f"not ready: {quoted(str(found['detail']), 160)}" if found.get("ok") is False else "not ready yet"


def budget_for(session: Snapshot) -> int:
    return SUCCESS_BUDGET if session.status == COMPLETED else BUDGET


def next_step(session: Snapshot) -> str:
    """What a model does with a session that runs on; empty where it is over."""
    if session.state in FINAL_STATES:
        return ""
    name = ref(session)
    if session.needs_input or session.metadata.get("input_state") == "at_prompt":
        return call("send", id=name, text="...")
    if session.tty:
        return f"{call('send', id=name, text='...')} or {call('wait', ids=name)}"
    ready = session.metadata.get("ready")
    if not ready:
        return call("wait", ids=name)
    return call("wait", ids=name, until="ready") if ready.get("ok") is None else ""


def facts(session: Snapshot, **more: Any) -> dict[str, Any]:
    """The same for programs."""
    found: dict[str, Any] = {
        "id": session.id,
        "name": session.name,
        "status": session.status,
        "state": session.state,
        "exit": None if session.exit is None else _exit(session),
        "cursor": session.cursor,
    }
    if session.needs_input:
        found["needs_input"] = session.needs_input
    if "ready" in session.metadata:
        found["ready"] = session.metadata["ready"]
    return {**found, **more}


def _exit(session: Snapshot) -> dict[str, Any]:
    exit = session.exit
    assert exit is not None
    survivors = [{"pid": each.get("pid"), "command": each.get("command")} for each in exit.survivors]
    return {
        "code": exit.code,
        "signal": exit.signal,
        "cause": exit.cause,
        "by": exit.by,
        "text": ending(session),
        "survivors": survivors,
    }


class Output:
    """Puts an excerpt on a sheet, and says what it left out."""

    def __init__(self, sheet: Sheet, session: Snapshot) -> None:
        self._sheet = sheet
        self._session = session
        self.left: list[dict[str, Any]] = []

    def add(self, found: Excerpt, budget: int, *, ahead: float = 0.25) -> None:
        """In the order of arrival; of a failure, what it said on stderr first. Streams are told apart where both
        spoke."""
        if found.lost:
            self._sheet.add(f"... {size(found.lost)} before this are gone: the log keeps the newest only")
        failed = self._session.state in FINAL_STATES and self._session.status != COMPLETED
        if len(found.streams) < 2:
            self._cut(found, budget, ahead, "")
        elif failed and ahead < 1:
            for stream, share in _shares(found, budget):
                self._sheet.add(f"{stream}:")
                self._cut(found.only(stream), share, ahead, stream)
        else:
            found.lines = [_marked(line) for line in found.lines]
            self._cut(found, budget, ahead, "")

    def _cut(self, found: Excerpt, budget: int, ahead: float, stream: str) -> None:
        parts = cut(found.lines, budget, ahead=ahead, gap=found.gap)
        self._sheet.output([line.text for line in parts.head])
        lines = sum(line.times for line in parts.left) + sum(count for count, _ in found.passed.values())
        # Less than a line is what overwrote itself.
        if lines:
            count = sum(line.end - line.begin for line in parts.left) + sum(each for _, each in found.passed.values())
            self._leave(found, parts.head, lines, count, stream, ahead)
        self._sheet.output([line.text for line in parts.tail])

    def _leave(self, found: Excerpt, head: Sequence[Line], lines: int, count: int, stream: str, ahead: float) -> None:
        at = {**found.begin, **{line.stream: line.end for line in head}}
        since = cursor(at)
        name = ref(self._session)
        again: dict[str, Any] = {"id": name, "since": since}
        if stream:
            again["stream"] = stream
        self.left.append({"lines": lines, "bytes": count, "since": since})
        if ahead >= 1:
            self._sheet.add(f"... {lines_and_bytes(lines, count)} more; {call('read', **again)}")
            return
        search = call("read", id=name, search="...")
        self._sheet.add(f"... {lines_and_bytes(lines, count)} left out; {call('read', **again)} or {search}")


def _marked(line: Line) -> Line:
    return line._replace(text=Sheet.STDERR + line.text) if line.stream == "stderr" else line


def _shares(found: Excerpt, budget: int) -> list[tuple[str, int]]:
    """Half each; what one does not need goes to the other."""
    first, second = found.streams[:2]
    needs = [cost(found.only(stream).lines) if stream not in found.passed else budget for stream in (first, second)]
    half = budget // 2
    mine = max(half, budget - needs[1]) if needs[0] > half else needs[0]
    return [(first, max(1, mine)), (second, max(1, budget - mine))]


def hits(sheet: Sheet, session: Snapshot, found: Sequence[Hit], budget: int, limit: int) -> int:
    """Matches with the lines around them, newest first; where older ones are. How many are shown."""
    room = budget
    told = 0
    for hit in found:
        block = [f"  {line}" for line in hit.before] + [f"> {hit.text}"] + [f"  {line}" for line in hit.after]
        block = [_short(line, max(80, budget // 4)) for line in block]
        price = sum(len(line) + 1 for line in block) + 24
        if told and price > room:
            break
        room -= price
        sheet.add(f"at {hit.stream}:{hit.offset}")
        sheet.output(block)
        told += 1
    older = found[told:]
    if older:
        places = ", ".join(f"{hit.stream}:{hit.offset}" for hit in older[:_OLDER_NAMED])
        more = ", ..." if len(older) > _OLDER_NAMED or len(found) == limit else ""
        step = call("read", id=ref(session), since=f"{older[0].stream}:{older[0].offset}", stream=older[0].stream)
        sheet.add(f"... older matches at {places}{more}; {step}")
    return told


def _short(line: str, limit: int) -> str:
    return clip(shown(line), limit)
