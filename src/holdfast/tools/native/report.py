"""One session in an answer: how it stands, then its output as far as it fits, then what to do next. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...model import COMPLETED, FINAL_STATES
from .budget import BUDGET, BUDGET_MAX, clip, cost, cut
from .lines import shown
from .wording import Sheet, call, called, cursor, ending, lines_and_bytes, quoted, ref, size, standing, waits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ...host.search import Hit
    from ...model import Snapshot
    from .budget import Cut
    from .excerpt import Excerpt
    from .lines import Line

# What worked needs no reading.
SUCCESS_BUDGET = 2000

_OLDER_NAMED = 5
# What is longer in a line than it was in the log: characters that were spelled out, and those for bytes that are none.
_SPELLED = re.compile(r"\\x[0-9a-f]{2}|\\u\{|\ufffd|\t")

# How test runners, compilers and interpreters begin the line that says what is wrong.
TROUBLE = (
    r"^(?:E  |\s*(?:FAIL|FAILED|ERROR|not ok|--- FAIL|Traceback|panic|fatal|[Ee]rror|[A-Za-z.]+Error)\b"
    r"|.{0,120}\b(?:error|fatal|panicked)(?:\[\w+\])?: |.*\bFAILED$|\s*(?:\x{2717}|\x{2715}|\x{d7}|\x{25cf}) )"
)


def status(session: Snapshot, *said: str) -> str:
    """The line about a session: who, how it stands, what was found, where its output ends."""
    parts = [f"{called(session)} {standing(session)}", *filter(None, said)]
    if session.exit is None:
        parts += filter(None, [readiness(session), waits(session)])
    elif session.exit.survivors:
        count = len(session.exit.survivors) + session.exit.survivors_more
        ended = "are being ended" if session.stopping else f"live on, {call('stop', ids=session.id)} ends them"
        parts.append(f"{count} of its processes {ended}")
    return ", ".join(parts)


def readiness(session: Snapshot) -> str:
    found: dict[str, Any] | None = session.metadata.get("ready")
    if not found:
        return ""
    if found.get("ok"):
        return f"ready on {str(found.get('probe')).replace(':', ' ', 1)}"
    return f"not ready: {quoted(str(found['detail']), 160)}" if found.get("ok") is False else "not ready yet"


def failed(session: Snapshot) -> bool:
    return session.state in FINAL_STATES and session.status != COMPLETED


def budget_for(session: Snapshot) -> int:
    return SUCCESS_BUDGET if session.status == COMPLETED else BUDGET


def next_step(session: Snapshot) -> str:
    """What a model does with a session that runs on; empty where it is over."""
    if session.state in FINAL_STATES:
        return ""
    name = ref(session)
    if session.needs_input or session.metadata.get("input_state") == "at_prompt":
        return call("send", id=name, text="...", **({} if session.tty else {"submit": True}))
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
        self._both = sum(end > 0 for end in session.ends.values()) > 1
        self.left: list[dict[str, Any]] = []

    def add(self, found: Excerpt, budget: int, *, trouble: Sequence[Hit] = (), raw: bool = False) -> None:
        """In the order of arrival; of a failure, what it said on stderr first. Streams are told apart where both
        spoke. `trouble`: lines that look like the reason of a failure; the first that would be left out is shown."""
        self._tell_lost(found)
        if not raw:
            found.fit(budget)
        if len(found.streams) > 1 and failed(self._session):
            for stream, share in _shares(found, budget):
                self._sheet.add(f"{stream}:")
                self._cut(found.only(stream), share, stream, [hit for hit in trouble if hit.stream == stream])
        else:
            self._cut(self._told_apart(found, None), budget, "", trouble)

    def first(self, found: Excerpt, budget: int, stream: str | None, *, raw: bool = False) -> None:
        """From the beginning on, as much as fits, and how to go on."""
        self._tell_lost(found)
        if not raw:
            found.fit(budget)
        parts = cut(self._told_apart(found, stream).lines, budget, ahead=1, gap=found.gap)
        self._sheet.output([line.text for line in parts.head])
        if left := self._left(found, parts):
            self._sheet.add(f"... {lines_and_bytes(left['lines'], left['bytes'])} more; {self._again(left, stream)}")
        self._tell_clipped(parts)

    def last(self, found: Excerpt, budget: int, stream: str | None, *, raw: bool = False) -> None:
        """From the end back, as much as fits."""
        if not raw:
            found.fit(budget)
        parts = cut(self._told_apart(found, stream).lines, budget, ahead=0, gap=found.gap)
        if left := self._left(found, parts):
            said = f"... {lines_and_bytes(left['lines'], left['bytes'])} left out; {self._again(left, stream)}"
            self._sheet.add(said)
        self._sheet.output([line.text for line in parts.tail or parts.head])
        self._tell_clipped(parts)

    def _told_apart(self, found: Excerpt, stream: str | None) -> Excerpt:
        if self._both and stream is None:
            found.lines = [_marked(line) for line in found.lines]
        return found

    def _tell_lost(self, found: Excerpt) -> None:
        if found.lost:
            self._sheet.add(f"... {size(found.lost)} before this are gone: the log keeps the newest only")

    def _cut(self, found: Excerpt, budget: int, stream: str, trouble: Sequence[Hit] = ()) -> None:
        parts = cut(found.lines, budget, gap=found.gap)
        reason: list[str] = []
        if trouble and (hit := _first_left(found, parts, trouble)) is not None:
            reason = [clip(shown(line), budget // 16) for line in (*hit.before, hit.text, *hit.after)]
            while sum(len(line) + 1 for line in reason) > budget // 4:
                reason.pop()
            parts = cut(found.lines, budget - sum(len(line) + 1 for line in reason), gap=found.gap)
        self._sheet.output([line.text for line in parts.head])
        if left := self._left(found, parts):
            search = call("read", id=ref(self._session), search="...")
            said = f"... {lines_and_bytes(left['lines'], left['bytes'])} left out"
            self._sheet.add(f"{said}; {self._again(left, stream)} or {search}")
            if reason:
                self._sheet.add("... among them:")
                self._sheet.output(reason)
                self._sheet.add("... and so on")
        self._sheet.output([line.text for line in parts.tail])
        self._tell_clipped(parts)

    def _left(self, found: Excerpt, parts: Cut) -> dict[str, Any] | None:
        lines = sum(line.times for line in parts.left) + sum(count for count, _ in found.passed.values())
        if not lines:
            return None  # less than a line is what overwrote itself
        count = sum(line.end - line.begin for line in parts.left) + sum(each for _, each in found.passed.values())
        left = {"lines": lines, "bytes": count, "since": cursor(_behind(found, parts.head))}
        self.left.append(left)
        return left

    def _tell_clipped(self, parts: Cut) -> None:
        """The way into the middle of the first line that was cut."""
        if not parts.clipped:
            return
        line, ahead = parts.clipped[0]
        marked = len(Sheet.STDERR) if line.text.startswith(Sheet.STDERR) else 0
        before = line.text[marked:ahead]
        spelled = line.times > 1 or _SPELLED.search(before) is not None
        # What was cleaned away takes bytes too: it may begin before what is missing, never behind it.
        begin = line.begin if spelled else line.begin + len(before.encode())
        since = f"{line.stream}:{begin}"
        self.left.append({"lines": 0, "bytes": line.end - begin, "since": since})
        more: dict[str, Any] = {"stream": line.stream} if self._both else {}
        if spelled:
            more["budget"] = min(BUDGET_MAX, len(line.text) + 1000)
        count = len(parts.clipped)
        said = "1 line is cut" if count == 1 else f"{count} lines are cut, the first"
        self._sheet.add(f"... {said} here: {call('read', id=ref(self._session), since=since, **more)}")

    def _again(self, left: Mapping[str, Any], stream: str | None) -> str:
        again = {"id": ref(self._session), "since": left["since"]}
        return call("read", **again, **({"stream": stream} if stream else {}))


def _behind(found: Excerpt, head: Sequence[Line]) -> dict[str, int]:
    """Where the first line that is left out begins."""
    return {**found.begin, **{line.stream: line.end for line in head}}


def _first_left(found: Excerpt, parts: Cut, hits: Sequence[Hit]) -> Hit | None:
    """The first of them that nobody would see."""
    begin = _behind(found, parts.head)
    end = {line.stream: line.begin for line in reversed(parts.tail)}
    if not parts.left and not found.passed:
        return None
    left = (hit for hit in hits if begin.get(hit.stream, 0) <= hit.offset < end.get(hit.stream, hit.offset + 1))
    return next(left, None)


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
    """Matches with the lines around them, newest first, so many at most; where older ones are. How many are shown. One
    more than `limit` in `found` tells that there may be others."""
    room = budget
    told = 0
    for hit in found:
        block = [f"  {line}" for line in hit.before] + [f"> {hit.text}"] + [f"  {line}" for line in hit.after]
        block = [_short(line, max(80, budget // 4)) for line in block]
        if told == limit or (told and _price(block) > room):
            break
        near = block if told else _nearest(block, len(hit.before), room)
        room -= _price(near)
        sheet.add(f"at {hit.stream}:{hit.offset}")
        sheet.output(near)
        if left := len(block) - len(near):
            sheet.add(f"... {left} line{'' if left == 1 else 's'} around it left out")
        told += 1
    older = found[told:]
    if older:
        places = ", ".join(f"{hit.stream}:{hit.offset}" for hit in older[:_OLDER_NAMED])
        more = ", ..." if len(older) > _OLDER_NAMED or len(found) > limit else ""
        step = call("read", id=ref(session), since=f"{older[0].stream}:{older[0].offset}", stream=older[0].stream)
        sheet.add(f"... older matches at {places}{more}; {step}")
    return told


def _price(block: Sequence[str]) -> int:
    return sum(len(line) + 1 for line in block) + 24


def _nearest(block: list[str], at: int, room: int) -> list[str]:
    """The line of a match, the number `at`, and as many of those around it as fit, the farthest left out first."""
    first, last, price = 0, len(block) - 1, _price(block)
    while price > room and first < last:
        if at - first > last - at:
            price -= len(block[first]) + 1
            first += 1
        else:
            price -= len(block[last]) + 1
            last -= 1
    return block[first : last + 1]


def _short(line: str, limit: int) -> str:
    return clip(shown(line), limit)
