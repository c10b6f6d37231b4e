"""What all styles have in common. A style words and frames; what is told, and how much of it, is not its affair."""

from __future__ import annotations

from .. import endings, phrases, words
from ..items import ENDING, EVENTS, WATCH

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from ..items import Body, Item, Line
    from ..quoting import Quoter


# Kinds of ours are shorter; those of a host are its own.
_KIND_CHARACTERS = 40
_PARKED_NAMED = 10


class Left:
    """What did not fit: sessions by how they stand, and things of sessions that are told otherwise."""

    __slots__ = ("items", "sessions")

    def __init__(self, sessions: dict[str, int], items: int) -> None:
        self.sessions = sessions
        self.items = items

    def __bool__(self) -> bool:
        return bool(self.sessions or self.items)


class Plan:
    """What the message is about, before it is known what of it fits. `parked` are signals that it only names."""

    __slots__ = ("items", "parked", "sessions", "signals")

    def __init__(self, items: Sequence[Item], signals: int, parked: Sequence[str] = ()) -> None:
        self.items = items
        self.parked = parked
        self.sessions = len({item.session for item in items})
        self.signals = signals

    @property
    def endings(self) -> int:
        return sum(1 for item in self.items if item.group == ENDING)


class Style:
    """The words that every style has; what is particular to one is in its own module."""

    name = ""
    # Is the message made of tags, so that no `<` of output may open or close one?
    tags = False
    # What a line of output may not begin with where nothing stands before it.
    guard: re.Pattern[str] | None = None
    # Where output that is given as it stands imitates the beginning or the end of such a message, or a line that the
    # tools of this family add to output. A match gets a backslash before it, or `&lt;` for its `<`.
    imitated: re.Pattern[str] | None = None

    @classmethod
    def harmless(cls, text: str) -> str:
        """Output of a program for an answer of a tool: as it was printed, but for what imitates our own words."""
        return text if cls.imitated is None else cls.imitated.sub(_disarmed, text)

    def order(self, items: Sequence[Item]) -> list[Item]:
        return list(items)

    def is_silent(self, item: Item) -> bool:
        """Settled without a word."""
        return False

    def numbers(self, item: Item) -> bool:
        """Does it count when items are numbered?"""
        return True

    def most(self, item: Item) -> int:
        """How many lines of output of it this style can show."""
        return item.within_chars()

    def item(self, item: Item, shown: int, quoter: Quoter, plan: Plan) -> list[str]:
        raise NotImplementedError

    def compose(self, plan: Plan, parts: Sequence[tuple[Item, list[str]]], left: Left, quoter: Quoter) -> list[str]:
        """The message of these parts. Without any it is what frames them."""
        raise NotImplementedError

    def read(self, item: Item, offsets: dict[str, int], quoter: Quoter) -> str:
        """Where what was left out can be read, as words behind `suppressed,`."""
        where = words.cursor(item.signal, offsets)
        return f"read with {where}" if where else "read its output"

    # What the styles share.

    def subject(self, item: Item, quoter: Quoter) -> str:
        """`b7k2m9qa1 [local_bash] "make test"`; the home's own signals are of no session."""
        if item.session is None:
            return "supervisor:"
        called = words.name(item.signal) if item.named else ""
        return f"{quoter.label(item.session)} [{self.kind(item, quoter)}]" + (
            f" {quoter.quoted(called)}" if called else ""
        )

    def kind(self, item: Item, quoter: Quoter) -> str:
        return quoter.label(item.signal.kind, _KIND_CHARACTERS) or "unknown"

    def data(self, quoter: Quoter) -> str:
        """Which text is output."""
        return "lines quoted from programs are" if quoter.plain else 'text after "|" is program output:'

    def body(self, item: Item, shown: int, quoter: Quoter) -> list[str]:
        """The lines below a heading."""
        streams = {line.stream for body in item.bodies for line in body.lines if line.stream}
        named = "stderr" in streams or len(streams) > 1
        found: list[str] = []
        for body, part in zip(item.bodies, item.share(shown), strict=True):
            if body.name and part:
                found += self._before_tail(item, body, part, quoter)
            found += self._rows(body.shown(part), named, quoter)
            found += self.cut_off(item, body, part)
        if item.group == ENDING and not item.most:
            found += filter(None, [endings.no_output(item)])
        if item.error:
            found.append(f"error: {quoter.label(item.error, 400)}")
        if item.group == EVENTS and item.closed:
            found.append("(stream closed)")
        return found

    def _rows(self, rows: Sequence[tuple[Line, str]], named: bool, quoter: Quoter) -> list[str]:
        found: list[str] = []
        for line, text in rows:
            if line.gap and found:
                # Before the first line the heading says it.
                found.append(f"({words.lines(line.gap)} suppressed here)")
            elif not line.gap:
                found += quoter.before([text], [line.stream] if named else [])
        return found

    def _before_tail(self, item: Item, body: Body, part: int, quoter: Quoter) -> list[str]:
        left_out = body.left_out(part)
        if left_out:
            return [f"({words.lines(left_out)} suppressed, {self.read(item, body.cursor(part), quoter)})"]
        return [f"(earlier {body.name} left out)"] if body.cut else []

    def cut_off(self, item: Item, body: Body, part: int) -> list[str]:
        """Of texts that are read from their beginning, and stand nowhere else."""
        left_out = body.left_out(part) if body.head and item.group != WATCH else 0
        return [f"({words.lines(left_out)} left out)"] if left_out else []

    def suppressed(self, item: Item, shown: int, quoter: Quoter) -> str:
        """Of events and matches: how many lines are not here, and where they begin."""
        return phrases.suppressed(item, shown, self.read(item, item.cursor(shown), quoter))

    def counted(self, plan: Plan, left: Left) -> list[str]:
        """Below all that is told: what is only counted, and what comes no more."""
        return list(filter(None, [self.more(left), self._parked(plan)]))

    def _parked(self, plan: Plan) -> str:
        count = len(plan.parked)
        if not count:
            return ""
        rest = f" and {count - _PARKED_NAMED} more" if count > _PARKED_NAMED else ""
        named = ", ".join(plan.parked[:_PARKED_NAMED]) + rest
        noun = "signal was" if count == 1 else "signals were"
        return f"{count} {noun} given up on, since who took them failed each time: {named}; see hold signals --parked"

    def more(self, left: Left) -> str:
        """What is only counted; empty where all is told."""
        said = []
        sessions = sum(left.sessions.values())
        if sessions:
            stand = ", ".join(f"{count} {how}" for how, count in left.sessions.items())
            noun = "session" if sessions == 1 else "sessions"
            said.append(f"and {sessions} more {noun} ({stand}), counted and not named: list sessions to see them")
        if left.items:
            said.append(
                f"{left.items} more {'notice' if left.items == 1 else 'notices'} of the sessions above left out"
            )
        return "; ".join(said)


def _disarmed(found: re.Match[str]) -> str:
    text = found.group()
    return "&lt;" + text[1:] if text.startswith("<") else "\\" + text
