"""What fits into one message: a line for every session first, then what matters most, in fair shares.

Everything is measured in the lines as they will stand there. Who does not fit is counted by the caller.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ..config import Config

# What is paid for in this order, once every session has its line.
FAILURE, NOTICE, MATCH, EVENT, PROGRESS, SUCCESS, DIGEST = RANKS = range(7)


class Limits:
    """How much a message, a session in it, and a line may hold; the names are those of the settings in `[drain]`."""

    __slots__ = (
        *("chars", "lines", "session_chars", "session_lines", "line_chars", "label_chars"),
        *("failed_lines", "failed_chars", "completed_lines", "completed_chars"),
    )

    def __init__(
        self,
        *,
        chars: int = 8000,
        lines: int = 200,
        session_chars: int = 3000,
        session_lines: int = 50,
        line_chars: int = 500,
        label_chars: int = 120,
        failed_lines: int = 30,
        failed_chars: int = 2000,
        completed_lines: int = 5,
        completed_chars: int = 400,
    ) -> None:
        self.chars = chars
        self.lines = lines
        self.session_chars = session_chars
        self.session_lines = session_lines
        self.line_chars = line_chars
        self.label_chars = label_chars
        self.failed_lines = failed_lines
        self.failed_chars = failed_chars
        self.completed_lines = completed_lines
        self.completed_chars = completed_chars

    @classmethod
    def of(cls, config: Config) -> Limits:
        return cls(**{name: getattr(config, f"drain_{name}") for name in cls.__slots__})


class Cost:
    """Characters, each line with its newline, and lines."""

    __slots__ = ("chars", "lines")

    def __init__(self, chars: int, lines: int) -> None:
        self.chars = chars
        self.lines = lines

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

    def __repr__(self) -> str:
        return f"<{self.chars} characters, {self.lines} lines>"


class Offer:
    """One thing that a session has to tell. `text(n)` are its lines with `n` lines of output in it, up to `most`;
    `final` is the one that says how the session ended."""

    __slots__ = ("final", "most", "rank", "session", "text")

    def __init__(
        self, session: Hashable, rank: int, text: Callable[[int], Sequence[str]], *, most: int = 0, final: bool = False
    ) -> None:
        self.session = session
        self.rank = rank
        self.text = text
        self.most = most
        self.final = final


def allot(offers: Sequence[Offer], limits: Limits, frame: Cost) -> list[int | None]:
    """For each offer the number of output lines it gets, or None when it is not told at all. `frame` is what the
    message costs without any."""
    left = Cost(limits.chars, limits.lines) - frame
    of_session = Cost(limits.session_chars, limits.session_lines)
    granted: dict[int, int] = {}
    paid: dict[int, Cost] = {}
    purses: dict[Hashable, Cost] = {}

    for number in _leads(offers):
        price = Cost.of(offers[number].text(0))
        if price.within(left):
            left = left - price
            # The line of a session is never too long for it.
            purses[offers[number].session] = Cost(*_no_less_than_nothing(of_session - price))
            granted[number], paid[number] = 0, price

    for rank in RANKS:
        waiting = [n for n, each in enumerate(offers) if each.rank == rank and each.session in purses]
        for turn, number in enumerate(waiting):
            offer = offers[number]
            already = paid.get(number, Cost(0, 0))
            purse = purses[offer.session]
            room = already + left.share(len(waiting) - turn).least(purse)
            if number not in granted:
                # What it says without output is worth more than the share of those that come after it.
                price = Cost.of(offer.text(0))
                if not price.within(left.least(purse)):
                    continue
                granted[number] = 0
                room = Cost(max(room.chars, price.chars), max(room.lines, price.lines))
            granted[number] = _most_within(offer, room)
            price = Cost.of(offer.text(granted[number])) - already
            left = left - price
            purses[offer.session] = purse - price
    return [granted.get(number) for number in range(len(offers))]


def _leads(offers: Sequence[Offer]) -> list[int]:
    """The offer of each session that is its one line: how it ended, else what matters most. Failures first, so that
    what is only counted in the end are successes."""
    leads: dict[Hashable, int] = {}
    for number, offer in enumerate(offers):
        best = leads.setdefault(offer.session, number)
        if (not offer.final, offer.rank) < (not offers[best].final, offers[best].rank):
            leads[offer.session] = number
    return sorted(leads.values(), key=lambda number: offers[number].rank)


def _most_within(offer: Offer, room: Cost) -> int:
    """How many lines of output fit; none always do."""

    def fits(lines: int) -> bool:
        return Cost.of(offer.text(lines)).within(room)

    # The whole may be cheaper than all but a line, which has to say that one is missing.
    if offer.most and fits(offer.most):
        return offer.most
    low, high = 0, offer.most
    while low + 1 < high:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _no_less_than_nothing(cost: Cost) -> tuple[int, int]:
    return max(0, cost.chars), max(0, cost.lines)
