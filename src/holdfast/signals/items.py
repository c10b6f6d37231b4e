"""What of a batch of signals is told, and as what: items in the order in which an agent reads them. Pure.

Sessions come in the order of their first signal; inside, events, matches, the rest, the lifecycle last. What a later
signal of the same batch made out of date is settled and not shown.
"""

from __future__ import annotations

from . import facts
from .budget import DIGEST, EVENT, FAILURE, MATCH, NOTICE, PROGRESS, SUCCESS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from .budget import Limits
    from .quoting import Quoter
    from .records import Signal

EVENTS, WATCH, REST, ENDING, AGAIN = "events", "watch", "rest", "ending", "again"

# Of a session that has ended, whether it asks, runs on or is ready does not matter any more.
_OVER_WITH_THE_END = ("heartbeat", "needs_input", "deadline", "ready")
# Of these the newest says all; how many came before is said with it.
_NEWEST = ("heartbeat", "needs_input", "deadline")
AGENTS = ("local_agent", "in_process_teammate", "remote_agent", "local_task", "local_workflow", "dream")
# A key over several lines may begin before the first line that is shown.
_LOOKED_BACK_LINES = 64


class Line:
    """A line of output, or with `gap` the place where so many were left out."""

    __slots__ = ("gap", "offset", "stream", "text")

    def __init__(self, text: str, stream: str = "", offset: int | None = None, gap: int = 0) -> None:
        self.text = text
        self.stream = stream
        self.offset = offset
        self.gap = gap


class Body:
    """Lines that stand below a heading: the last ones where not all fit (of a summary, `head`, the first). `missing` is
    where lines begin that are not even here; `cut` says that there is more before them."""

    __slots__ = ("_first", "_gaps", "_quoted", "_spoken", "cut", "head", "lines", "missing", "most", "name")

    def __init__(
        self,
        lines: Sequence[Line],
        *,
        name: str = "",
        most: int,
        cut: bool = False,
        head: bool = False,
        missing: Mapping[str, int] | None = None,
    ) -> None:
        self.lines = lines
        self.name = name
        self.most = min(most, len(lines))
        self.cut = cut
        self.head = head
        self.missing = dict(missing or {})
        self._quoted: list[str] = []
        # The first line of each stream, how many lines were left out before we came, and how many are here.
        self._first: dict[str, int] = {}
        self._gaps = self._spoken = 0
        for number, line in enumerate(lines):
            self._gaps += line.gap
            self._spoken += not line.gap
            if not line.gap and line.offset is not None:
                self._first.setdefault(line.stream, number)

    def quote(self, quoter: Quoter, chars: int | None) -> None:
        """Only what may be shown, and a little before it. No line is longer than all of them may be."""
        if self.head:
            self._quoted = quoter.lines([line.text for line in self.lines[: self.most]], chars)
        else:
            looked_at = self.lines[max(0, len(self.lines) - self.most - _LOOKED_BACK_LINES) :]
            quoted = quoter.lines([line.text for line in looked_at], chars)
            self._quoted = quoted[len(quoted) - self.most :]

    def shown(self, count: int) -> list[tuple[Line, str]]:
        """So many of the lines, each with its text as it may be quoted."""
        if self.head:
            return list(zip(self.lines[:count], self._quoted[:count], strict=True))
        first = len(self.lines) - count
        return list(zip(self.lines[first:], self._quoted[self.most - count :], strict=True)) if count else []

    def left_out(self, count: int) -> int:
        """How many lines are not shown when `count` are, those that are not here included."""
        return self._gaps + self._spoken - self.counted(count)

    def counted(self, count: int) -> int:
        """How many of `count` are lines of output."""
        return sum(1 for line, _ in self.shown(count) if not line.gap)

    def cursor(self, count: int) -> dict[str, int]:
        """By stream, where the first line stands that is not shown."""
        found = dict(self.missing)
        for stream, number in self._first.items():
            # Of matches only the first has an offset: the others are read from there on.
            hidden = count < len(self.lines) if self.head else number < len(self.lines) - count
            offset = self.lines[number].offset
            if hidden and offset is not None:
                found[stream] = min(offset, found.get(stream, offset))
        return found


