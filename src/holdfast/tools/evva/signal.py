"""evva's signals: a single one, a batch, and a fold of a batch into one message."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ...core.vt.text import tail
from ...errors import BadArgument
from ...signals import typed, wording
from ...signals.items import Limits, arrange
from ...signals.redact import Quoter, redact
from ...signals.render import QUOTES, render
from .snapshot import OP_EVENT, moment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from ...sessions.core import Core
    from ...signals.consumer import Batch as Claimed
    from ...signals.lines import Signal as Record
    from ...signals.render import Message
    from .catalog import Daemon
    from .snapshot import DaemonSnapshot


# A signal: one ending, or one line.


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
    """`suppressed` lines before this one were left out by a limit, from `cursor` on. A `variant` other than `event` is
    no line of output; `line` describes it."""

    line: str
    closing: bool = False
    stream: str = "stdout"
    offset: int | None = None
    suppressed: int = 0
    variant: str = EVENT
    cursor: str | None = None


@dataclass(frozen=True)
class Signal:
    """Exactly one of `lifecycle` and `event` is set. `id` is that of its record; the lines of one notice share it."""

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
    """For `emit`: one line of a daemon of the host."""
    shot = daemon.snapshot()
    return Signal(daemon.id, shot.kind, datetime.now(UTC), shot, event=Event(line, closing))


def new_lifecycle_signal(daemon: Daemon, status: str) -> Signal:
    """For `emit`: a new status of a daemon of the host."""
    shot = daemon.snapshot()
    return Signal(daemon.id, shot.kind, datetime.now(UTC), shot, lifecycle=Lifecycle(status))


def op(signal: Signal) -> str:
    """The `op` of the change that it causes."""
    if signal.event is not None:
        return signal.event.variant
    return "" if signal.lifecycle is None else signal.lifecycle.status


def of(record: Record, shot: Callable[[Record], DaemonSnapshot | None]) -> list[Signal]:
    """One signal for an ending, one for each line of a notice, one for any other record."""
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
    fields, exit = record.fields, typed.table(record.snapshot, "exit")
    return Lifecycle(
        status=typed.text(fields, "status"),
        cause=typed.text(fields, "cause") or None,
        exit_code=typed.number(fields, "code"),
        exit_signal=typed.text(fields, "signal") or None,
        survivors=typed.count(exit, "survivors"),
    )


def _lines(fields: Mapping[str, object]) -> Iterator[Event]:
    lines = typed.tables(fields, "lines")
    suppressed = typed.count(fields, "suppressed")
    cursor = typed.text(fields, "cursor") or None
    # The suppressed lines come before the newest ones, in a digest after the first.
    marked = 1 if fields.get("level") == "digest" and len(lines) > 1 else 0
    for number, line in enumerate(lines):
        yield Event(
            typed.text(line, "text"),
            stream=typed.stream(line) or "stdout",
            offset=typed.number(line, "offset"),
            suppressed=suppressed if number == marked else 0,
            cursor=cursor if number == marked else None,
        )
    closing = fields.get("closing") is True
    if closing or not lines:
        yield Event("", closing=closing, suppressed=0 if lines else suppressed, cursor=None if lines else cursor)


def _notice(record: Record) -> Event:
    """Another record as an event, in its own words or in those of the drain."""
    fields = record.fields
    if "line" not in fields:
        return Event(_in_words(record), variant=record.variant)
    return Event(
        typed.text(fields, "line"),
        closing=fields.get("closing") is True,
        stream=typed.stream(fields) or "stdout",
        offset=typed.number(fields, "offset"),
        suppressed=typed.count(fields, "suppressed"),
        variant=record.variant,
        cursor=typed.text(fields, "cursor") or None,
    )


def _in_words(record: Record) -> str:
    items = arrange([record], Limits())
    return wording.say(items[0], Quoter(redact, tags=True), 0) if items else record.variant


# A batch of claimed signals, and the same as one message.


class Batch(list[Signal]):
    """The claimed signals. It is settled or released once, which calls `settled(batch)` or `released(batch)`.
    Thread-safe."""

    def __init__(
        self,
        claimed: Claimed,
        signals: Iterable[Signal],
        settled: Callable[[Batch], None],
        released: Callable[[Batch], None],
    ) -> None:
        super().__init__(signals)
        self._claimed = claimed
        self._settled = settled
        self._released = released
        self._open = True
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} signals>"

    @property
    def ids(self) -> list[str]:
        """The ids of the records. Store them with the turn."""
        return self._claimed.ids

    @property
    def records(self) -> list[Record]:
        """The records of the signals."""
        return self._claimed.signals

    @property
    def parked(self) -> list[str]:
        return self._claimed.parked

    def settle(self) -> None:
        """Acknowledge the signals and evict the finished daemons in it. Does nothing after the first call or a
        release."""
        if self.acknowledge():
            self._settled(self)

    def acknowledge(self) -> bool:
        """Acknowledge the signals. False if the batch was settled or released before."""
        with self._lock:
            if not self._open:
                return False
            self._claimed.settle()
            self._open = False
            return True

    def release(self, reason: str) -> None:
        """Put the signals back into the queue, with a growing delay."""
        with self._lock:
            if not self._open:
                return
            self._claimed.release(reason)
            self._open = False
        self._released(self)


class Fold:
    """One message, role user, and its batch. False if empty. A clean `with` settles it, an exception releases it."""

    def __init__(self, text: str, batch: Batch) -> None:
        self.text = text
        self.batch = batch

    def __repr__(self) -> str:
        return f"<Fold of {len(self.ids)} signals, {len(self.text)} characters>"

    @property
    def ids(self) -> list[str]:
        return self.batch.ids

    def __bool__(self) -> bool:
        return bool(self.text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.batch.settle()
        else:
            self.batch.release(f"{kind.__name__}: {error}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


# Rendering the message of a fold.


STYLE = "evva"
TAIL_CHARACTERS_MOST = 3000
# Enough for that many characters, and for escape sequences that are removed.
_TAIL_BYTES = 64 << 10


class Folding:
    def __init__(self, core: Core, quote: str, ended_tail_chars: int | None) -> None:
        if quote not in QUOTES:
            raise BadArgument("quote", f"{quote[:40]!a} is not known", "give " + " or ".join(QUOTES))
        if ended_tail_chars is not None and not 1 <= ended_tail_chars <= TAIL_CHARACTERS_MOST:
            why = f"{ended_tail_chars} is out of bounds"
            raise BadArgument("ended_tail_chars", why, f"give 1 to {TAIL_CHARACTERS_MOST}")
        self._core = core
        self._quote = quote
        self._raised = ended_tail_chars is not None
        self._limits = limits = Limits(core.config)
        if ended_tail_chars is not None:
            limits.failed_chars = max(limits.failed_chars, ended_tail_chars)
            limits.completed_chars = max(limits.completed_chars, ended_tail_chars)
            limits.failed_lines = max(limits.failed_lines, limits.session_lines)
            limits.completed_lines = max(limits.completed_lines, limits.session_lines)
            # A block also has a heading, and a prefix on each line.
            limits.session_chars = max(limits.session_chars, 2 * ended_tail_chars)

    def message(self, records: Sequence[Record], parked: Sequence[str]) -> Message:
        if self._raised:
            for record in records:
                if record.ends_session:
                    self._lengthen(record)
        return render(records, STYLE, limits=self._limits, quote=self._quote, parked=parked)

    def _lengthen(self, record: Record) -> None:
        """Replace the record's short tail by a longer one from the log."""
        tails = dict(typed.table(record.fields, "tail"))
        if record.session is None or not tails:
            return
        log = self._core.log(record.session)
        chars = max(self._limits.failed_chars, self._limits.completed_chars)
        for stream, end in typed.offsets(record.fields, "ends").items():
            if stream in tails and stream != "tty":
                at = max(0, end - _TAIL_BYTES)
                found = list(log.blocks(stream, at, end))
                raw = b"".join(data for _, data in found)
                if raw:
                    tails[stream] = tail(raw, found[0][0], lines=self._limits.session_lines, chars=chars)
        record.fields["tail"] = tails
