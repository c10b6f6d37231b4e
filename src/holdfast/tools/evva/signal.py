"""A signal as this family knows it: one ending, or one line."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ...signals import facts, phrases
from ...signals.budget import Limits
from ...signals.items import arrange
from ...signals.quoting import Quoter
from ...signals.redact import redact
from .snapshot import moment
from .words import OP_EVENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ...signals.records import Signal as Record
    from .catalog import Daemon
    from .snapshot import DaemonSnapshot

EVENT = OP_EVENT


@dataclass(frozen=True)
class Lifecycle:
    status: str
    cause: str | None = None
    exit_code: int | None = None
    exit_signal: str | None = None
    survivors: int = 0


@dataclass(frozen=True)
class Event:
    """`suppressed` > 0: so many lines before this one were left out by a limit, from `cursor` on. `variant` is another
    than `event` for what is no line of output; `line` then says what it is."""

    line: str
    closing: bool = False
    stream: str = "stdout"
    offset: int | None = None
    suppressed: int = 0
    variant: str = EVENT
    cursor: str | None = None


@dataclass(frozen=True)
class Signal:
    """Exactly one of `lifecycle` and `event`. `id` is that of its record: the lines of one notice share it."""

    daemon_id: str
    kind: str
    at: datetime | None = None
    snapshot: DaemonSnapshot | None = None
    lifecycle: Lifecycle | None = None
    event: Event | None = None
    id: str = ""
    redelivered: bool = False
    replayed: bool = False

    @property
    def is_lifecycle(self) -> bool:
        return self.lifecycle is not None

    @property
    def is_event(self) -> bool:
        return self.event is not None


def new_event_signal(daemon: Daemon, line: str, closing: bool = False) -> Signal:
    """For `emit`: one line of a daemon that the host runs itself, as the daemon is now."""
    shot = daemon.snapshot()
    return Signal(daemon.id, shot.kind, datetime.now(UTC), shot, event=Event(line, closing))


def new_lifecycle_signal(daemon: Daemon, status: str) -> Signal:
    """For `emit`: a daemon that the host runs itself has this status now."""
    shot = daemon.snapshot()
    return Signal(daemon.id, shot.kind, datetime.now(UTC), shot, lifecycle=Lifecycle(status))


def op(signal: Signal) -> str:
    """What it is called as a change."""
    if signal.event is not None:
        return signal.event.variant
    return "" if signal.lifecycle is None else signal.lifecycle.status


def of(record: Record, shot: Callable[[Record], DaemonSnapshot | None]) -> list[Signal]:
    """One for an ending, one for each line of a notice, one for anything else that was routed here."""
    if record.variant == "lifecycle" and record.fields.get("phase") == "ended":
        parts: list[tuple[Lifecycle | None, Event | None]] = [(_lifecycle(record), None)]
    elif record.variant == EVENT:
        parts = [(None, event) for event in _lines(record.fields)]
    else:
        parts = [(None, _notice(record))]
    snapshot = shot(record)
    return [
        Signal(
            daemon_id=record.session or "",
            kind=record.kind or "",
            at=moment(record.at) or datetime.now(UTC),
            snapshot=snapshot,
            lifecycle=lifecycle,
            event=event,
            id=record.id,
            redelivered=record.redelivered,
            replayed=record.replayed,
        )
        for lifecycle, event in parts
    ]


def _lifecycle(record: Record) -> Lifecycle:
    fields, exit = record.fields, facts.table(record.snapshot, "exit")
    return Lifecycle(
        status=facts.text(fields, "status"),
        cause=facts.text(fields, "cause") or None,
        exit_code=facts.number(fields, "code"),
        exit_signal=facts.text(fields, "signal") or None,
        survivors=facts.count(exit, "survivors"),
    )


def _lines(fields: Mapping[str, object]) -> Iterator[Event]:
    lines = facts.tables(fields, "lines")
    suppressed = facts.count(fields, "suppressed")
    cursor = facts.text(fields, "cursor") or None
    # Those left out stand before the newest lines; in a digest behind the first one.
    marked = 1 if fields.get("level") == "digest" and len(lines) > 1 else 0
    for number, line in enumerate(lines):
        yield Event(
            facts.text(line, "text"),
            stream=facts.stream(line) or "stdout",
            offset=facts.number(line, "offset"),
            suppressed=suppressed if number == marked else 0,
            cursor=cursor if number == marked else None,
        )
    closing = fields.get("closing") is True
    if closing or not lines:
        yield Event("", closing=closing, suppressed=0 if lines else suppressed, cursor=None if lines else cursor)


def _notice(record: Record) -> Event:
    """In the words of whoever told it, or in those of the drain."""
    fields = record.fields
    if "line" not in fields:
        return Event(_in_words(record), variant=record.variant)
    return Event(
        facts.text(fields, "line"),
        closing=fields.get("closing") is True,
        stream=facts.stream(fields) or "stdout",
        offset=facts.number(fields, "offset"),
        suppressed=facts.count(fields, "suppressed"),
        variant=record.variant,
        cursor=facts.text(fields, "cursor") or None,
    )


def _in_words(record: Record) -> str:
    items = arrange([record], Limits())
    return phrases.say(items[0], Quoter(redact, tags=True), 0) if items else record.variant