class Item:
    """One heading and what stands below it. `signal` is the one that is told, `signals` all that it stands for."""

    __slots__ = (
        *("bodies", "chars_max", "closed", "error", "group", "lines_max", "named", "number", "rank", "session"),
        *("signal", "signals", "survivor_count", "survivors"),
    )

    def __init__(self, group: str, rank: int, signals: Sequence[Signal], bodies: Sequence[Body] = ()) -> None:
        self.group = group
        self.rank = rank
        self.signals = list(signals)
        self.signal = self.signals[-1]
        self.session = self.signal.session
        self.bodies = list(bodies)
        # What its output may take; without one only the session and the message set a limit.
        self.chars_max: int | None = None
        self.lines_max: int | None = None
        self.closed = False
        # Of an agent: what went wrong.
        self.error = ""
        # What lives on of a session that ended: those that are named, and how many in all.
        self.survivors: list[Mapping[str, Any]] = []
        self.survivor_count = 0
        # As it stands in the message: does it say the session's name, and the how manieth is it of its kind?
        self.named = True
        self.number = 0

    @property
    def most(self) -> int:
        all_of_them = sum(body.most for body in self.bodies)
        return all_of_them if self.lines_max is None else min(self.lines_max, all_of_them)

    def quote(self, quoter: Quoter) -> None:
        for body in self.bodies:
            body.quote(quoter, self.chars_max)

    def within_chars(self) -> int:
        """How many lines its own limit on characters allows."""
        count = self.most
        while count and self.chars_max is not None and self._chars(count) > self.chars_max:
            count -= 1
        return count

    def _chars(self, count: int) -> int:
        parts = zip(self.bodies, self.share(count), strict=True)
        return sum(len(text) + 1 for body, part in parts for _, text in body.shown(part)) - 1

    @property
    def redelivered(self) -> bool:
        return any(signal.redelivered for signal in self.signals)

    @property
    def failed(self) -> bool:
        return self.rank == FAILURE

    def share(self, count: int) -> list[int]:
        """How many lines each body gets. The first is worth more, but leaves the second a third."""
        if len(self.bodies) < 2:
            return [min(count, body.most) for body in self.bodies]
        first, second = self.bodies[0].most, self.bodies[1].most
        given = min(first, max(count - second, -(-2 * count // 3)))
        return [given, min(second, count - given), *(0 for _ in self.bodies[2:])]

    def left_out(self, count: int) -> int:
        return sum(body.left_out(part) for body, part in zip(self.bodies, self.share(count), strict=True))

    def counted(self, count: int) -> int:
        return sum(body.counted(part) for body, part in zip(self.bodies, self.share(count), strict=True))

    def cursor(self, count: int) -> dict[str, int]:
        found: dict[str, int] = {}
        for body, part in zip(self.bodies, self.share(count), strict=True):
            found.update(body.cursor(part))
        return found


def arrange(signals: Sequence[Signal], limits: Limits) -> list[Item]:
    by_session: dict[str | None, list[Signal]] = {}
    for signal in signals:
        by_session.setdefault(signal.session, []).append(signal)
    return [item for each in by_session.values() for item in _of_session(each, limits)]


def _of_session(signals: Sequence[Signal], limits: Limits) -> list[Item]:
    again = [signal for signal in signals if signal.replayed]
    fresh = [signal for signal in signals if not signal.replayed]
    items = [_again(again)] if again else []
    ended = [signal for signal in fresh if is_end(signal)]
    if ended:
        fresh = [signal for signal in fresh if signal.variant not in _OVER_WITH_THE_END]
    events = [signal for signal in fresh if signal.variant == "event"]
    if events:
        items.append(_events(events, limits))
    items += [_watch(signal, limits) for signal in fresh if signal.variant == "watch"]
    left = [signal for signal in fresh if signal.variant == "survivors"]
    if ended:
        fresh = [signal for signal in fresh if signal.variant != "survivors"]
    items += _rest(fresh, limits)
    restarting = [signal for signal in fresh if signal.variant == "lifecycle" and not is_end(signal)]
    if restarting and not ended:
        items.append(Item(REST, NOTICE, restarting))
    if ended:
        items.append(_ending([*restarting, *left, *ended], limits))
    return items


def is_end(signal: Signal) -> bool:
    return signal.variant == "lifecycle" and signal.fields.get("phase") == "ended"


def _again(signals: Sequence[Signal]) -> Item:
    """One line, however much it was: the ending says most."""
    return Item(AGAIN, DIGEST, sorted(signals, key=is_end))


def _events(signals: Sequence[Signal], limits: Limits) -> Item:
    lines: list[Line] = []
    missing: dict[str, int] = {}
    for signal in signals:
        fields = signal.fields
        told = [
            Line(facts.text(each, "text"), facts.stream(each), facts.number(each, "offset"))
            for each in facts.tables(fields, "lines")
        ]
        suppressed = facts.count(fields, "suppressed")
        if suppressed:
            # A digest shows the first line and the last ones, anything else the newest.
            place = 1 if fields.get("level") == "digest" and len(told) > 1 else 0
            told.insert(place, Line("", gap=suppressed))
            for stream, offset in _offsets(fields.get("cursor")).items():
                missing[stream] = min(offset, missing.get(stream, offset))
        lines += told
    item = Item(EVENTS, EVENT, signals, [Body(lines, most=limits.session_lines, missing=missing)] if lines else [])
    item.closed = any(signal.fields.get("closing") is True for signal in signals)
    return item


def _watch(signal: Signal, limits: Limits) -> Item:
    stream, offset = facts.stream(signal.fields), facts.number(signal.fields, "offset")
    lines = [
        Line(text, stream, offset if number == 0 else None)
        for number, text in enumerate(facts.texts(signal.fields, "lines"))
    ]
    return Item(WATCH, MATCH, [signal], [Body(lines, most=limits.session_lines, head=True)] if lines else [])


def _rest(signals: Sequence[Signal], limits: Limits) -> list[Item]:
    shown: list[list[Signal]] = []
    newest: dict[str, list[Signal]] = {}
    for signal in signals:
        if signal.variant in ("event", "watch", "lifecycle"):
            continue
        if signal.variant in _NEWEST:
            # Those before it go with it, and it stands where the last one came.
            kept = newest.setdefault(signal.variant, [])
            shown = [each for each in shown if each is not kept]
            kept.append(signal)
            shown.append(kept)
        else:
            shown.append([signal])
    return [_notice(each, limits) for each in shown]


def _notice(signals: Sequence[Signal], limits: Limits) -> Item:
    signal = signals[-1]
    rank = PROGRESS if signal.variant == "heartbeat" else NOTICE
    return Item(REST, rank, signals, list(_notice_bodies(signal, limits)))


def _notice_bodies(signal: Signal, limits: Limits) -> Iterable[Body]:
    fields = signal.fields
    most = limits.session_lines
    if signal.variant == "heartbeat":
        yield from _tail({"text": fields.get("tail"), "offset": fields.get("offset")}, facts.stream(fields), most)
    elif signal.variant == "needs_input":
        yield from _texts([facts.text(fields, "line")], most)
    elif signal.variant == "overflow":
        yield from _texts([_held_back(each) for each in facts.tables(fields, "sessions")], most, head=True)
    elif signal.variant == "unknown":
        yield from _texts([_as_json(fields)], most)


def _ending(signals: Sequence[Signal], limits: Limits) -> Item:
    signal = signals[-1]
    failed = status(signal) != "completed"
    lines = limits.failed_lines if failed else limits.completed_lines
    item = Item(ENDING, FAILURE if failed else SUCCESS, signals)
    item.lines_max = lines
    item.chars_max = limits.failed_chars if failed else limits.completed_chars
    metadata = facts.table(signal.snapshot, "metadata")
    if signal.kind in AGENTS:
        item.bodies = list(_texts(facts.text(metadata, "summary").splitlines(), lines, head=True))
        item.error = facts.text(metadata, "error")
    elif signal.kind != "monitor":
        # Of a monitor every line was told by its events.
        tails = facts.table(signal.fields, "tail")
        for stream in ("stderr", "stdout", "tty") if failed else ("stdout", "stderr", "tty"):
            item.bodies += _tail(facts.table(tails, stream), stream, lines)
    _find_survivors(item)
    return item


def status(signal: Signal) -> str:
    told = facts.text(signal.fields, "status") or facts.text(signal.snapshot, "status")
    if told in ("completed", "failed", "killed"):
        return told
    return "completed" if facts.number(signal.fields, "code") == 0 else "failed"


def _find_survivors(item: Item) -> None:
    """As the last word on them says, which may be that nobody is left."""
    for signal in reversed(item.signals):
        if signal.variant == "survivors":
            item.survivors = facts.tables(signal.fields, "pids")
            item.survivor_count = len(item.survivors)
            return
    exit = facts.table(item.signal.snapshot, "exit")
    item.survivors = facts.tables(exit, "survivors")
    item.survivor_count = facts.count(exit, "survivors") or len(item.survivors)


def _tail(tail: Mapping[str, Any], stream: str, most: int) -> list[Body]:
    text = facts.text(tail, "text").rstrip()
    if not text:
        return []
    offset = facts.number(tail, "offset")
    lines = [Line(each, stream, offset if number == 0 else None) for number, each in enumerate(text.split("\n"))]
    return [Body(lines, name=stream, most=most, cut=tail.get("cut") is True)]


def _texts(texts: Sequence[str], most: int, *, head: bool = False) -> Iterable[Body]:
    lines = [Line(text) for text in texts]
    if any(text.strip() for text in texts):
        yield Body(lines, most=most, head=head)


def _offsets(cursor: object) -> dict[str, int]:
    """The text of a cursor, as far as it is one."""
    if not isinstance(cursor, str):
        return {}
    parts = (part.partition(":") for part in cursor.split(","))
    found = {stream: int(digits) for stream, _, digits in parts if digits.isascii() and digits.isdecimal()}
    return facts.offsets({"cursor": found}, "cursor")


def _held_back(session: Mapping[str, Any]) -> str:
    stream = facts.stream(session)
    where = f" at {stream}:{facts.count(session, 'offset')}" if stream else ""
    return (
        f"{facts.text(session, 'id')}: {facts.count(session, 'matches')}, first{where}: {facts.text(session, 'first')}"
    )


def _as_json(fields: Mapping[str, Any]) -> str:
    import json

    try:
        return json.dumps({key: value for key, value in fields.items() if key != "variant"}, ensure_ascii=False)
    except RecursionError:
        return "(nested too deeply)"
