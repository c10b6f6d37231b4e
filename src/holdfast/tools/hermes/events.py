"""Signals as the events of this toolset, and a drain of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.signalfile import CUT_MARK
from ...errors import BadArgument, HoldfastError
from ...signals import typed
from . import labels, limits, process, words
from .settings import ORIGIN
from .style import DrainStyle as Style

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from typing import Any, Self

    from ...sessions.aio import AsyncHoldfast, AsyncSession
    from ...signals.consumer import AsyncConsumer, AsyncNotice
    from ...signals.lines import Signal
    from .settings import Settings

    Event = dict[str, Any]

MODES = ("concise", "all", "result", "error", "off")


class Drained:
    """The claimed signals: `events` for programs, `text` for the agent. A clean `async with`, or a loop that came to
    its end, settles them; anything else releases them."""

    def __init__(self, notice: AsyncNotice, events: Sequence[Event]) -> None:
        self.notice = notice
        self.events = list(events)
        self.text = notice.text

    def __len__(self) -> int:
        return len(self.events)

    def __repr__(self) -> str:
        return f"<Drained {len(self.events)} events>"

    @property
    def ids(self) -> list[str]:
        """The ids of all its signals, to be stored with the turn, for `seen`."""
        return self.notice.ids

    async def settle(self) -> None:
        await self.notice.settle()

    async def release(self, reason: str) -> None:
        await self.notice.release(reason)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self.notice.__aexit__(*raised)

    async def __aiter__(self) -> AsyncIterator[Event]:
        for event in self.events:
            yield event
        await self.settle()


async def drain(
    hf: AsyncHoldfast,
    consumer: AsyncConsumer,
    observed: set[str],
    settings: Settings,
    *,
    limit: int | None = None,
    seen: Callable[[str], bool] | None = None,
    owns: Callable[[Signal], bool] | None = None,
) -> Drained:
    """`observed`: sessions whose end a poll has shown."""
    style = Style(observed=frozenset(observed))
    notice = await consumer.drain(
        style, limit=limit, seen=seen, owns=owns, passing=_is_passing, redact=settings.without_secrets
    )
    made = _Events(hf, observed, settings.shown_in_notice)
    return Drained(notice, [each for each in [await made.of(signal) for signal in _wanted(notice.signals)] if each])


def is_wanted(event: Event, mode: str = "concise") -> bool:
    """Whether a gateway that delivers in this mode passes it on to people."""
    if mode not in MODES:
        raise BadArgument("mode", f"{mode[:40]!a} is not known", "give " + " or ".join(MODES))
    if mode in ("off", "all"):
        return mode == "all"
    ended = event["type"] == "completion"
    if mode == "error":
        return bool(ended and event["exit_code"] != 0)
    return bool(ended if mode == "result" else event["type"] != "heartbeat")


def _is_passing(signal: Signal) -> bool:
    """Signals that say nothing new once the end was reported. A match that was not delivered before is delivered
    all the same: a reply that reports the end does not consume it."""
    return signal.variant == "heartbeat" or (signal.variant == "watch" and signal.redelivered)


def _wanted(signals: Sequence[Signal]) -> list[Signal]:
    """Without heartbeats that the end has overtaken."""
    over = {signal.session for signal in signals if signal.ends_session}
    return [each for each in signals if each.variant != "heartbeat" or each.session not in over]


class _Events:
    def __init__(self, hf: AsyncHoldfast, observed: set[str], shown: Callable[[str], str]) -> None:
        self._hf = hf
        self._observed = observed
        self._shown = shown

    async def of(self, signal: Signal) -> Event | None:
        """None for a signal that this toolset has no event for."""
        if signal.variant == "lifecycle":
            return (
                {**self._head("completion", signal), **await self._completion(signal)} if signal.ends_session else None
            )
        if signal.variant == "watch":
            return {**self._head("watch_match", signal), **self._match(signal)}
        if signal.variant == "watch_disabled":
            suppressed = typed.count(signal.fields, "suppressed")
            hits = typed.count(signal.fields, "hits")
            message = words.watch_off(typed.text(signal.fields, "reason"), hits, suppressed)
            return {**self._head("watch_disabled", signal), "suppressed": suppressed, "message": message}
        if signal.variant == "overflow":
            tripped = signal.fields.get("state") == "tripped"
            suppressed = typed.count(signal.fields, "suppressed")
            event = self._head(f"watch_overflow_{'tripped' if tripped else 'released'}", signal)
            if tripped:
                return {**event, "message": words.OVERFLOW_TRIPPED}
            return {**event, "message": words.OVERFLOW_RELEASED.format(suppressed=suppressed), "suppressed": suppressed}
        if signal.variant == "heartbeat":
            return {**self._head("heartbeat", signal), **self._heartbeat(signal)}
        return None

    def _head(self, type: str, signal: Signal) -> Event:
        shot = signal.snapshot
        given = typed.table(shot, "labels")
        origin = typed.table(typed.table(typed.table(shot, "metadata"), "hermes"), "origin")
        event = {
            "type": type,
            "event_id": signal.id,
            "session_id": typed.text(given, labels.ID) or typed.text(shot, "name") or signal.session or "",
            "session_key": signal.owner or "",
            "command": self._shown(typed.text(shot, "command")),
            "task_id": typed.text(given, labels.TASK),
            "owner_task_id": typed.text(given, labels.OWNER_TASK),
            **{name: typed.text(given, labels.ORIGIN + name) or typed.text(origin, name) for name in ORIGIN},
            "ts": signal.at,
        }
        return event | ({"redelivered": True} if signal.redelivered else {})

    async def _completion(self, signal: Signal) -> Event:
        fields, shot = signal.fields, signal.snapshot
        cause, by = typed.text(fields, "cause"), typed.text(fields, "by") or None
        mode = typed.text(typed.table(shot, "labels"), labels.MODE)
        session = await self._session(signal)
        text, cut = await self._output(signal, session)
        return {
            "exit_code": process.exit_code(typed.number(fields, "code"), typed.text(fields, "signal") or None),
            "completion_reason": process.reason(cause),
            "termination_source": process.source(cause, by, foreground=mode in (labels.FOREGROUND, labels.YIELDED)),
            "output": text,
            "output_cut": cut,
            "started_at": typed.text(shot, "started_at"),
            "observed": signal.session in self._observed,
            # The signal only counts them.
            "survivors": [] if session is None else process.survivors(session.exit).get("survivors", []),
        }

    async def _session(self, signal: Signal) -> AsyncSession | None:
        """None where only the signal is left of it."""
        try:
            return await self._hf.get(signal.session)
        except HoldfastError:
            return None

    async def _output(self, signal: Signal, session: AsyncSession | None) -> tuple[str, bool]:
        """From the log; where that is gone, from the record of the end."""
        asked = typed.table(typed.table(signal.snapshot, "metadata"), "hermes")
        characters = typed.number(asked, "completion_output_chars") or limits.EVENT_CHARS
        if session is not None:
            try:
                return await process.tail(session, characters, self._shown)
            except HoldfastError:
                pass
        tails = typed.table(signal.fields, "tail")
        kept = [typed.text(typed.table(tails, stream), "text") for stream in ("stdout", "stderr", "tty")]
        text, _ = process.last(self._shown("".join(kept)), characters)
        return text, True

    def _match(self, signal: Signal) -> Event:
        fields = signal.fields
        text = "\n".join(typed.texts(fields, "lines"))
        # A line that alone is too long was cut by the runner.
        short = text.removesuffix(CUT_MARK)
        cut = short != text or len(text) > limits.EVENT_CHARS or bool(typed.count(fields, "more"))
        text = self._shown(short)[: limits.EVENT_CHARS]
        return {
            "pattern": typed.text(fields, "text") or typed.text(fields, "pattern"),
            "output": f"{text}\n{words.TRUNCATED}" if cut else text,
            "suppressed": typed.count(fields, "suppressed"),
            "offset": typed.number(fields, "offset"),
        }

    def _heartbeat(self, signal: Signal) -> Event:
        fields = signal.fields
        return {
            "seq": typed.count(fields, "n"),
            "interval": fields.get("interval_s"),
            "elapsed": fields.get("elapsed_s"),
            "output": process.last(self._shown(typed.text(fields, "tail")), limits.EVENT_CHARS)[0],
            "started_at": typed.text(signal.snapshot, "started_at"),
        }
