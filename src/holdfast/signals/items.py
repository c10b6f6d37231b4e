"""Which items of a batch a message has, and how much of each fits. No I/O.

Sessions come in the order of their first signal; inside, events, matches, the rest, the lifecycle last. What a later
signal of the same batch made out of date is settled and not shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import typed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
    from typing import Any

    from ..config import Config
    from .lines import Signal
    from .redact import Quoter


# What fits into one message: a line for every session first, then what matters most, in equal shares.
#
# Costs are those of the lines as they will stand in the message. The caller counts what does not fit.


# The order in which room is given to the items, once every session has its line.
FAILURE, NOTICE, MATCH, EVENT, PROGRESS, SUCCESS, DIGEST = RANKS = range(7)


class Limits:
    """How much a message, a session in it, and a line may hold: the settings of `[drain]`, unless given."""

    chars: int
    lines: int
    session_chars: int
    session_lines: int
    line_chars: int
    label_chars: int
    failed_lines: int
    failed_chars: int
    completed_lines: int
    completed_chars: int

    def __init__(self, config: Config | None = None, **given: int) -> None:
        if config is None:
            from ..config import Config

            config = Config()
        for name in Limits.__annotations__:
            setattr(self, name, given[name] if name in given else getattr(config, f"drain_{name}"))


@dataclass(slots=True)
class Cost:
    """Characters, each line with its newline, and lines."""

    chars: int
    lines: int

    @classmethod
    def of(cls, lines: Sequence[str]) -> Cost:
        return cls(sum(map(len, lines)) + len(lines), len(lines))

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.chars + other.chars, self.lines + other.lines)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.chars - other.chars, self.lines - other.lines)

    def within(self, other: Cost) -> bool:
        return self.chars <= other.chars and self.lines <= other.lines

    def least(self, other: Cost) -> Cost:
        return Cost(min(self.chars, other.chars), min(self.lines, other.lines))

    def share(self, among: int) -> Cost:
        return Cost(self.chars // among, self.lines // among)


@dataclass(slots=True)
class Offer:
    """One item of a session. `text(n)` are its lines with `n` lines of output, up to `most`; `final` is the one that
    says how the session ended."""

    session: Hashable
    rank: int
    text: Callable[[int], Sequence[str]]
    most: int = 0
    final: bool = False


def allot(offers: Sequence[Offer], limits: Limits, frame: Cost) -> list[int | None]:
    """For each offer the number of output lines it gets, or None when it is not shown at all. `frame` is what the
    message costs without any item."""
    left = Cost(limits.chars, limits.lines) - frame
    of_session = Cost(limits.session_chars, limits.session_lines)
    granted: dict[int, int] = {}
    paid: dict[int, Cost] = {}
    budgets: dict[Hashable, Cost] = {}

    for number in _one_line_each(offers):
        price = Cost.of(offers[number].text(0))
        if price.within(left):
            left = left - price
            # The line of a session is shown even where it is longer than a session may be.
            budgets[offers[number].session] = Cost(*_not_negative(of_session - price))
            granted[number], paid[number] = 0, price

    for rank in RANKS:
        waiting = [n for n, each in enumerate(offers) if each.rank == rank and each.session in budgets]
        for turn, number in enumerate(waiting):
            offer = offers[number]
            already = paid.get(number, Cost(0, 0))
            budget = budgets[offer.session]
            room = already + left.share(len(waiting) - turn).least(budget)
            if number not in granted:
                # Its heading comes before the shares of later items.
                price = Cost.of(offer.text(0))
                if not price.within(left.least(budget)):
                    continue
                granted[number] = 0
                room = Cost(max(room.chars, price.chars), max(room.lines, price.lines))
            granted[number], price = _most_within(offer, room)
            left = left - (price - already)
            budgets[offer.session] = budget - (price - already)
    return [granted.get(number) for number in range(len(offers))]


def _one_line_each(offers: Sequence[Offer]) -> list[int]:
    """The offer for the one line of each session: its end, or else what matters most. Failures first: where not all
    fit, successes are only counted."""
    leads: dict[Hashable, int] = {}
    for number, offer in enumerate(offers):
        best = leads.setdefault(offer.session, number)
        if (not offer.final, offer.rank) < (not offers[best].final, offers[best].rank):
            leads[offer.session] = number
    return sorted(leads.values(), key=lambda number: offers[number].rank)


def _most_within(offer: Offer, room: Cost) -> tuple[int, Cost]:
    """How many lines of output fit, and what that costs; no lines always fit."""
    # All lines may cost less than all but one, because nothing has to say that one is missing.
    cost = Cost.of(offer.text(offer.most))
    if not offer.most or cost.within(room):
        return offer.most, cost
    low, high = 0, offer.most
    while low + 1 < high:
        middle = (low + high) // 2
        if Cost.of(offer.text(middle)).within(room):
            low = middle
        else:
            high = middle
    return low, Cost.of(offer.text(low))


def _not_negative(cost: Cost) -> tuple[int, int]:
    return max(0, cost.chars), max(0, cost.lines)


# The items of a batch, in the order in which an agent reads them.


EVENTS, WATCH, FOLDED, REST, ENDING, REPLAYED = "events", "watch", "folded", "rest", "ending", "replayed"

# A message shows the matches of so many sessions. When more match at once, the others are counted and named together.
MATCHING_SESSIONS_MAX = 15

# These no longer matter when the session has ended.
_OVER_WITH_THE_END = ("heartbeat", "needs_input", "deadline", "ready")
# Only the newest of these is shown, with the number of earlier ones.
_NEWEST = ("heartbeat", "needs_input", "deadline")
AGENTS = ("local_agent", "in_process_teammate", "remote_agent", "local_task", "local_workflow", "dream")
# A key over several lines may begin before the first line that is shown.
_LOOKED_BACK_LINES = 64


@dataclass(slots=True)
class Line:
    """A line of output, or with `gap` the place where so many were left out."""

    text: str
    stream: str = ""
    offset: int | None = None
    gap: int = 0


class Body:
    """Lines below a heading. Where not all fit, the last ones are shown, or with `head` the first ones. `missing`: by
    stream, where the lines begin that the record does not have. `cut`: the output has more before these lines."""

    __slots__ = ("_first", "_gaps", "_quoted", "_printed", "cut", "head", "lines", "missing", "most", "name")

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
        # The first line of each stream, how many lines the record left out, and how many it has.
        self._first: dict[str, int] = {}
        self._gaps = self._printed = 0
        for number, line in enumerate(lines):
            self._gaps += line.gap
            self._printed += not line.gap
            if not line.gap and line.offset is not None:
                self._first.setdefault(line.stream, number)

    def quote(self, quoter: Quoter, chars: int | None) -> None:
        """Quote only what may be shown, and a little before it. No line is longer than all of them may be."""
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
        """How many lines are not shown when `count` are, those that the record does not have included."""
        return self._gaps + self._printed - self.counted(count)

    def counted(self, count: int) -> int:
        """How many of `count` are lines of output."""
        return sum(1 for line, _ in self.shown(count) if not line.gap)

    def cursor(self, count: int) -> dict[str, int]:
        """By stream, where the first line is that is not shown."""
        found = dict(self.missing)
        for stream, number in self._first.items():
            # Of matches only the first has an offset: the others are read from there on.
            hidden = count < len(self.lines) if self.head else number < len(self.lines) - count
            offset = self.lines[number].offset
            if hidden and offset is not None:
                found[stream] = min(offset, found.get(stream, offset))
        return found


class Item:
    """One heading and the lines below it. `signal` is the one it describes, `signals` all that it is about."""

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
        # Processes of an ended session that still run: those that are named, and how many in all.
        self.survivors: list[Mapping[str, Any]] = []
        self.survivor_count = 0
        # In the message: does it say the name of the session, and which number does it have?
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
    return _fold_matches([item for each in by_session.values() for item in _of_session(each, limits)], limits)


def match_count(signal: Signal) -> int:
    """How many lines a `watch` signal is about, those it does not show included."""
    fields = signal.fields
    matched = fields.get("matched")  # which of the lines matched, where others are there for context
    shown = len(matched) if isinstance(matched, list) else len(typed.texts(fields, "lines"))
    return shown + typed.count(fields, "more")


def _fold_matches(items: list[Item], limits: Limits) -> list[Item]:
    """Make one item of the matches of all sessions after the first ones, in the place of the first of them."""
    matching = dict.fromkeys(item.session for item in items if item.group == WATCH)
    folded = set(list(matching)[MATCHING_SESSIONS_MAX:])
    matches = [item for item in items if item.group == WATCH and item.session in folded]
    if not matches:
        return items
    first: dict[str | None, dict[str, Any]] = {}
    for match in matches:
        fields = match.signal.fields
        line = next(iter(typed.texts(fields, "lines")), "")
        where = {"stream": fields.get("stream"), "offset": fields.get("offset")}
        seen = first.setdefault(match.session, {"id": match.session, "matches": 0, "first": line, **where})
        seen["matches"] += match_count(match.signal)
    item = Item(FOLDED, MATCH, [match.signal for match in matches])
    item.bodies = list(_texts([_held_back(each) for each in first.values()], limits.session_lines, head=True))
    item.session = None
    place = items.index(matches[0])
    kept = [each for each in items if each not in matches]
    return [*kept[:place], item, *kept[place:]]


def _of_session(signals: Sequence[Signal], limits: Limits) -> list[Item]:
    replayed = [signal for signal in signals if signal.replayed]
    fresh = [signal for signal in signals if not signal.replayed]
    items = [_replayed(replayed)] if replayed else []
    ended = [signal for signal in fresh if signal.ends_session]
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
    restarting = [signal for signal in fresh if signal.variant == "lifecycle" and not signal.ends_session]
    if restarting and not ended:
        items.append(Item(REST, NOTICE, restarting))
    if ended:
        items.append(_ending([*restarting, *left, *ended], limits))
    return items


def _replayed(signals: Sequence[Signal]) -> Item:
    """One line for all replayed signals, about the end if it is among them."""
    return Item(REPLAYED, DIGEST, sorted(signals, key=lambda signal: signal.ends_session))


def _events(signals: Sequence[Signal], limits: Limits) -> Item:
    lines: list[Line] = []
    missing: dict[str, int] = {}
    for signal in signals:
        fields = signal.fields
        shown = [
            Line(typed.text(each, "text"), typed.stream(each), typed.number(each, "offset"))
            for each in typed.tables(fields, "lines")
        ]
        suppressed = typed.count(fields, "suppressed")
        if suppressed:
            # A digest shows the first line and the last ones, anything else the newest.
            place = 1 if fields.get("level") == "digest" and len(shown) > 1 else 0
            shown.insert(place, Line("", gap=suppressed))
            for stream, offset in _offsets(fields.get("cursor")).items():
                missing[stream] = min(offset, missing.get(stream, offset))
        lines += shown
    item = Item(EVENTS, EVENT, signals, [Body(lines, most=limits.session_lines, missing=missing)] if lines else [])
    item.closed = any(signal.fields.get("closing") is True for signal in signals)
    return item


def _watch(signal: Signal, limits: Limits) -> Item:
    stream, offset = typed.stream(signal.fields), typed.number(signal.fields, "offset")
    lines = [
        Line(text, stream, offset if number == 0 else None)
        for number, text in enumerate(typed.texts(signal.fields, "lines"))
    ]
    return Item(WATCH, MATCH, [signal], [Body(lines, most=limits.session_lines, head=True)] if lines else [])


def _rest(signals: Sequence[Signal], limits: Limits) -> list[Item]:
    shown: list[list[Signal]] = []
    newest: dict[str, list[Signal]] = {}
    for signal in signals:
        if signal.variant in ("event", "watch", "lifecycle"):
            continue
        if signal.variant in _NEWEST:
            # It replaces those before it, at the place of the last one.
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
        yield from _tail({"text": fields.get("tail"), "offset": fields.get("offset")}, typed.stream(fields), most)
    elif signal.variant == "needs_input":
        yield from _texts([typed.text(fields, "line")], most)
    elif signal.variant == "overflow":
        yield from _texts([_held_back(each) for each in typed.tables(fields, "sessions")], most, head=True)
    elif signal.variant == "unknown":
        yield from _texts([_as_json(fields)], most)


def _ending(signals: Sequence[Signal], limits: Limits) -> Item:
    signal = signals[-1]
    failed = status(signal) != "completed"
    lines = limits.failed_lines if failed else limits.completed_lines
    item = Item(ENDING, FAILURE if failed else SUCCESS, signals)
    item.lines_max = lines
    item.chars_max = limits.failed_chars if failed else limits.completed_chars
    metadata = typed.table(signal.snapshot, "metadata")
    if signal.kind in AGENTS:
        item.bodies = list(_texts(typed.text(metadata, "summary").splitlines(), lines, head=True))
        item.error = typed.text(metadata, "error")
    elif signal.kind != "monitor":
        # The events of a monitor have had every line.
        tails = typed.table(signal.fields, "tail")
        for stream in ("stderr", "stdout", "tty") if failed else ("stdout", "stderr", "tty"):
            item.bodies += _tail(typed.table(tails, stream), stream, lines)
    _find_survivors(item)
    return item


def status(signal: Signal) -> str:
    recorded = typed.text(signal.fields, "status") or typed.text(signal.snapshot, "status")
    if recorded in ("completed", "failed", "killed"):
        return recorded
    return "completed" if typed.number(signal.fields, "code") == 0 else "failed"


def _find_survivors(item: Item) -> None:
    """From the last signal about them, which may say that all have ended."""
    for signal in reversed(item.signals):
        if signal.variant == "survivors":
            item.survivors = typed.tables(signal.fields, "pids")
            item.survivor_count = len(item.survivors)
            return
    exit = typed.table(item.signal.snapshot, "exit")
    item.survivors = typed.tables(exit, "survivors")
    item.survivor_count = typed.count(exit, "survivors") or len(item.survivors)


def _tail(tail: Mapping[str, Any], stream: str, most: int) -> list[Body]:
    text = typed.text(tail, "text").rstrip()
    if not text:
        return []
    offset = typed.number(tail, "offset")
    lines = [Line(each, stream, offset if number == 0 else None) for number, each in enumerate(text.split("\n"))]
    return [Body(lines, name=stream, most=most, cut=tail.get("cut") is True)]


def _texts(texts: Sequence[str], most: int, *, head: bool = False) -> Iterable[Body]:
    lines = [Line(text) for text in texts]
    if any(text.strip() for text in texts):
        yield Body(lines, most=most, head=head)


def _offsets(cursor: object) -> dict[str, int]:
    """The offsets in the text of a cursor; empty where it is invalid."""
    if not isinstance(cursor, str):
        return {}
    parts = (part.partition(":") for part in cursor.split(","))
    found = {stream: int(digits) for stream, _, digits in parts if digits.isascii() and digits.isdecimal()}
    return typed.offsets({"cursor": found}, "cursor")


def _held_back(session: Mapping[str, Any]) -> str:
    stream = typed.stream(session)
    where = f" at {stream}:{typed.count(session, 'offset')}" if stream else ""
    matches = f"{typed.text(session, 'id')}: {typed.count(session, 'matches')}"
    return f"{matches}, first{where}: {typed.text(session, 'first')}"


def _as_json(fields: Mapping[str, Any]) -> str:
    import json

    try:
        return json.dumps({key: value for key, value in fields.items() if key != "variant"}, ensure_ascii=False)
    except RecursionError:
        return "(nested too deeply)"
