"""Signals as the events of this toolset, and a drain of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import BadArgument, HoldfastError
from ...runner.watch import CUT_MARK
from ...signals import facts
from ...signals.styles.hermes import Hermes as Style
from . import limits, scope, texts, views
from .settings import ORIGIN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from typing import Any, Self

    from ...host.aio import AsyncHoldfast, AsyncSession
    from ...signals.consumer import AsyncNotice
    from ...signals.records import Signal
    from .consuming import Consuming
    from .settings import Settings

    Event = dict[str, Any]

MODES = ("concise", "all", "result", "error", "off")


class Drained:
    """What was claimed: `events` for programs, `text` for the agent. A clean `async with`, or a loop that came to its
    end, settles it; anything else gives it back."""

    def __init__(self, notice: AsyncNotice, events: Sequence[Event]) -> None:
        self._notice = notice
        self.events = list(events)
        self.text = notice.text

    def __len__(self) -> int:
        return len(self.events)

    def __repr__(self) -> str:
        return f"<Drained {len(self.events)} events>"

    @property
    def ids(self) -> list[str]:
        """Of all signals in it: they belong into whatever is stored of the turn, for `seen`."""
        return self._notice.ids

    async def settle(self) -> None:
        await self._notice.settle()

    async def release(self, reason: str) -> None:
        await self._notice.release(reason)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            await self.settle()
        else:
            await self.release(f"{kind.__name__}: {error}")

    async def __aiter__(self) -> AsyncIterator[Event]:
        for event in self.events:
            yield event
        await self.settle()


async def drain(
    hf: AsyncHoldfast,
    consuming: Consuming,
    settings: Settings,
    *,
    limit: int | None = None,
    seen: Callable[[str], bool] | None = None,
    owns: Callable[[Signal], bool] | None = None,
) -> Drained:
    style = Style(observed=frozenset(consuming.observed))
    notice = await consuming.consumer.drain(
        style, limit=limit, seen=seen, owns=owns, passing=_is_passing, redact=settings.without_secrets
    )
    made = _Events(hf, consuming.observed, settings.shown_in_notice)
    return Drained(notice, [each for each in [await made.of(signal) for signal in _told(notice.signals)] if each])


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
    """What says nothing any more once the end was told. A match that nobody was given yet is told all the same: it is
    not consumed by a reply that told the end."""
    return signal.variant == "heartbeat" or (signal.variant == "watch" and signal.redelivered)


def _told(signals: Sequence[Signal]) -> list[Signal]:
    """A heartbeat that was overtaken by the end is none any more."""
    over = {signal.session for signal in signals if signal.ends_session}
    return [each for each in signals if each.variant != "heartbeat" or each.session not in over]


class _Events:
    def __init__(self, hf: AsyncHoldfast, observed: set[str], shown: Callable[[str], str]) -> None:
        self._hf = hf
        self._observed = observed
        self._shown = shown

    async def of(self, signal: Signal) -> Event | None:
        """None for what this toolset has no event for."""
        if signal.variant == "lifecycle":
            return (
                {**self._head("completion", signal), **await self._completion(signal)} if signal.ends_session else None
            )
        if signal.variant == "watch":
            return {**self._head("watch_match", signal), **self._match(signal)}
        if signal.variant == "watch_disabled":
            suppressed = facts.count(signal.fields, "suppressed")
            hits = facts.count(signal.fields, "hits")
            message = texts.watch_off(facts.text(signal.fields, "reason"), hits, suppressed)
            return {**self._head("watch_disabled", signal), "suppressed": suppressed, "message": message}
        if signal.variant == "overflow":
            tripped = signal.fields.get("state") == "tripped"
            suppressed = facts.count(signal.fields, "suppressed")
            event = self._head(f"watch_overflow_{'tripped' if tripped else 'released'}", signal)
            if tripped:
                limits = self._hf.config
                most, window_s, cooldown_s = limits.breaker_max, limits.breaker_window, limits.breaker_cooldown
                return {**event, "message": texts.overflow_tripped(most, window_s, cooldown_s)}
            return {**event, "message": texts.overflow_released(suppressed), "suppressed": suppressed}
        if signal.variant == "heartbeat":
            return {**self._head("heartbeat", signal), **self._heartbeat(signal)}
        return None

    def _head(self, type: str, signal: Signal) -> Event:
        shot = signal.snapshot
        labels = facts.table(shot, "labels")
        origin = facts.table(facts.table(facts.table(shot, "metadata"), "hermes"), "origin")
        event = {
            "type": type,
            "event_id": signal.id,
            "session_id": facts.text(labels, scope.ID) or facts.text(shot, "name") or signal.session or "",
            "session_key": signal.owner or "",
            "command": self._shown(facts.text(shot, "command")),
            "task_id": facts.text(labels, scope.TASK),
            "owner_task_id": facts.text(labels, scope.OWNER_TASK),
            **{name: facts.text(labels, scope.ORIGIN + name) or facts.text(origin, name) for name in ORIGIN},
            "ts": signal.at,
        }
        return event | ({"redelivered": True} if signal.redelivered else {})

    async def _completion(self, signal: Signal) -> Event:
        fields, shot = signal.fields, signal.snapshot
        cause, by = facts.text(fields, "cause"), facts.text(fields, "by") or None
        mode = facts.text(facts.table(shot, "labels"), scope.MODE)
        session = await self._session(signal)
        text, cut = await self._output(signal, session)
        return {
            "exit_code": views.exit_code(facts.number(fields, "code"), facts.text(fields, "signal") or None),
            "completion_reason": views.reason(cause),
            "termination_source": views.source(cause, by, foreground=mode in (scope.FOREGROUND, scope.YIELDED)),
            "output": text,
            "output_cut": cut,
            "started_at": facts.text(shot, "started_at"),
            "observed": signal.session in self._observed,
            # The signal only counts them.
            "survivors": [] if session is None else views.survivors(session.exit).get("survivors", []),
        }

    async def _session(self, signal: Signal) -> AsyncSession | None:
        """None where nothing is left of it but the signal."""
        try:
            return await self._hf.get(signal.session)
        except HoldfastError:
            return None

    async def _output(self, signal: Signal, session: AsyncSession | None) -> tuple[str, bool]:
        """From the log; where that is gone, what the record of the end keeps of it."""
        asked = facts.table(facts.table(signal.snapshot, "metadata"), "hermes")
        characters = facts.number(asked, "completion_output_chars") or limits.EVENT_CHARS
        if session is not None:
            try:
                return await views.tail(session, characters, self._shown)
            except HoldfastError:
                pass
        tails = facts.table(signal.fields, "tail")
        kept = [facts.text(facts.table(tails, stream), "text") for stream in ("stdout", "stderr", "tty")]
        text, _ = views.last(self._shown("".join(kept)), characters)
        return text, True

    def _match(self, signal: Signal) -> Event:
        fields = signal.fields
        text = "\n".join(facts.texts(fields, "lines"))
        # A line that alone is too long was cut by the runner.
        short = text.removesuffix(CUT_MARK)
        cut = short != text or len(text) > limits.EVENT_CHARS or bool(facts.count(fields, "more"))
        text = self._shown(short)[: limits.EVENT_CHARS]
        return {
            "pattern": facts.text(fields, "text") or facts.text(fields, "pattern"),
            "output": f"{text}\n{texts.TRUNCATED}" if cut else text,
            "suppressed": facts.count(fields, "suppressed"),
            "offset": facts.number(fields, "offset"),
        }

    def _heartbeat(self, signal: Signal) -> Event:
        fields = signal.fields
        return {
            "seq": facts.count(fields, "n"),
            "interval": fields.get("interval_s"),
            "elapsed": fields.get("elapsed_s"),
            "output": views.last(self._shown(facts.text(fields, "tail")), limits.EVENT_CHARS)[0],
            "started_at": facts.text(signal.snapshot, "started_at"),
        }
