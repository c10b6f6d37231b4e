"""Signals into one message for an agent: bounded, in order, and hard to take for anything else. Pure.

Rendering acknowledges nothing and forgets nothing: what is left out is counted here, and is in the log.
"""

from __future__ import annotations

from functools import partial

from . import budget
from .budget import Cost, Limits, Offer
from .items import AGAIN, ENDING, EVENTS, WATCH, arrange, status
from .quoting import Quoter
from .redact import redact as redact_all
from .styles import Left, Plan, Style, named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .items import Item
    from .records import Signal

QUOTES = ("prefix", "plain")


class Message:
    """`ids` are of all signals that went into it, also of those that it does not name: they are settled together.
    `shown` and `suppressed` count the lines of events and matches. Empty, it is false."""

    __slots__ = ("ids", "role_hint", "shown", "suppressed", "text")

    def __init__(self, text: str, ids: Sequence[str], *, shown: int = 0, suppressed: int = 0) -> None:
        self.text = text
        self.ids = list(ids)
        self.role_hint = "environment"
        self.shown = shown
        self.suppressed = suppressed

    def __bool__(self) -> bool:
        return bool(self.text)

    def __repr__(self) -> str:
        return f"<Message of {len(self.ids)} signals, {len(self.text)} characters>"


def render(
    signals: Sequence[Signal],
    style: str | Style = "native",
    *,
    limits: Limits | None = None,
    quote: str = "prefix",
    parked: Sequence[str] = (),
    redact: Callable[[str], str] = redact_all,
) -> Message:
    """All of them as one message. `quote="plain"` leaves out what stands before each line of output.
    `parked` are ids of signals that nobody will be given any more; the message names them."""
    chosen = named(style) if isinstance(style, str) else style
    limits = limits or Limits()
    if quote not in QUOTES:
        from ..errors import BadArgument

        raise BadArgument("quote", f"{quote[:40]!a} is not known", "give " + " or ".join(QUOTES))
    quoter = Quoter(
        redact,
        tags=chosen.tags,
        guard=chosen.guard,
        plain=quote == "plain",
        line_chars=limits.line_chars,
        label_chars=limits.label_chars,
    )
    items = [item for item in chosen.order(arrange(signals, limits)) if not chosen.is_silent(item)]
    ids = [signal.id for signal in signals]
    if not items and not parked:
        return Message("", ids)
    return _Drain(items, ids, chosen, limits, quoter, parked).message()


class _Drain:
    def __init__(
        self,
        items: Sequence[Item],
        ids: Sequence[str],
        style: Style,
        limits: Limits,
        quoter: Quoter,
        parked: Sequence[str],
    ) -> None:
        self._items = items
        self._ids = ids
        self._style = style
        self._limits = limits
        self._quoter = quoter
        self._plan = Plan(items, len(ids), parked)
        for item in items:
            item.quote(quoter)
            # As long as it can get; which number it is turns out in the end.
            item.number = len(items)

    def message(self) -> Message:
        offers = [
            Offer(
                item.session,
                item.rank,
                partial(self._lines, item),
                most=self._style.most(item),
                final=item.group == ENDING,
            )
            for item in self._items
        ]
        everything = Left({_stand(item): len(self._items) for item in self._items}, len(self._items))
        frame = Cost.of(self._style.compose(self._plan, [], everything, self._quoter))
        granted = budget.allot(offers, self._limits, frame)
        told = [(item, shown) for item, shown in zip(self._items, granted, strict=True) if shown is not None]
        self._number([item for item, _ in told])
        parts = [(item, self._lines(item, shown)) for item, shown in told]
        lines = self._style.compose(self._plan, parts, self._left([item for item, _ in told]), self._quoter)
        counted = [
            (item, shown) for item, shown in zip(self._items, granted, strict=True) if item.group in (EVENTS, WATCH)
        ]
        return Message(
            "\n".join(lines),
            self._ids,
            shown=sum(item.counted(shown or 0) for item, shown in counted),
            suppressed=sum(item.left_out(shown or 0) for item, shown in counted),
        )

    def _lines(self, item: Item, shown: int) -> list[str]:
        lines = self._style.item(item, shown, self._quoter, self._plan)
        assert not any("\n" in line for line in lines)
        return lines

    def _number(self, told: Sequence[Item]) -> None:
        sessions = set()
        number = 0
        for item in told:
            number += self._style.numbers(item)
            item.number = number
            item.named = item.session not in sessions
            sessions.add(item.session)

    def _left(self, told: Sequence[Item]) -> Left:
        sessions = {item.session for item in told}
        unnamed: dict[str | None, str] = {}
        left_items = 0
        for item in self._items:
            if item.session not in sessions:
                unnamed[item.session] = _stand(item)
            elif item not in told:
                left_items += 1
        stands = list(unnamed.values())
        return Left({stand: stands.count(stand) for stand in dict.fromkeys(stands)}, left_items)


def _stand(item: Item) -> str:
    """How a session that is only counted stands."""
    if item.group == ENDING:
        return status(item.signal)
    return "replayed" if item.group == AGAIN else "with news"
